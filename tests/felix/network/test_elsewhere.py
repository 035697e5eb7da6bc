"""Networks whose device is elsewhere: built here without running them."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import subprocess

import pytest
import torch
import tvm
from torch import nn

from benchmarks.networks import onnx_files
from felix import target, workloads
from felix.builder import payload
from felix.database import store
from felix.database.outcome import KnownResult
from felix.network import elsewhere, group_costs, groups, imported, outcomes
from felix.space import sketch
from felix.space.template_sketch import TemplateSketch
from felix.task import Task
from felix.tuning import options
from tests.support import elves, networks, run_py


@pytest.fixture(autouse=True)
def known(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known results of the test's own."""
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "known.sqlite"))


GPU = target.parse("cuda -arch sm_90a")
NOTHING = outcomes.Outcomes({}, frozenset(), None, 0.0)


def request(pool: networks.Pool) -> outcomes.Request:
    return outcomes.Request(trials=4, options=networks.tune_options(pool), pytorch=False)


def run(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return run_py.run(folder, "--json", "--repeats", "1")


def test_a_session_begun_without_descents_is_resumed() -> None:
    """Earlier versions had no descents on a GPU, where the default has some."""
    task = workloads.gemm(16, 16, 16, target="h100")
    of_local = request(networks.Pool())
    default = dataclasses.replace(of_local, options=options.TuneOptions())
    fresh, earlier = (
        outcomes._session_folder(store.Store(), [task], each) for each in (default, of_local)
    )
    assert fresh != earlier
    earlier.mkdir(parents=True)
    assert outcomes._session_folder(store.Store(), [task], default) == earlier


def test_a_network_is_checked_and_timed_where_it_runs(tmp_path: pathlib.Path) -> None:
    """It has parameters that are prepacked, which its `run.py` does."""
    pool, folder = networks.Pool(), tmp_path / "net"
    exported = torch.export.export(networks.Placed().eval(), (torch.randn(2, 8, 16),))
    summary = elsewhere.tune(exported, folder, request(pool), networks.TARGET)
    assert pool.n_measured >= 4 and summary.reason == "trials"
    assert any(str(each.contender) == "felix" for each in summary.groups)
    assert (summary.timing, summary.max_error) == (None, None)
    assert "not run where it was built" in (folder / "report.txt").read_text()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["prepacks"] and manifest["report"]["max_error"] is None
    done = run(folder)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["max_error"] < 1e-3 and answer["latency_us"] > 0


def test_without_time_to_tune_it_is_built_all_the_same(tmp_path: pathlib.Path) -> None:
    pool = networks.Pool()
    late = dataclasses.replace(request(pool), seconds=1e-3)
    exported = torch.export.export(nn.Linear(8, 4), (torch.randn(2, 8),))
    summary = elsewhere.tune(exported, tmp_path / "net", late, networks.TARGET)
    assert (pool.n_measured, summary.reason) == (0, "seconds")
    assert run(tmp_path / "net").returncode == 0


def test_a_wrong_network_is_found_where_it_runs(tmp_path: pathlib.Path) -> None:
    model, x = nn.Linear(8, 4), torch.randn(2, 8)
    network = imported.read(model, (x,), {}, target.parse(networks.TARGET))
    wrong = tuple(each + 1.0 for each in network.expected)
    network = dataclasses.replace(network, expected=wrong)
    every = groups.of(network.lowered, network.target)
    elsewhere.write(network, every, NOTHING, tmp_path / "net")
    done = run(tmp_path / "net")
    assert done.returncode == 1 and "differs from the stored one" in done.stderr


def test_a_gpu_s_network_is_built_without_a_gpu(tmp_path: pathlib.Path) -> None:
    model, keywords = networks.Perceptron(), {"scale": torch.ones(1)}
    network = imported.read(model, (torch.randn(4, 16),), keywords, GPU)
    every = groups.of(network.lowered, GPU)
    steps: list[str] = []
    summary = elsewhere.write(network, every, NOTHING, tmp_path / "net", steps.append)
    assert steps == ["building the network", "writing the network"]
    assert summary.target == "cuda" and {str(e.contender) for e in summary.groups} == {"tvm"}
    assert elves.EM_CUDA in elves.machines((tmp_path / "net" / "network.so").read_bytes())
    if not torch.cuda.is_available():
        done = run(tmp_path / "net")
        assert done.returncode == 1 and "needs a cuda device" in done.stderr


@pytest.mark.slow("builds a network for a CPU and a GPU")
def test_outputs_of_an_onnx_file_for_a_gpu_are_computed_on_the_cpu(tmp_path: pathlib.Path) -> None:
    """Of groups that are planned for a GPU, with norms and products in other ways."""
    model = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval()
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_files.export(model, [torch.randn(2, 16)]))
    grouping = group_costs.known_grouping(GPU, store.Store())
    network = imported.read(path, (), {}, GPU, grouping=grouping, drawn_on="cpu")
    steps: list[str] = []
    every = groups.of(network.lowered, GPU)
    elsewhere.write(network, every, NOTHING, tmp_path / "net", steps.append)
    assert "running the model on the CPU" in steps
    stored = tvm.runtime.load_param_dict((tmp_path / "net" / "examples.bin").read_bytes())
    x, output = (torch.from_dlpack(stored[name]) for name in ("input0", "output0"))
    networks.assert_same(lambda _: output, model, x)


@pytest.mark.slow("compiles a network for a GPU")
def test_generated_kernels_of_equal_names_are_all_in_a_library(tmp_path: pathlib.Path) -> None:
    """A library finds kernels by name alone, and every template calls its own `gemm`."""
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 512)).bfloat16()
    network = imported.read(model, (torch.randn(64, 128, dtype=torch.bfloat16),), {}, GPU)
    every = groups.of(network.lowered, GPU)
    by_key = {each.task.key: generated(each.task) for each in every if each.task is not None}
    assert len(by_key) == len(every) == 2
    gathered = outcomes.Outcomes(by_key, frozenset(), "trials", 1.0)
    summary = elsewhere.write(network, every, gathered, tmp_path / "net")
    assert {str(each.contender) for each in summary.groups} == {"felix"}
    content = (tmp_path / "net" / "network.so").read_bytes()
    assert elves.EM_CUDA in elves.machines(content)
    assert len(set(re.findall(rb"\.text\.felix_[0-9a-f]{16}_gemm\0", content))) == 2
    assert b".text.gemm\0" not in content


def generated(task: Task) -> KnownResult:
    """What tuning would give if it had measured one generated kernel."""
    each = next(each for each in sketch.sketches(task) if isinstance(each, TemplateSketch))
    (row,) = each.sample(1, seed=0)
    return KnownResult(
        tuned_us=1.0, program=payload.of(each.program(row), task.target), n_trials=1
    )
