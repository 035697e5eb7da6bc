"""What compiled models keep in memory, inputs of other sizes, and calls of several threads."""

from __future__ import annotations

import pathlib
import threading
from concurrent import futures
from typing import Any

import pytest
import torch
from torch import nn

from felix.network.backend import entry, part, tuned_part
from tests.support import backend, networks


class TestMemory:
    def test_input_changed_in_place(self, everything_known: pathlib.Path) -> None:
        def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.mul_(2).add_(1)
            return torch.relu(x - y)

        tensors = [torch.randn(3, 4) for _ in range(2)]
        copies = [each.clone() for each in tensors]
        fast = backend.compiled(call, everything_known)
        for _ in range(2):
            networks.assert_close(fast(*tensors), call(*copies))
            networks.assert_close(tensors[0], copies[0])
        assert backend.tuned_operators() >= {"mul", "add"}

    def test_buffer_changed_by_the_model(self, everything_known: pathlib.Path) -> None:
        class Counting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)
                self.register_buffer("total", torch.zeros(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                self.total: torch.Tensor
                self.total.add_(1.0)
                return self.linear(x) * self.total

        model, reference, x = Counting(), Counting(), torch.randn(2, 4)
        reference.load_state_dict(model.state_dict())
        fast = backend.compiled(model, everything_known)
        with torch.no_grad():
            for number in range(tuned_part.MAX_REFRESHES + 3):
                networks.assert_close(fast(x), reference(x))
                assert torch.equal(model.total, torch.full((4,), number + 1.0))
        assert "linear" in backend.tuned_operators()  # the buffer is no parameter of a part

    def test_outputs_that_alias(self, everything_known: pathlib.Path) -> None:
        def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = torch.relu(x)
            return x, x.t(), y, y.view(-1), y[0], y.t() @ y, y.clone(), x.clone(), x.split(2)[1]

        x = torch.randn(3, 4)
        outputs, expected = backend.compiled(call, everything_known)(x), call(x)
        assert backend.tuned_operators()
        torch.testing.assert_close(outputs, expected, check_stride=True)
        x.add_(1)  # what aliases the input follows it, copies do not
        networks.assert_close(outputs, expected)
        for each in (outputs, expected):
            each[2].zero_()
        networks.assert_close(outputs, expected)

    def test_elements_in_the_same_place(self, everything_known: pathlib.Path) -> None:
        """Views of which PyTorch's operators are called lie as those of PyTorch do."""

        def call(x: torch.Tensor) -> torch.Tensor:
            return torch.kthvalue((x + 1).expand(3, 2, 4).transpose(0, 2), 2).values

        x = torch.randn(2, 1)
        networks.assert_close(backend.compiled(call, everything_known)(x), call(x))
        assert backend.tuned_operators() == {"add", "expand", "transpose"}

    def test_memory_without_values_is_pytorchs(self, everything_known: pathlib.Path) -> None:
        def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.empty_like(x), x.new_empty(2, 3), torch.empty(3), torch.relu(x)

        backend.compiled(call, everything_known)(torch.randn(4))
        assert backend.tuned_operators() == {"relu"}
        left = entry.backend_report().graphs[0].sizes[0].pytorch
        assert {reason for reason in left.values()} == {"its result has no values yet"}

    def test_earlier_outputs_stay(self, everything_known: pathlib.Path) -> None:
        model, x = nn.Linear(4, 4), torch.randn(3, 4)
        fast = backend.compiled(model, everything_known)
        with torch.no_grad():
            first = fast(x)
            copy = first.clone()
            fast(x * 2)
        assert torch.equal(first, copy)

    def test_inputs_as_views(self, everything_known: pathlib.Path) -> None:
        model = nn.Linear(4, 2)
        fast, base = backend.compiled(model, everything_known), torch.randn(4 * 6 + 1)
        for view in (base[:-1].view(4, 6).t(), base[1:].view(6, 4), base[0].expand(3, 4)):
            networks.assert_same(fast, model, view)
        assert backend.tuned_operators() == {"linear"}

    def test_layouts_are_those_of_pytorch(self, everything_known: pathlib.Path) -> None:
        x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        out = backend.compiled(lambda x: torch.relu(x) * 2, everything_known)(x)
        assert backend.tuned_operators()
        assert out.stride() == x.stride() and torch.equal(out, torch.relu(x) * 2)

    def test_the_same_output_twice(self, everything_known: pathlib.Path) -> None:
        def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.sigmoid(x)
            return y, y

        first, second = backend.compiled(call, everything_known)(torch.randn(4))
        assert first is second and backend.tuned_operators() == {"sigmoid"}

    def test_empty_tensors(self, everything_known: pathlib.Path) -> None:
        fast = backend.compiled(torch.relu, everything_known, dynamic=False)
        assert fast(torch.randn(0, 3)).shape == (0, 3)

    def test_complex_numbers(self, everything_known: pathlib.Path) -> None:
        x = torch.randn(4, dtype=torch.complex64)
        fast = backend.compiled(lambda x: torch.view_as_real(x * 2) + 1, everything_known)
        networks.assert_close(fast(x), torch.view_as_real(x * 2) + 1)
        assert "aten.mul.Tensor" in entry.backend_report().graphs[0].sizes[0].pytorch


class TestSizes:
    @pytest.mark.parametrize("dynamic", [None, True])
    def test_batches(self, everything_known: pathlib.Path, dynamic: bool | None) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        fast = backend.compiled(model, everything_known, dynamic=dynamic, max_sizes=2)
        for batch in (3, 5, 7, 9, 5, 9):
            networks.assert_same(fast, model, torch.randn(batch, 4))
        graphs = entry.backend_report().graphs
        sizes = [[each.sizes for each in graph.sizes] for graph in graphs]
        assert sizes == ([["3x4", "5x4"]] if dynamic else [["3x4"], ["5x4", "7x4"]])
        assert graphs[-1].n_more_sizes == (3 if dynamic else 2)
        assert all(each.is_tuned for each in backend.parts())
        assert "more sizes than the limit" in str(entry.backend_report())

    def test_sizes_in_the_computation(self, everything_known: pathlib.Path) -> None:
        def call(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x).reshape(x.shape[0] * 2, -1) * x.shape[0]

        fast = backend.compiled(call, everything_known, dynamic=True)
        for batch in (2, 3, 4):
            networks.assert_same(fast, call, torch.randn(batch, 6))
        assert "relu" in backend.tuned_operators()


# First calls of compiled code in several threads.


def test_nobody_gets_what_is_not_compared(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that is wrong, while the first call compares it."""
    call, difference = tuned_part.TunedPart.__call__, part.agreement.difference
    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(
        tuned_part.TunedPart, "__call__", lambda self, x: [each + 1 for each in call(self, x)]
    )

    def slow(*arguments: Any, **options: Any) -> float:
        begun.set()
        assert may_end.wait(60.0)
        return difference(*arguments, **options)

    monkeypatch.setattr(part.agreement, "difference", slow)
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    fast = backend.compiled(model, everything_known)

    def outputs() -> torch.Tensor:
        with torch.no_grad():
            return fast(x)

    with futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(outputs)
        assert begun.wait(60.0)
        second = threads.submit(outputs)
        ended, _ = futures.wait([second], timeout=0.5)
        may_end.set()
        for each in (first, second):
            torch.testing.assert_close(each.result(60.0), model(x).detach())
        assert not ended


def test_a_network_that_no_graph_can_have_is_not_captured(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    fast = backend.compiled(model, everything_known)
    with torch.no_grad():
        fast(x)
        assert backend.tuned_operators() == {"linear"}
        callers: list[tuned_part.TunedPart] = []
        call = tuned_part.TunedPart.__call__
        monkeypatch.setattr(
            tuned_part.TunedPart, "__call__", lambda self, x: callers.append(self) or call(self, x)
        )
        fast(x)
        (tuned,) = callers
        monkeypatch.setattr(tuned, "can_be_captured", False)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        torch.testing.assert_close(fast(x), model(x))
        assert len(callers) == 1
