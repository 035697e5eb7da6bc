"""Which task gets the next round of measurements: the gradient rule of Ansor and Felix.

Notation, for task i
    w_i     weight: how often the task occurs in the network
    g_i(t)  best latency after t of its rounds, in microseconds
    G_i     expected gain of one more round in w_i g_i, the quantity being minimised

    G_i = w_i [ alpha (g_i(t-D) - g_i(t)) / D + (1 - alpha) (g_i(t) - floor_i) / t ]

The first term extrapolates the last D rounds, the second assumes that the rest shrinks like
1/t; floor_i is a speed-of-light bound (0 if unknown), below which no gain can be expected. The
task of the largest gain goes next. Of a task that something else runs in r_i us (its rival), only
what is expected below r_i is a gain.

Every task gets one warm-up round first, in the order of weight times the latency that is expected
of it untuned, or of what its rival takes beyond the peak rates of the device: what gets none
before time is up matters least. A task without a legal result after
`PATIENCE` rounds is dead, and one whose search returns nothing new for `PATIENCE` rounds is
exhausted: neither is chosen again, so a run always ends. The original gives failing tasks a
latency of 1e10, which makes them the most promising for ever, and loops endlessly on an empty
candidate list.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from felix import errors

if TYPE_CHECKING:
    from felix.target import Hardware
    from felix.task import Task


#: Alpha and D of the rule, as in Ansor.
ALPHA, WINDOW = 0.2, 3
#: Rounds without a result, or without anything new, after which a task gets no more.
PATIENCE = 3
#: Share of a busy task's gain that another one must promise for a round beside it.
LEAST_GAIN = 0.1
#: Share of what a rival takes that may be gained though it seems to run at the peak rates.
_DOUBT = 0.05


@dataclass(slots=True)
class TaskProgress:
    """Rounds of one task."""

    weight: float
    floor_us: float = 0.0
    #: best latency after each measured round; None while nothing has succeeded
    best_us: list[float | None] = field(default_factory=list)
    #: rounds in a row that found nothing new to measure
    n_empty: int = 0

    @property
    def latency_us(self) -> float | None:
        """Best latency so far."""
        return self.best_us[-1] if self.best_us else None

    def has_stalled(self, n_rounds: int, min_improvement: float) -> bool:
        """Whether the last so many rounds together gained no more than that relative share."""
        if len(self.best_us) <= n_rounds:
            return False
        before, now = self.best_us[-1 - n_rounds], self.best_us[-1]
        if before is None or now is None:
            return False
        return now > before * (1.0 - min_improvement)


def floor_us(flops: float, min_bytes: float, hardware: Hardware) -> float:
    """A latency that no schedule of a task can go below: half the time at the device's peak rates.

    The peak rates are estimates; 0 where they are unknown.
    """
    compute_us = flops / (hardware.peak_fp32_gflops * 1e3)
    memory_us = min_bytes / (hardware.dram_bandwidth_gbs * 1e3)
    return 0.5 * max(compute_us, memory_us) if math.isfinite(compute_us + memory_us) else 0.0


def task_floor_us(task: Task, hardware: Hardware) -> float:
    """The floor of a task; that of what tensor cores may compute is of its bytes alone.

    Peak rates are those of float32 outside of tensor cores.
    """
    from felix.tir import grammar  # here, because it loads TVM

    narrow = any(grammar.bits(grammar.dtype(param)) <= 16 for param in task.func.params)
    flops = 0 if narrow and task.target.kind.name != "llvm" else task.flops
    return floor_us(flops, task.min_bytes, hardware)


def untuned_us(task: Task, hardware: Hardware) -> float:
    """What orders tasks nothing of which was measured: twice `floor_us`, without tensor cores,
    which default schedules do not use."""
    return 2.0 * floor_us(task.flops, task.min_bytes, hardware)


def _to_gain_us(untuned_us: float, floor_us: float, rival_us: float) -> float:
    """What a task may gain, at most: all that it takes, or what its rival takes beyond the peak
    rates of the device, which are estimates."""
    if math.isinf(rival_us):
        return untuned_us
    return max(0.0, rival_us - 2.0 * floor_us) + _DOUBT * rival_us


class Allocator:
    """Deals rounds to tasks; deterministic.

    Args:
        weights: of the tasks.
        floors_us: their floors; 0 if left out.
        untuned_us: what orders first rounds, with the weights; all equal if left out.
        rivals_us: what their rivals take; infinite if left out.
    """

    def __init__(
        self,
        weights: Sequence[float],
        floors_us: Sequence[float] | None = None,
        untuned_us: Sequence[float] | None = None,
        rivals_us: Sequence[float] | None = None,
    ) -> None:
        expected_us = untuned_us if untuned_us is not None else [0.0] * len(weights)
        floors = floors_us if floors_us is not None else [0.0] * len(weights)
        self._rivals_us = rivals_us if rivals_us is not None else [math.inf] * len(weights)
        every = zip(weights, expected_us, floors, self._rivals_us, strict=True)
        costs = [w * _to_gain_us(*latencies_us) for w, *latencies_us in every]
        #: the tasks in the order of their first rounds
        self.order: Sequence[int] = sorted(range(len(costs)), key=lambda i: -costs[i])
        self.tasks = [TaskProgress(w, f) for w, f in zip(weights, floors, strict=True)]
        self._settled: set[int] = set()

    def settle(self, task: int) -> None:
        """Give a task no further round: what is known of it is enough."""
        self._settled.add(task)

    def next(self, busy: Collection[int] = ()) -> int | None:
        """Index of the task of the next round; None if no task can improve.

        Args:
            busy: tasks that have a round and get no other. A task that promises hardly anything
                beside theirs gets none either: None.
        """
        open_tasks = [i for i in range(len(self.tasks)) if self.is_open(i) and i not in busy]
        if not open_tasks:
            return None
        if fresh := self.fresh(busy):
            return fresh[0]
        # a task without any result yet may still have its patience, in turns, before gains count
        unsolved = [i for i in open_tasks if self.tasks[i].latency_us is None]
        if unsolved:
            return min(unsolved, key=lambda i: (self._rounds(i), i))
        best = max(open_tasks, key=lambda i: (self.gain_us(i), -i))
        if any(self.gain_us(i) * LEAST_GAIN > self.gain_us(best) for i in busy):
            return None
        return best

    def record(self, task: int, latency_us: float | None, n_measured: int) -> None:
        """One round is over.

        Args:
            task: its index.
            latency_us: best latency among this round's measurements; None if all failed.
            n_measured: candidates measured; 0 if the search found none.
        """
        progress = self.tasks[task]
        if not n_measured:
            progress.n_empty += 1
            return
        progress.n_empty = 0
        known = [value for value in (progress.latency_us, latency_us) if value is not None]
        progress.best_us.append(min(known) if known else None)

    def record_late(self, task: int, latency_us: float) -> bool:
        """Results of a round came after its end; whether they are the first of the task.

        Others count to the task's next round: the caller has them still.
        """
        progress = self.tasks[task]
        is_first = bool(progress.best_us) and progress.latency_us is None
        if is_first:
            progress.best_us[-1] = latency_us
        return is_first

    @property
    def n_fresh(self) -> int:
        """Open tasks that have had no round."""
        return len(self.fresh())

    def fresh(self, busy: Collection[int] = ()) -> list[int]:
        """Those tasks, without the ones that are busy with it."""
        open_tasks = [i for i in self.order if not self._rounds(i) and self.is_open(i)]
        return [i for i in open_tasks if i not in busy]

    def is_open(self, task: int) -> bool:
        """Neither settled, dead nor exhausted."""
        progress = self.tasks[task]
        if task in self._settled or progress.n_empty >= PATIENCE:
            return False
        return progress.latency_us is not None or self._rounds(task) < PATIENCE

    def has_converged(self, n_rounds: int, min_improvement: float) -> bool:
        """Whether every task that is still open has stalled (`TaskProgress.has_stalled`)."""
        progress = [p for i, p in enumerate(self.tasks) if self.is_open(i)]
        return bool(progress) and all(p.has_stalled(n_rounds, min_improvement) for p in progress)

    def gain_us(self, task: int) -> float:
        """G_i in weighted microseconds; 0 without a latency. An empty round halves it."""
        progress = self.tasks[task]
        latency_us = progress.latency_us
        if latency_us is None:
            return 0.0
        backward = 0.0
        if len(progress.best_us) > WINDOW:
            before = progress.best_us[-1 - WINDOW]
            if before is not None:
                backward = (before - latency_us) / WINDOW
        forward = max(0.0, latency_us - progress.floor_us) / len(progress.best_us)
        next_us = latency_us - (ALPHA * backward + (1.0 - ALPHA) * forward)
        counted_us = min(latency_us, self._rivals_us[task])
        gain = max(0.0, counted_us - next_us)
        return progress.weight * gain * 0.5**progress.n_empty

    def _rounds(self, task: int) -> int:
        return len(self.tasks[task].best_us) + self.tasks[task].n_empty

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"tasks": [asdict(task) for task in self.tasks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state.

        Raises:
            RecordError: the state is malformed or has another number of tasks.
        """
        try:
            tasks = [
                TaskProgress(
                    float(t["weight"]),
                    float(t["floor_us"]),
                    [None if b is None else float(b) for b in t["best_us"]],
                    int(t["n_empty"]),
                )
                for t in state["tasks"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise errors.RecordError(f"cannot read the allocation state: {error!r}") from error
        if len(tasks) != len(self.tasks):
            raise errors.RecordError(
                f"the state has {len(tasks)} tasks, this run has {len(self.tasks)}"
            )
        self.tasks = tasks
