"""Latency of a call on this CPU whose inputs are cold.

One call warms up (threads, first pages). Before each timed call the inputs are flushed from all
caches as for candidates; temporaries cannot be. Calls are timed in bursts over a second, as in
re-measuring, and the median counts.
"""

from __future__ import annotations

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

    def cold_us() -> float:
        flush(*inputs)
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e6

    call()
    latencies_us = [cold_us()]
    end = time.perf_counter() + MAX_TOTAL_S
    while len(latencies_us) < MAX_REPEATS and time.perf_counter() < end:
        if len(latencies_us) % BURST == 0:
            time.sleep(PAUSE_S)
        latencies_us.append(cold_us())
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
    latencies_us: dict[_Name, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name in timing.left_in_turns(latencies_us, max_ratio):
            call, end = calls[name], time.perf_counter() + MAX_BURST_S
            for _ in range(burst):
                flush(*inputs)
                begin = time.perf_counter()
                call()
                finish = time.perf_counter()
                latencies_us[name].append((finish - begin) * 1e6)
                if finish > end:
                    break
    return latencies_us
