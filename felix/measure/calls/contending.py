"""Which of several calls that are timed in turns have a further turn."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

_Name = TypeVar("_Name", bound=Hashable)


def names(latencies_us: Mapping[_Name, Sequence[float]], hopeless: float) -> list[_Name]:
    """Those that took no more than `hopeless` times as long as the fastest one; all before the
    first turn.

    The best call of each counts: a busy moment of the machine ends nothing.
    """
    if not all(latencies_us.values()):
        return list(latencies_us)
    best_us = {name: min(each) for name, each in latencies_us.items()}
    limit_us = hopeless * min(best_us.values())
    return [name for name, us in best_us.items() if us <= limit_us]
