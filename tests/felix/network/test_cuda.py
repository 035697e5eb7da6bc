"""Networks for CUDA: compiled anywhere, run where a GPU is."""

from __future__ import annotations

import json
import math
import pathlib

import pytest
import torch
from torch import nn
from torch._subclasses import fake_tensor
from torch.fx.experimental import proxy_tensor

import felix
from benchmarks.networks import catalogue
from felix import errors, frontend, target
from felix.database import store
from felix.network import assembly, cuda_graph, executable, group_costs, groups, imported, outcomes
from felix.network.backend import entry, partition, queued
from felix.network.contenders import shipping
from felix.templates.generated import GeneratedProgram
from felix.torch_calls.form import TorchForm
from tests.support import networks, run_py, share
from tests.support.modules import Called

ARCH = "cuda -arch sm_80"


def _scheduled(network: imported.Network) -> list[tuple[groups.Group, assembly.Runs]]:
    """A drawn schedule of each group."""
    runs: list[tuple[groups.Group, assembly.Runs]] = []
    for group in groups.of(network.lowered, network.target):
        sketch = felix.sketches(group.task)[0]
        (row,) = sketch.sample(1, seed=1)
        runs.append((group, sketch.program(row)))
    return runs


def test_compiles_without_a_gpu() -> None:
    full = target.parse(ARCH)
    network = imported.read(
        nn.Sequential(nn.Linear(32, 32), nn.ReLU()), (torch.randn(32, 32),), {}, full
    )
    mod = assembly.assemble(network.lowered, _scheduled(network))
    scheduled = [func for variable, func in mod.functions_items() if variable.name_hint != "main"]
    assert all(bool(func.attrs["tirx.is_scheduled"]) for func in scheduled)
    built = executable.compile_network(mod, full)
    assert built.stats()


def test_what_follows_a_sum_of_one_term_is_done_once() -> None:
    full = target.parse(ARCH)
    columns, rows = torch.randn(4, 1), torch.randn(1, 4)
    network = imported.read(Called(lambda x, y: (x @ y).cos()), (columns, rows), {}, full)
    with full:
        scheduled = executable.default_schedules()(network.lowered).script()
    assert scheduled.count("T.cos(") == 1 and "T.init()" not in scheduled


@pytest.mark.slow("compiles whole networks for a GPU")
@pytest.mark.parametrize("name", ["llama", "vit_b32", "bert_base"])
def test_planned_groups_have_default_schedules(name: str) -> None:
    """Products that read one tensor twice, where a rule of TVM's fails, among them."""
    full = target.parse("cuda -arch sm_90a")
    model, args = catalogue.make(name, dtype=torch.bfloat16, small=True)
    grouping = group_costs.grouping(None, full, None)
    network = imported.read(model, args, {}, full, grouping=grouping)
    assert executable.compile_network(network.lowered, full).stats()


def test_capturing_needs_a_gpu(everything_known: pathlib.Path) -> None:
    x = torch.randn(2, 8)
    fast = networks.optimize(nn.Linear(8, 8), (x,), everything_known)
    with pytest.raises(errors.TuningError, match="on a GPU"):
        cuda_graph.CapturedNetwork(fast.executable, [x])


@pytest.mark.gpu
@pytest.mark.parametrize("runs_torch", [False, True])
def test_independent_kernels_run_in_branches(
    runs_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Branches are kept here whatever they gain."""
    monkeypatch.setattr(cuda_graph, "_GAIN", math.inf)
    model, full = networks.Paths(6, 5, 256).cuda(), target.parse("cuda")
    inputs = torch.randn(20, 64, 256, device="cuda")
    network = imported.read(model, (inputs[0],), {}, full)
    runs: list[tuple[groups.Group, assembly.Runs]] = [
        (group, group.form if runs_torch and isinstance(group.form, TorchForm) else None)
        for group in groups.of(network.lowered, full)
    ]
    built = networks.built(network, assembly.assemble(network.lowered, runs))
    captured = cuda_graph.CapturedNetwork(built, [inputs[0]])
    assert captured.branching.n_branches >= 6
    with torch.no_grad():
        for x in inputs:
            outputs = tuple(captured([x]))
            torch.testing.assert_close(outputs, model(x), rtol=2e-3, atol=1e-5)


@pytest.mark.gpu
def test_a_program_that_takes_memory_from_a_pool_is_not_captured() -> None:
    full, x = target.parse("cuda"), torch.randn(4, 64, device="cuda")
    network = imported.read(Called(lambda x: torch.sort(x, dim=1)[0]), (x,), {}, full)
    built = networks.built(network)
    with pytest.raises(errors.TuningError, match="argsort takes memory from TVM's pool"):
        cuda_graph.CapturedNetwork(built, [x])
    (y,) = built([x])
    torch.testing.assert_close(y, x.sort(dim=1)[0])


@pytest.mark.gpu
def test_tuned_and_captured(tmp_path: pathlib.Path) -> None:
    model = networks.Convolutions(8).cuda().eval()
    x, other = torch.randn(2, 1, 3, 16, 16, device="cuda")
    fast = felix.optimize(
        model, (x,), trials=16, target="cuda", known_results=tmp_path / "known.sqlite"
    )
    with torch.no_grad():
        expected = model(other)
    assert fast.report.calls.startswith("one CUDA graph")
    first = fast(other)
    fast(x)  # overwrites nothing that was returned
    captured = cuda_graph.CapturedNetwork(fast.executable, [x])
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        elsewhere = fast(other)
    torch.cuda.synchronize()
    for outputs in (first, elsewhere, captured([other]), fast.executable([other])):
        torch.testing.assert_close(tuple(outputs), expected, rtol=1e-3, atol=1e-4)


def test_parts_of_a_compiled_graph_build_for_a_gpu() -> None:
    """Traced with tensors that are nowhere, partitioned and compiled without a GPU."""
    full = target.parse(ARCH)
    model = networks.Convolutions().eval()
    with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        weights = {
            name: torch.empty(value.shape, dtype=value.dtype, device="cuda")
            for name, value in model.state_dict().items()
        }
        x = torch.empty(2, 3, 6, 6, device="cuda")

        def call(weights: dict[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
            y, means = torch.func.functional_call(model, weights, (x,))
            return [y, torch.kthvalue(means, 2)[0]]

        functional = proxy_tensor.make_fx(call)(weights, x)
    cuts = partition.split(functional, {}, full, frontend.Grouping(frontend.fusion_for(full)))
    assert list(cuts.pytorch) == ["aten.kthvalue.default"]
    (part,) = cuts.parts
    assert isinstance(part.program, partition.PartProgram)
    every = groups.of(part.program.lowered, full)
    assert all(each.task is not None for each in every)
    runs: list[tuple[groups.Group, assembly.Runs]] = [(each, None) for each in every]
    mod = assembly.assemble(part.program.lowered, runs)
    assert executable.compile_network(mod, full).stats()


@pytest.mark.gpu
def test_backend_on_a_gpu_and_captured(tmp_path: pathlib.Path) -> None:
    torch._dynamo.reset()
    model = networks.Convolutions(8).cuda().eval()
    x, other = torch.randn(2, 1, 3, 16, 16, device="cuda")
    options = {"known_results": str(tmp_path / "known.sqlite"), "never_slower": False}
    with torch.no_grad():
        torch.compile(model, backend=entry.backend, options=options)(x)
        assert entry.backend_report().n_queued
        known = store.Store(tmp_path / "known.sqlite")
        summary = queued.work_off(known, outcomes.Request(trials=16))
        assert summary.done and not summary.left
        torch._dynamo.reset()
        fast = torch.compile(model, backend=entry.backend, options=options)
        expected, place = model(other), x.clone()
        torch.testing.assert_close(fast(other), expected, rtol=1e-3, atol=1e-4)
        fast(place)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = fast(place)
        place.copy_(other)
        graph.replay()
        torch.testing.assert_close(outputs, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", share.of(["llama", "vit_b32", "bert_base"], 1))
def test_transformers_have_planned_groups(name: str, tmp_path: pathlib.Path) -> None:
    """Buffers on the GPU, norms folded, products merged, operands that are parts of one tensor."""
    model, args = catalogue.make(name, dtype=torch.bfloat16, small=True)
    model, args = model.cuda(), [each.cuda() for each in args]
    fast = felix.optimize(
        model, args, trials=16, target="cuda", known_results=tmp_path / "known.sqlite"
    )
    is_rewritten = any(each.group.rewriting for each in fast.report.groups)
    assert is_rewritten == (name == "llama")  # by cost: the others are too small for it
    with torch.no_grad():
        torch.testing.assert_close(fast(*args), model(*args), rtol=0.06, atol=0.06)


@pytest.mark.gpu
def test_called_while_the_caller_captures(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda().eval()
    x, other = torch.randn(2, 8, 64, device="cuda")
    fast = felix.optimize(
        model, (x,), trials=8, target="cuda", known_results=tmp_path / "known.sqlite"
    )
    place, graph = x.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = fast(place) + 1
    place.copy_(other)
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(output, model(other) + 1, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_an_artifact_of_several_generated_kernels_runs_without_felix(
    tmp_path: pathlib.Path,
) -> None:
    """Templates name kernels alike, and those of convolutions for Hopper have im2col maps."""
    layers = [
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.Flatten(),
        nn.Linear(128 * 14 * 14, 256),
    ]
    model = nn.Sequential(*layers).bfloat16().cuda().eval()
    x = torch.randn(1, 64, 14, 14, dtype=torch.bfloat16, device="cuda")
    fast = felix.optimize(
        model,
        (x,),
        trials=24,
        target="cuda",
        pytorch=False,
        known_results=tmp_path / "known.sqlite",
    )
    programs = [
        each.outcome.read_program()
        for each in fast.report.groups
        if each.outcome is not None and each.contender is shipping.Contender.FELIX
    ]
    generated = [each for each in programs if isinstance(each, GeneratedProgram)]
    assert len(generated) >= 2, str(fast.report)
    folder = fast.export(tmp_path / "net")
    done = run_py.run(folder, "--json", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["latency_us"] > 0
