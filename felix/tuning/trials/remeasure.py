"""The fastest candidates of a run are measured again before one is called best.

The minimum of many noisy medians is low by luck as much as by merit, and a machine that drifts
favours whatever it timed in a good moment. So the fastest candidates of a run are timed again, in
turns: a burst of repeats each, then the next burst of each, over seconds; and they are judged by
the median of these alone. As long as a candidate that was not measured again looks
faster than the winner, it is measured again as well, for a few waves. These records say so
(`Record.repeat`); they are no trials, and neither the search nor the model learns from them.

Where the unscheduled program was about as fast as the winner, or faster, the two are then timed in
turns as well, so that which of them ships (`results.faster`) is not decided by luck either.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from felix import records
from felix.measure import protocol
from felix.tuning import options as options_module
from felix.tuning import pacing, results
from felix.tuning.task_run import TaskRun
from felix.tuning.trials import recorder as recorder_module

if TYPE_CHECKING:
    from felix.sketch.sketch import Program

#: Slower than the best by more than this factor, a candidate cannot win.
MARGIN = 1.15
#: Waves at most; the second is there if the winners of the first were not that fast after all.
WAVES = 3


def run(
    task_runs: Sequence[TaskRun],
    options: options_module.TuneOptions,
    compute_guard: pacing.ComputeGuard,
    breakdown: pacing.Breakdown,
    recorder: recorder_module.Recorder,
) -> None:
    """Measure the fastest candidates of every task again, longer."""
    if options.n_finalists <= 0:
        return
    for task_run in task_runs:
        done: set[records.Key] = set()
        for _ in range(WAVES):
            contenders = _contenders(task_run, options.n_finalists, done)
            if not contenders:
                break
            done.update(contender.key for contender in contenders)
            programs = [task_run.program_of(contender) for contender in contenders]
            with breakdown.of("measure"):
                bursts = _bursts(task_run, programs, options, compute_guard)
            for contender, of_contender in zip(contenders, bursts, strict=True):
                measurement = _pooled(of_contender)
                if measurement is not None:
                    recorder.repeat(task_run, contender, measurement)
        _compare_with_unscheduled(task_run, options, compute_guard, breakdown, recorder)


def _compare_with_unscheduled(
    task_run: TaskRun,
    options: options_module.TuneOptions,
    compute_guard: pacing.ComputeGuard,
    breakdown: pacing.Breakdown,
    recorder: recorder_module.Recorder,
) -> None:
    """Time the best schedule and the unscheduled program in turns, if they are that close."""
    best, baseline = task_run.best, task_run.baseline
    if best is None or task_run.best_us is None or baseline is None or baseline.latency_us is None:
        return
    if baseline.latency_us > MARGIN * task_run.best_us:
        return
    with breakdown.of("measure"):
        programs = [task_run.program_of(best), results.unscheduled(task_run.task).mod]
        of_best, of_baseline = _bursts(task_run, programs, options, compute_guard)
    measurement, again = _pooled(of_best), _pooled(of_baseline)
    if measurement is None or again is None or not again.ok:
        return
    recorder.repeat(task_run, best, measurement)
    task_run.set_baseline(again)


def _contenders(task_run: TaskRun, n: int, done: set[records.Key]) -> list[records.Record]:
    """At first the n fastest; then those that look faster than the best measured again."""
    ranked = sorted(task_run.effective.values(), key=lambda r: r.measurement.latency_us or 0.0)
    if not ranked or task_run.best_us is None:
        return []
    limit_us = MARGIN * task_run.best_us
    if done:
        remeasured = [r for r in ranked if r.key in done]
        limit_us = (remeasured[0].measurement.latency_us or 0.0) if remeasured else limit_us
    return [
        record
        for record in ranked
        if record.key not in done and (record.measurement.latency_us or 0.0) <= limit_us
    ][:n]


def _bursts(
    task_run: TaskRun,
    programs: Sequence[Program],
    options: options_module.TuneOptions,
    compute_guard: pacing.ComputeGuard,
) -> list[list[protocol.Measurement]]:
    """The bursts of each candidate: all are timed in turns."""
    bursts: list[list[protocol.Measurement]] = [[] for _ in programs]
    for turn in range(options.final_turns):
        if turn > 0 and task_run.task.target.kind.name == "llvm":
            _pause(compute_guard, options.final_pause_s)
        futures = [task_run.measurer.submit(program, thorough=True) for program in programs]
        for of_candidate, future in zip(bursts, futures, strict=True):
            of_candidate.append(_wait(compute_guard, future))
    return bursts


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


def _pause(compute_guard: pacing.ComputeGuard, seconds: float) -> None:
    """With idle cores, so that a hypervisor may place the virtual machine's anew."""
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 0:
        compute_guard.check()
        time.sleep(min(left_s, pacing.POLL_S))


def _wait(
    compute_guard: pacing.ComputeGuard,
    future: concurrent.futures.Future[protocol.Measurement],
) -> protocol.Measurement:
    while not future.done():
        concurrent.futures.wait([future], pacing.POLL_S)
        compute_guard.check()
    return future.result()
