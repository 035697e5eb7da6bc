"""Memory of intermediate values: independent calls share none, dependent ones do."""

from __future__ import annotations

import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from felix import target
from felix.network import assembly, executable, imported
from felix.network.passes import memory


class _Paths(nn.Module):
    """Chains of products from one tensor, which meet in the end; a result is a view."""

    def __init__(self, n_paths: int, length: int) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            nn.Sequential(*(nn.Linear(16, 16) for _ in range(length))) for _ in range(n_paths)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.cat([path(x) for path in self.paths], dim=1)
        return y.softmax(dim=1).reshape(-1), y


def _storages(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[str]], list[torch.Tensor], list[torch.Tensor]]:
    """The values of each storage, the outputs of the network and those of the model."""
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
    built = executable.Executable(
        executable.compile_network(assembly.assemble(network.lowered, []), full),
        network.imported.parameters,
        executable.device(full),
    )
    return found, built([x]), list(model(x))


@pytest.mark.parametrize(("n_paths", "length"), [(2, 6), (2, 3), (4, 2), (3, 5)])
def test_paths_have_memory_of_their_own(
    n_paths: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    storages, outputs, expected = _storages(_Paths(n_paths, length).eval(), monkeypatch)
    for y, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    # a value of a chain takes the memory of the one before the last
    assert len(storages) == n_paths * min(length, 2)
    assert sum(len(values) for values in storages) == n_paths * length


def test_a_value_that_is_read_late_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(16, 16)
            self.body = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            y = self.first(x)
            return (torch.softmax(y * self.body(y), dim=1),)

    torch.manual_seed(0)
    storages, (y,), (expected,) = _storages(Residual().eval(), monkeypatch)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    alone = min(storages, key=len)
    assert [len(values) for values in sorted(storages, key=len)] == [1, 2, 2]
    assert alone == min(storages)  # the first value, which is read last


def test_results_do_not_keep_the_memory_of_what_is_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))) for _ in range(4)
            )

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            states = [x]
            for layer in self.layers:
                states.append(layer(states[-1]))
            return states[1:]

    torch.manual_seed(0)
    storages, outputs, expected = _storages(Deep().eval(), monkeypatch)
    for y, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    assert len(storages) == 2


def test_readers_of_one_input_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            first = torch.softmax(self.linear(x), dim=1)
            second = torch.softmax(torch.cumsum(x, dim=1), dim=1)
            return (torch.cat([first, second]).softmax(dim=1),)

    torch.manual_seed(0)
    storages, (y,), (expected,) = _storages(Shared().eval(), monkeypatch)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    assert all(len(values) < 3 for values in storages)
    assert len(storages) >= 4
