"""Latency of a call on this CPU whose inputs are cold.

One call warms up (threads, first pages). Before each timed call the inputs are flushed from all
caches as for candidates; temporaries cannot be. Calls are timed in bursts over a second, as in
re-measuring, and the median counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import tvm

from felix.measure.cpu import timing

MAX_REPEATS, BURST, PAUSE_S = 32, 4, 0.1
MAX_TOTAL_S = 2.0
#: Twice this is written where the CPU's cache lines cannot be flushed one by one.
CACHE_BYTES = 128 << 20


def median_us(call: Callable[[], object], inputs: Sequence[tvm.runtime.Tensor]) -> float:
    """The median latency of `call`, which reads `inputs`, in us."""
    flush = timing.flusher(CACHE_BYTES)

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
