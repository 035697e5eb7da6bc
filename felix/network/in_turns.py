"""Whole calls timed in turns, so that a machine that drifts treats all alike."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch

#: After so many turns it is looked whether the difference is clear. More looks would find one
#: where there is none.
LOOKS = (10, 30, 100)
#: Turns that long calls have.
LEAST_TURNS = 3
#: Seconds after which calls have no further turn.
BUDGET_S = 2.0
#: Calls of each before the first turn, one if it is long: kernels load, pools of memory grow.
_WARM_UP = 3

_Name = TypeVar("_Name")


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long one call takes as another: the median of turns, and the ends of its
    interval, which has it in 95 of 100 cases."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} times as long ({self.low:.2f} to {self.high:.2f})"


def latencies_us(
    calls: Mapping[_Name, Callable[[], object]],
    ours: _Name,
    *,
    is_gpu: bool,
    budget_s: float = BUDGET_S,
) -> dict[_Name, list[float]]:
    """Latencies by wall clock, with warm caches, in us: one call of each in every turn.

    Each turn begins with another call. There are turns until it is clear of every call whether
    it is faster than `ours`, or `budget_s` have passed.
    """
    timed: dict[_Name, list[float]] = {name: [] for name in calls}
    names = list(calls)
    end = time.perf_counter() + budget_s
    for call in calls.values():
        for _ in range(_WARM_UP):
            if _call_us(call, is_gpu) > 1e5 * budget_s:
                break
    for turn in range(LOOKS[-1]):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            timed[name].append(_call_us(calls[name], is_gpu))
        is_late = time.perf_counter() > end and turn + 1 >= LEAST_TURNS
        if is_late or (turn + 1 in LOOKS and _is_clear(timed, ours)):
            break
    return timed


def _is_clear(timed: Mapping[_Name, Sequence[float]], ours: _Name) -> bool:
    ratios = [ratio(timed[ours], each) for name, each in timed.items() if name != ours]
    return all(each.low > 1.0 or each.high < 1.0 for each in ratios)


def _call_us(call: Callable[[], object], is_gpu: bool) -> float:
    if is_gpu:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    if is_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6


def ratio(ours_us: Sequence[float], others_us: Sequence[float]) -> Ratio:
    """How many times as long we take, by the ratios of turns.

    The interval is that of order statistics: of n values the median lies between those of the
    ranks n / 2 -+ 0.98 sqrt(n) in 95 of 100 cases, whatever their distribution.
    """
    ratios = sorted(our / other for our, other in zip(ours_us, others_us, strict=True))
    count = len(ratios)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor(0.5 * count - reach))
    high = min(count - 1, math.ceil(0.5 * count + reach) - 1)
    return Ratio(statistics.median(ratios), ratios[low], ratios[high])
