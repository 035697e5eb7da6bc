"""Memory of intermediate values: a captured network's is its own, and branches do not share it."""

from __future__ import annotations

import copy
import pathlib

import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.s_tir import stmt as s_stmt

import felix
from felix import target
from felix.network import assembly, executable, group_costs, groups, imported
from felix.network.passes import intermediates, memory
from tests.support import networks, share
from tests.support.modules import Called

CUDA = target.parse("cuda -arch sm_80")
LLVM = target.parse(networks.TARGET)


class Normalized(nn.Module):
    """Two results of which one goes through softmax, a program of several statements."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(self.linear(x), dim=-1)
        return torch.softmax(y + x, dim=-1), y


def _network(full: tvm.target.Target) -> imported.Network:
    return imported.read(Normalized().eval(), (torch.randn(96, 48),), {}, full)


def _between(mod: tvm.IRModule) -> list[str]:
    """Buffers in global memory that programs allocate for all of their statements."""
    funcs = [func for _, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]
    roots = [f.body.block for f in funcs if isinstance(f.body, s_stmt.SBlockRealize)]
    return [
        buffer.name
        for root in roots
        for buffer in root.alloc_buffers
        if buffer.scope() in ("", "global")
    ]


@pytest.mark.slow("builds a whole network")
def test_programs_return_what_they_would_allocate() -> None:
    network = _network(LLVM)
    mod = network.lowered
    assert _between(mod)
    before = mod.script()
    lifted = intermediates.Lift()(mod)
    assert mod.script() == before
    assert not _between(lifted)
    outputs = [networks.outputs(network, each) for each in (lifted, mod)]
    torch.testing.assert_close(*outputs, rtol=0.0, atol=0.0)


def test_a_program_without_such_buffers_stays_as_it_is() -> None:
    mod = imported.read(nn.ReLU(), (torch.randn(4, 8),), {}, LLVM).lowered
    assert intermediates.Lift()(mod).same_as(mod)


@pytest.mark.slow("compiles a network for a GPU")
def test_nothing_is_taken_from_a_pool_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = _of_many_kernels(_network(CUDA))
    assert "TVMBackendAllocWorkspace" not in _host_code(mod)
    monkeypatch.setattr(intermediates, "_between_kernels", lambda func: [])
    assert "TVMBackendAllocWorkspace" in _host_code(mod)


@pytest.mark.slow("builds a whole network")
def test_programs_that_keep_such_buffers_are_named() -> None:
    """TVM's sort and scan, which say so in the host code, too."""
    model = Called(lambda x: (torch.sort(x, dim=1)[0], torch.cumsum(x, dim=1), x.relu()))
    network = imported.read(model, (torch.randn(4, 64),), {}, CUDA)
    built = executable.compile_network(network.lowered, CUDA)
    assert intermediates.pool_users(built) == ["argsort", "gpu_2d_continuous_cumsum"]


@pytest.mark.slow("compiles a network for a GPU")
def test_what_kernels_of_a_convolution_of_single_cells_leave_is_planned() -> None:
    """TVM's narrowing of indices forgets the axes of its window, which no index has."""
    model, x = nn.Conv2d(576, 96, 1).eval(), torch.randn(1, 576, 14, 14)
    network = imported.read(model, (x,), {}, CUDA, grouping=group_costs.grouping(None, CUDA, None))
    assert "TVMBackendAllocWorkspace" not in _host_code(_of_many_kernels(network))


def _of_many_kernels(network: imported.Network) -> tvm.IRModule:
    """The network with schedules whose kernels leave something for the next one."""
    runs: list[tuple[groups.Group, assembly.Runs]] = []
    for group in groups.of(network.lowered, network.target):
        programs = [
            sketch.program(sketch.sample(1, seed=1)[0]) for sketch in felix.sketches(group.task)
        ]
        scheduled = [each for each in programs if isinstance(each, tvm.IRModule)]
        runs.append((group, max(scheduled, key=lambda mod: len(_between(mod)))))
    mod = assembly.assemble(network.lowered, runs)
    assert _between(mod)
    return mod


def _host_code(mod: tvm.IRModule) -> str:
    parts: list[tvm.runtime.Module] = [executable.compile_network(mod, CUDA).mod]
    code: list[str] = []
    while parts:
        part = parts.pop()
        parts += list(part.imports)
        if part.kind == "llvm":
            code.append(part.inspect_source("ll"))
    assert code
    return "".join(code)


@pytest.mark.gpu
def test_another_network_leaves_a_captured_one_its_memory(tmp_path: pathlib.Path) -> None:
    """The second one's buffers between kernels are larger."""
    small = Normalized().cuda().eval()
    large = copy.deepcopy(small)
    inputs = [torch.randn(rows, 48, device="cuda") for rows in (96, 4096)]
    fast = [
        felix.optimize(
            model, (x,), trials=1, target="cuda", known_results=tmp_path / "known.sqlite"
        )
        for model, x in zip((small, large), inputs, strict=True)
    ]
    for call, x in zip(fast, inputs, strict=True):
        networks.assert_same(call, small, x)


# Memory of intermediate values: independent calls share none, dependent ones do.


def _weights(n: int) -> list[torch.Tensor]:
    return list(torch.randn(n, 16, 16) / 4)


def _through(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        x = x @ weight
    return x


def _storages(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The values of each storage of a network, which gives what the model does."""
    full, x = target.parse("llvm"), torch.randn(4, 16)
    found: list[list[str]] = []

    @tvm.transform.module_pass(opt_level=0)
    class Noted:
        def transform_module(
            self, mod: tvm.IRModule, _context: tvm.transform.PassContext
        ) -> tvm.IRModule:
            values: dict[str, list[str]] = {}
            for binding in mod["main"].body.blocks[0].bindings:
                call = binding.value
                if isinstance(call, relax.Call) and "memory.alloc_tensor" in str(call.op):
                    values.setdefault(str(call.args[0]), []).append(str(binding.var))
            found.extend(values.values())
            return mod

    lift = memory.Lift()
    passes = tvm.transform.Sequential([memory.Separate(), Noted(), lift])
    monkeypatch.setattr(memory, "Lift", lambda: passes)
    network = imported.read(model, (x,), {}, full)
    networks.assert_close(networks.built(network)([x]), list(model(x)))
    return found


@pytest.mark.parametrize(("n_paths", "length"), share.of([(2, 3), (2, 6), (3, 5), (4, 2)], 1))
def test_paths_have_memory_of_their_own(
    n_paths: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storages = _storages(networks.Paths(n_paths, length), monkeypatch)
    # a value of a chain takes the memory of the one before the last
    assert len(storages) == n_paths * min(length, 2)
    assert sum(len(values) for values in storages) == n_paths * length


def test_a_value_that_is_read_late_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = _weights(5)

    def residual(x: torch.Tensor) -> tuple[torch.Tensor]:
        y = x @ first
        return (torch.softmax(y * _through(y, others), dim=1),)

    storages = _storages(Called(residual), monkeypatch)
    alone = min(storages, key=len)
    assert [len(values) for values in sorted(storages, key=len)] == [1, 2, 2]
    assert alone == min(storages)  # the first value, which is read last


def test_results_do_not_keep_the_memory_of_what_is_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = [_weights(3) for _ in range(4)]

    def deep(x: torch.Tensor) -> list[torch.Tensor]:
        states = [x]
        for weights in layers:
            states.append(_through(states[-1], weights))
        return states[1:]

    assert len(_storages(Called(deep), monkeypatch)) == 2


@pytest.mark.slow("builds a whole network")
def test_readers_of_one_input_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    (weight,) = _weights(1)

    def shared(x: torch.Tensor) -> tuple[torch.Tensor]:
        first = torch.softmax(x @ weight, dim=1)
        second = torch.softmax(torch.cumsum(x, dim=1), dim=1)
        return (torch.cat([first, second]).softmax(dim=1),)

    storages = _storages(Called(shared), monkeypatch)
    assert all(len(values) < 3 for values in storages)
    assert len(storages) >= 4
