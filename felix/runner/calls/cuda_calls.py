"""Latency of a PyTorch call on the GPU with a cold L2: cuBLAS, cuDNN, PyTorch's own kernels.

A call is timed as candidates are: between events, after a buffer of twice the L2 was read, which
leaves the cache cold and clean. A delay queued ahead lets the CPU put the call on the stream
before the first event happens, so its launches do not count. The median counts.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch

from felix.runner import timing

_Name = TypeVar("_Name", bound=Hashable)

CALLS, WARM_UPS = 50, 5
#: Calls queued before waiting for them; a stream takes 1,024 launches.
_BATCH = 8
#: The delay is at least this, and twice what the CPU needs to queue a call.
_MIN_DELAY_S = 0.5e-3
#: Cycles of the delay a second; slower clocks make it longer.
_CYCLES_PER_S = 2e9


def median_us(call: Callable[[], object]) -> float:
    """The median latency of `call` in us; the first calls, which may compile, do not count."""
    return statistics.median(in_turns_us({"call": call}, turns=1, burst=CALLS)["call"])


def in_turns_us(
    calls: Mapping[_Name, Callable[[], object]],
    turns: int,
    burst: int,
    max_ratio: float = math.inf,
) -> dict[_Name, list[float]]:
    """Latencies of calls in us, `turns` x `burst` of each: a burst of each call, then the next.

    The first calls, which may compile, do not count. A call that took more than `max_ratio` times
    as long as the fastest one has no further turn.
    """
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    swept = torch.zeros(2 * l2_bytes // 4, dtype=torch.float32, device="cuda")
    bursts: dict[_Name, Callable[[], list[float]]] = {}
    for name, call in calls.items():
        for _ in range(WARM_UPS):
            call()
            swept.sum()
        delay_cycles = int(max(_MIN_DELAY_S, 2 * _queueing_s(call)) * _CYCLES_PER_S)
        bursts[name] = functools.partial(_burst_us, call, burst, delay_cycles, swept)
    return timing.in_turns_us(bursts, turns, max_ratio)


def _burst_us(
    call: Callable[[], object], count: int, delay_cycles: int, swept: torch.Tensor
) -> list[float]:
    delay: Callable[[int], None] = torch.cuda._sleep
    event: Callable[..., torch.cuda.Event] = torch.cuda.Event
    events = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
    for number, (start, end) in enumerate(events):
        if number % _BATCH == 0:
            torch.cuda.synchronize()
        delay(delay_cycles)
        swept.sum()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [float(start.elapsed_time(end)) * 1e3 for start, end in events]


def _queueing_s(call: Callable[[], object]) -> float:
    """Seconds the CPU needs to put a call on an empty stream."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
