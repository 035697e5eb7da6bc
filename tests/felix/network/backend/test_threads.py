"""First calls of compiled code in several threads."""

from __future__ import annotations

import pathlib
import threading
from concurrent import futures
from typing import Any

import pytest
import torch
from torch import nn

from felix.network.backend import part
from tests.support import backend


def test_nobody_gets_what_is_not_compared(
    everything_known: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that is wrong, while the first call compares it."""
    call, difference = part.TunedPart.__call__, part.agreement.difference
    begun, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(
        part.TunedPart, "__call__", lambda self, x: [each + 1 for each in call(self, x)]
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
        n_calls: list[int] = []
        call = part.TunedPart.__call__
        monkeypatch.setattr(
            part.TunedPart, "__call__", lambda self, x: n_calls.append(1) or call(self, x)
        )
        fast(x)
        assert len(n_calls) == 1
        monkeypatch.setattr(part.TunedPart, "can_be_captured", False)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        torch.testing.assert_close(fast(x), model(x))
        assert len(n_calls) == 1
