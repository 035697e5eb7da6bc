"""TF32 in whole networks: which programs may use it, tolerances, PyTorch's operators, results."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch import nn
from torch.fx.experimental import proxy_tensor

import felix
from felix import frontend, target, workloads
from felix.cli import main
from felix.cli.commands import network as network_command
from felix.cli.commands import tune as tune_command
from felix.database import outcome, store
from felix.network import agreement, group_costs, groups, imported, optimize, pytorch_model
from felix.network.backend import part, partition, settings
from felix.task import Task
from felix.torch_calls import form, functions
from tests.support import networks

CUDA = "cuda -arch=sm_90"


class Layers(nn.Module):
    """Two products and what lies between and behind."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(4, 8, 3), nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(self.convolution(x).mean((2, 3))), -1)


X = torch.randn(2, 4, 8, 8)


def _names(tasks: list[Task]) -> dict[str, bool]:
    return {task.name: task.allows_tf32 for task in tasks}


def test_programs_with_products_of_float32_may_use_it() -> None:
    exact = felix.extract_tasks(Layers(), (X,), CUDA)
    allowed = felix.extract_tasks(Layers(), (X,), CUDA, allow_tf32=True)
    assert not any(_names(exact).values())
    assert _names(exact).keys() == _names(allowed).keys()
    changed = {name for name, allows in _names(allowed).items() if allows}
    assert len(changed) == 2 and any("conv2d" in name for name in changed)
    for before, after in zip(exact, allowed, strict=True):
        assert (before.key == after.key) is (before.name not in changed)
        assert (before.program_key == after.program_key) is (before.name not in changed)
    half = felix.extract_tasks(Layers().half(), (X.half(),), CUDA, allow_tf32=True)
    assert not any(_names(half).values())
    on_cpu = felix.extract_tasks(Layers(), (X,), "llvm", allow_tf32=True)
    assert not any(_names(on_cpu).values())


@pytest.mark.parametrize(
    "text, matters",
    [
        ("gemm:16,16,16", True),
        ("conv2d:1,8,8,4,4,3,padding=1,epilogue=bias", True),
        ("gemm:16,16,16,dtype=bfloat16", False),
        ("gemm:16,16,16,dtype=float64", False),
        ("gemm:16,16,1", False),
        ("softmax:16x16", False),
        ("reduce:16x16,axes=1", False),
    ],
)
def test_tf32_matters_to_sums_of_products_alone(text: str, matters: bool) -> None:
    assert workloads.parse(text, CUDA).where_tf32_matters().allows_tf32 is matters
    assert not workloads.parse(text, "llvm").where_tf32_matters().allows_tf32


def _groups(allow_tf32: bool) -> list[groups.Group]:
    full = target.parse(CUDA)
    lowered = frontend.lowered(frontend.import_torch(Layers(), (X,)), full)
    return groups.of(lowered, full, allow_tf32=allow_tf32)


def test_pytorch_s_operators_of_such_groups_may_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {group.name: group.form for group in _groups(False)}
    for group in _groups(True):
        assert group.task is not None and isinstance(group.form, form.TorchForm)
        text = group.form.to_json()
        assert form.form_from_json(text) == group.form
        assert group.form.allow_tf32 is group.task.allows_tf32 is ("allow_tf32" in text)
        before = exact[group.name]
        assert isinstance(before, form.TorchForm) and "allow_tf32" not in before.to_json()
        assert (before.key == group.form.key) is not group.task.allows_tf32
    precisions: list[str] = []
    as_measured = functions._as_measured
    monkeypatch.setattr(
        functions,
        "_as_measured",
        lambda out, precision: (precisions.append(precision), as_measured(out, precision))[1],
    )
    calls = [{"function": "relu", "operands": [0], "options": {}, "dtype": "float32"}]
    for content in ({}, {"allow_tf32": True}):
        y = torch.zeros(3)
        functions.packed(json.dumps({"n_inputs": 1, "calls": calls, **content}))(torch.ones(3), y)
        assert y.sum() == 3
    assert precisions == ["ieee", "tf32"]


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_the_precision_of_the_process_is_restored(precision: str) -> None:
    cudnn: Any = torch.backends.cudnn
    places: tuple[Any, ...] = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn
    before = [place.fp32_precision for place in places]
    with functions.products_in(precision):
        assert [place.fp32_precision for place in places] == [precision] * 3
    assert [place.fp32_precision for place in places] == before


class Asking(nn.Module):
    """Notes the precision of convolutions wherever it, or a copy, is called."""

    seen: ClassVar[list[str]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting():
            self.seen.append(torch.backends.cudnn.conv.fp32_precision)
        return x + 1


@pytest.mark.parametrize("allowed", [False, True])
def test_what_a_model_returns_is_computed_in_float32(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch convolves in TF32 unless told otherwise, which exact programs would differ from."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    monkeypatch.setattr(Asking, "seen", [])
    model = Asking()
    with functions.products_in("tf32"):
        network = imported.read(model, (X,), {}, target.parse("llvm"))
        imported.outputs_on(network, [X])
        assert model.seen == ["ieee", "ieee"]
        assert network.model is not None
        pytorch_model.eager(network.model)(X)  # which is timed, as its user runs it
    assert model.seen[-1] == "tf32"


def test_tolerances() -> None:
    of_float16 = agreement.TOLERANCES[torch.float16]
    assert agreement.tolerance([torch.float32], allow_tf32=True) == of_float16
    assert agreement.tolerance([torch.float32]) == agreement.TOLERANCES[torch.float32]
    wider = agreement.tolerance([torch.float32, torch.bfloat16], allow_tf32=True)
    assert wider == agreement.TOLERANCES[torch.bfloat16]
    assert agreement.tolerance([torch.float64], True) == agreement.TOLERANCES[torch.float64]
    network = imported.read(Layers(), (X,), {}, target.parse(CUDA))
    allowed = dataclasses.replace(network, allow_tf32=True)
    assert (network.tolerance, allowed.tolerance) == (1e-3, of_float16)
    on_cpu = dataclasses.replace(allowed, target=target.parse("llvm"))
    assert on_cpu.tolerance == 1e-3


def test_planned_groups_are_judged_and_known_by_it(tmp_path: pathlib.Path) -> None:
    task = workloads.gemm(128, 128, 128, target=CUDA)
    known = store.Store(tmp_path / "known.sqlite")
    known.add(task.allowing_tf32(), outcome.KnownResult(default_us=7.0, failure="none"))
    exact, allowed = (
        group_costs.SketchCosts(known),
        group_costs.SketchCosts(known, allow_tf32=True),
    )
    found = [costs.schedules([task])[0].has_template for costs in (exact, allowed)]
    assert found == [False, True]
    assert exact.latency_us(task) is None and allowed.latency_us(task) == 7.0
    assert known.find(task) is None


@pytest.mark.parametrize("allow_tf32", [False, True])
def test_parts_of_compiled_graphs_queue_and_compare_by_it(
    tmp_path: pathlib.Path, allow_tf32: bool
) -> None:
    full, model = target.parse(CUDA), frontend.import_torch(Layers(), (X,))
    program = partition.PartProgram(
        raw=model, folded=model, lowered=frontend.lowered(model, full), target=full
    )
    graph = proxy_tensor.make_fx(Layers())(X)
    cut = partition.Cut(name="part", graph=graph, parameters={}, program=program)
    options = {"allow_tf32": allow_tf32, "never_slower": False}
    known = store.Store(tmp_path / "known.sqlite")
    made = part.Part(cut, settings.read(None, options), known)
    waiting = [Task.from_json(each.task, trusted=True) for each in store.queued(known)]
    assert any(task.allows_tf32 for task in waiting) is allow_tf32
    rounded: Any = mock.Mock(side_effect=lambda inputs: [1.005 * graph(*inputs)])
    rounded.unfit.return_value = None
    made._compare(rounded, (X,))
    assert ("differs from PyTorch" in str(made.report.reason)) is not allow_tf32


def test_optimize_passes_it_on_and_a_cpu_stays_exact(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = networks.optimize(Layers(), (X,), everything_known, allow_tf32=True)
    assert not any(each.group.task.allows_tf32 for each in fast.report.groups if each.group.task)
    folder = fast.export(everything_known / "net")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["allow_tf32"] is True and manifest["tolerance"] == 1e-3
    seen: list[bool] = []

    def stop(network: imported.Network, *rest: Any) -> None:
        seen.append(network.allow_tf32)

    monkeypatch.setattr(optimize, "_optimized", stop)
    for changes in ({"allow_tf32": True}, {}):
        networks.optimize(nn.Identity(), (X,), everything_known, **changes)
    assert seen == [True, False]


def test_the_command_allows_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an operator, of a task's file and of a network; not of what is queued."""
    seen: list[Any] = []
    monkeypatch.setattr(tune_command, "_tune", lambda tasks, *rest: seen.append(tasks) or 1 / 0)
    monkeypatch.setattr(
        network_command,
        "_written",
        lambda path, arguments, out: seen.append(arguments.allow_tf32) or 1 / 0,
    )
    path = tmp_path / "task.json"
    path.write_text(workloads.gemm(16, 16, 16, target=CUDA).to_json())
    conv = "conv2d:1,8,8,4,4"
    shared = ["--target", CUDA, "--out", str(tmp_path / "out")]
    for words in (["tune", conv, str(path), "softmax:8x8"], ["tune", "net.onnx"]):
        for flags in ([], ["--allow-tf32"]):
            with pytest.raises(ZeroDivisionError):
                main.main([*words, *flags, *shared])
    exact, allowed, *of_network = seen
    assert [task.allows_tf32 for task in exact] == [False] * 3
    assert [task.allows_tf32 for task in allowed] == [True, True, False]
    assert of_network == [False, True]
    arguments = main._parser().parse_args(["tune", "--queued", "--allow-tf32"])
    with pytest.raises(felix.errors.TuningError, match="leave out --allow-tf32"):
        network_command.run_queued(arguments)
