"""The fastest candidates of a run are measured again before one is called best.

The minimum of many noisy medians is low by luck as much as by merit, and a machine that drifts
favours whatever it timed in a good moment. So the fastest candidates of all tasks of a run are
timed again, in turns: a burst of repeats each, then the next burst of each, over seconds; and they
are judged by the median of these alone. Where calls are so long that a few outlast what disturbs
timing (`ENOUGH_S`), there are fewer turns. As long as a candidate that was not measured again
looks faster than the winner of its task, it is measured again as well, for a few waves. They
say so (`Trial.repeat`); they are no trials, and neither the search nor the model learns
from them. Where the run's seconds end, there are fewer turns and waves.

Where the unscheduled program was about as fast as the winner, or faster, the two are then timed in
turns as well, so that which of them ships (`results.faster`) is not decided by luck either.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from felix.database import records
from felix.runner import protocol
from felix.tuning import checkpoint, pacing, pending, results
from felix.tuning import options as options_module
from felix.tuning.task_run import TaskRun

if TYPE_CHECKING:
    from felix.templates.generated import Program

#: Slower than the best by more than this factor, a candidate cannot win.
MARGIN = 1.15
#: Waves at most; the second is there if the winners of the first were not that fast after all.
WAVES = 3
#: No further turn for the programs of a task each of which was timed for so long.
ENOUGH_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Remeasuring:
    """Measures again with the options of a run, and lets it stop meanwhile."""

    run: checkpoint.Parts
    recorder: pending.Recorder

    @property
    def _options(self) -> options_module.TuneOptions:
        return self.run.request.options

    def all(self) -> None:
        """Measure the fastest candidates of every task again, longer.

        A wave is one of all tasks, so each device times those of its own tasks meanwhile.
        """
        task_runs, n_remeasured = self.run.task_runs, self._options.n_remeasured
        if n_remeasured <= 0:
            return
        done: dict[int, set[records.Key]] = {task_run.index: set() for task_run in task_runs}
        for _ in range(WAVES):
            if not self._has_time():
                return
            groups: list[_InTurns] = []
            for task_run in task_runs:
                contenders = _contenders(task_run, n_remeasured, done[task_run.index])
                done[task_run.index].update(contender.key for contender in contenders)
                programs = [task_run.program_of(contender) for contender in contenders]
                groups.append(_InTurns(task_run, contenders, programs))
            if not any(group.programs for group in groups):
                break
            self._time(groups)
            for group in groups:
                for contender, measurement in zip(group.contenders, group.pooled(), strict=True):
                    if measurement is not None:
                        self.recorder.repeat(group.task_run, contender, measurement)
        if self._has_time():
            self._compare_with_unscheduled(task_runs)

    def _compare_with_unscheduled(self, task_runs: Sequence[TaskRun]) -> None:
        """Time the best schedule and the unscheduled program in turns, where they are close."""
        groups = [
            _InTurns(each, [best], [each.program_of(best), results.unscheduled(each.task).mod])
            for each in task_runs
            if (best := each.best) is not None and _is_close(each)
        ]
        self._time(groups)
        for group in groups:
            measurement, again = group.pooled()
            if measurement is not None and again is not None and again.ok:
                self.recorder.repeat(group.task_run, group.contenders[0], measurement)
                group.task_run.baseline = again

    def _time(self, groups: Sequence[_InTurns]) -> None:
        """Time the programs of all tasks in turns: in each turn a burst of every one, until the
        run's time is up."""
        with contextlib.suppress(pacing.TimeUp):
            self._time_in_turns(groups)

    def _time_in_turns(self, groups: Sequence[_InTurns]) -> None:
        with self.run.breakdown.of("measure"):
            begun_s = self.run.clock.elapsed_s
            for turn in range(self._options.remeasure_turns if groups else 0):
                if turn > 0 and not self._has_time((self.run.clock.elapsed_s - begun_s) / turn):
                    return
                if turn > 0 and groups[0].task_run.task.target.kind.name == "llvm":
                    self._pause()
                going_on = [group for group in groups if not turn or not group.has_enough]
                submitted = [group.submit() for group in going_on]
                for group, futures in zip(going_on, submitted, strict=True):
                    for future, bursts in zip(futures, group.bursts, strict=True):
                        self.run.compute_guard.wait_for(future)
                        bursts.append(future.result())

    def _has_time(self, turn_s: float = 0.0) -> bool:
        """Whether the run goes on for longer than a turn."""
        return self.run.clock.elapsed_s + turn_s < self.run.limit.end_s

    def _pause(self) -> None:
        """With idle cores, so that a hypervisor may place the virtual machine's anew."""
        end = time.monotonic() + self._options.remeasure_pause_s
        while (left_s := end - time.monotonic()) > 0:
            self.run.compute_guard.check()
            time.sleep(min(left_s, pacing.POLL_S))


class _InTurns:
    """Programs of a task that are timed in turns, and their bursts.

    Args:
        task_run: of the task.
        contenders: the records of the first programs.
        programs: all.
    """

    def __init__(
        self, task_run: TaskRun, contenders: Sequence[records.Trial], programs: Sequence[Program]
    ) -> None:
        self.task_run, self.contenders, self.programs = task_run, contenders, programs
        self.bursts: list[list[protocol.Measurement]] = [[] for _ in programs]

    @property
    def has_enough(self) -> bool:
        """Whether every program was timed for long, or failed."""
        return all(
            any(not burst.ok for burst in bursts)
            or sum(sum(burst.latencies_us) for burst in bursts) >= ENOUGH_S * 1e6
            for bursts in self.bursts
        )

    def submit(self) -> list[concurrent.futures.Future[protocol.Measurement]]:
        """One burst of each program."""
        measurer = self.task_run.measurer
        return [measurer.submit(program, thorough=True) for program in self.programs]

    def pooled(self) -> list[protocol.Measurement | None]:
        """All bursts of each program as one measurement."""
        return [_pooled(bursts) for bursts in self.bursts]


def _is_close(task_run: TaskRun) -> bool:
    """Whether the unscheduled program is about as fast as the best schedule, or faster."""
    best_us, baseline = task_run.best_us, task_run.baseline
    if best_us is None or baseline is None or baseline.latency_us is None:
        return False
    return baseline.latency_us <= MARGIN * best_us


def _contenders(task_run: TaskRun, n: int, done: set[records.Key]) -> list[records.Trial]:
    """At first the n fastest; then those that look faster than the best measured again."""
    ranked = sorted(task_run.effective.values(), key=lambda r: r.latency_us or 0.0)
    if not ranked or task_run.best_us is None:
        return []
    limit_us = MARGIN * task_run.best_us
    if done:
        remeasured = [r for r in ranked if r.key in done]
        limit_us = (remeasured[0].latency_us or 0.0) if remeasured else limit_us
    return [
        trial
        for trial in ranked
        if trial.key not in done and (trial.latency_us or 0.0) <= limit_us
    ][:n]


def _pooled(bursts: Sequence[protocol.Measurement]) -> protocol.Measurement | None:
    """All bursts of a candidate as one; the first failure, if one failed by its own fault.

    None if nothing is known: all bursts failed for the machine's reasons.
    """
    telling = [b for b in bursts if b.error is not protocol.ErrorClass.INFRASTRUCTURE]
    failed = next((burst for burst in telling if not burst.ok), None)
    if failed is not None or not telling:
        return failed
    return protocol.Measurement.timed(
        [latency_us for burst in telling for latency_us in burst.latencies_us],
        build_s=sum(burst.build_s for burst in telling),
        run_s=sum(burst.run_s for burst in telling),
        checked=all(burst.checked for burst in telling),
        device=telling[0].device,
    )
