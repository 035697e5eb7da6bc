"""Waiting for a condition, not for a time; and a clock that a test moves."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from felix.network import deadline as deadlines

#: Seconds that a machine may take which does other things meanwhile: more is a hang.
LIMIT_S = 300.0


def until(
    condition: Callable[[], object], limit_s: float = LIMIT_S, why: Callable[[], object] = str
) -> None:
    """Return once a condition holds; `why` says what to know where it never does."""
    deadline_s, pause_s = time.monotonic() + limit_s, 0.01
    while not condition():
        assert time.monotonic() < deadline_s, why() or "it never came true"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.1)  # looking costs the machine, too


def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What deadlines take for the time, as the only element: it stands still unless a test sets
    it."""
    now = [time.monotonic()]
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: now[0])
    return now
