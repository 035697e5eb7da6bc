"""What is too large to be measured on a device, before anything waits or is computed for it.

- Buffers: a quarter of the memory. A run holds inputs and outputs, the check of a candidate the
  expected outputs, and its comparison two temporary copies of them.
- One run at the device's peak rate: 5 s. A candidate is run twice at least, to check and to time
  it, and `LocalOptions.run_timeout_s` is 10 s.
- Memory of an unknown device: 256 GiB, more than that of any card and of most machines.
"""

from __future__ import annotations

import dataclasses

from felix import errors, target
from felix.target import memory
from felix.task import Task
from felix.tir import cost

MEMORY_SHARE = 4
MAX_RUN_S = 5.0
UNKNOWN_MEMORY_BYTES = 256 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """What a device offers: memory in bytes, float32 rate in GFLOP/s (1e9/s)."""

    memory_bytes: int
    peak_gflops: float


def of_this_machine(task: Task) -> Capacity:
    """What the device of a task's target offers, if it is in this machine."""
    return Capacity(
        memory.memory_bytes(task.target), target.hardware(task.target).peak_fp32_gflops
    )


def check(task: Task, capacity: Capacity) -> None:
    """Refuse a task that is too large for a device.

    Raises:
        WorkloadError: the message has the figures and what the device takes.
    """
    buffer_bytes = cost.buffer_bytes(task.func)
    limit_bytes = capacity.memory_bytes // MEMORY_SHARE
    if buffer_bytes > limit_bytes:
        raise errors.WorkloadError(
            f"{task.name} is too large: its buffers have {_gb(buffer_bytes)}, and measuring on "
            f"this device takes {_gb(limit_bytes)} (a quarter of the memory) at most"
        )
    operations = max(task.flops, cost.executions(task.func))
    limit = MAX_RUN_S * capacity.peak_gflops * 1e9
    if operations > limit:
        raise errors.WorkloadError(
            f"{task.name} is too large: one run has {operations:.3g} operations, and this device "
            f"computes {limit:.3g} in the {MAX_RUN_S:g} s that a run may take at its peak rate"
        )


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.3g} GB"
