"""Latency of a PyTorch call on the GPU with a cold L2: cuBLAS, cuDNN, PyTorch's own kernels.

A call is timed as candidates are: between events, after a buffer of twice the L2 was read, which
leaves the cache cold and clean. A delay queued ahead lets the CPU put the call on the stream
before the first event happens, so its launches do not count. The median counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

CALLS = 50
#: Calls queued before waiting for them; a stream takes 1,024 launches.
_BATCH = 8
#: The delay is at least this, and twice what the CPU needs to queue a call.
_MIN_DELAY_S = 0.5e-3
#: Cycles of the delay a second; slower clocks make it longer.
_CYCLES_PER_S = 2e9


def median_us(call: Callable[[], object]) -> float:
    """The median latency of `call` in us; the first calls, which may compile, do not count."""
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    swept = torch.zeros(2 * l2_bytes // 4, dtype=torch.float32, device="cuda")
    for _ in range(5):
        call()
        swept.sum()
    delay_cycles = int(max(_MIN_DELAY_S, 2 * _queueing_s(call)) * _CYCLES_PER_S)
    delay: Callable[[int], None] = torch.cuda._sleep
    event: Callable[..., torch.cuda.Event] = torch.cuda.Event
    events = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(CALLS)]
    for number, (start, end) in enumerate(events):
        if number % _BATCH == 0:
            torch.cuda.synchronize()
        delay(delay_cycles)
        swept.sum()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(float(start.elapsed_time(end)) for start, end in events) * 1e3


def _queueing_s(call: Callable[[], object]) -> float:
    """Seconds the CPU needs to put a call on an empty stream."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
