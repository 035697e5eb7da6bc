"""Latency of a call on this CPU whose inputs are cold.

One call warms up (threads, first pages). Before each timed call the inputs are flushed from all
caches as for candidates; temporaries cannot be. Calls are timed in bursts over a second, as in
re-measuring, and the median counts.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import tvm

from felix.runner import timing
from felix.runner.cpu import timing as cpu_timing

_Name = TypeVar("_Name", bound=Hashable)

MAX_REPEATS, BURST, PAUSE_S = 32, 4, 0.1
MAX_TOTAL_S = 2.0
#: Seconds that a burst takes at most, if one call does not take longer.
MAX_BURST_S = 0.25
#: Twice this is written where the CPU's cache lines cannot be flushed one by one.
CACHE_BYTES = 128 << 20


def median_us(call: Callable[[], object], inputs: Sequence[tvm.runtime.Tensor]) -> float:
    """The median latency of `call`, which reads `inputs`, in us."""
    flush = cpu_timing.flusher(CACHE_BYTES)
    call()
    latencies_us = [_cold_us(call, inputs, flush)]
    end = time.perf_counter() + MAX_TOTAL_S
    while len(latencies_us) < MAX_REPEATS and time.perf_counter() < end:
        if len(latencies_us) % BURST == 0:
            time.sleep(PAUSE_S)
        latencies_us.append(_cold_us(call, inputs, flush))
    return statistics.median(latencies_us)


def in_turns_us(
    calls: Mapping[_Name, Callable[[], object]],
    inputs: Sequence[Any],
    turns: int,
    burst: int,
    max_ratio: float = math.inf,
) -> dict[_Name, list[float]]:
    """Latencies of calls in us, `turns` x `burst` of each: a burst of each call, then the next.

    All read `inputs`, which are cold. The first calls do not count. A burst of long calls is
    shorter (`MAX_BURST_S`). A call that took more than `max_ratio` times as long as the fastest
    one has no further turn.
    """
    flush = cpu_timing.flusher(CACHE_BYTES)
    for call in calls.values():
        call()

    def burst_us(call: Callable[[], object]) -> list[float]:
        latencies_us: list[float] = []
        end = time.perf_counter() + MAX_BURST_S
        while not latencies_us or (len(latencies_us) < burst and time.perf_counter() <= end):
            latencies_us.append(_cold_us(call, inputs, flush))
        return latencies_us

    bursts = {name: functools.partial(burst_us, call) for name, call in calls.items()}
    return timing.in_turns_us(bursts, turns, max_ratio)


def _cold_us(
    call: Callable[[], object], inputs: Sequence[Any], flush: Callable[..., None]
) -> float:
    flush(*inputs)
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6
