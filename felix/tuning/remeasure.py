"""The finals: the fastest candidates are timed once more before one is called best.

The minimum of many noisy medians is low by luck as much as by merit, and a machine that drifts
favours whatever it timed in a good moment. So the fastest candidates of a run are timed again, in
turns: a burst of repeats each, then the next burst of each, over seconds; and they are judged by
the median of these alone. As long as a candidate that was not measured again looks
faster than the winner, it is measured again as well, for a few waves. These records say so
(`Record.repeat`); they are no trials, and neither the search nor the model learns from them.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from felix import records
from felix.measure import protocol
from felix.tuning import task_run

if TYPE_CHECKING:
    from felix.tuning.run import Run

#: Slower than the best by more than this factor, a candidate cannot win.
MARGIN = 1.15
#: Waves at most; the second is there if the winners of the first were not that fast after all.
WAVES = 3
#: How often the wait asks whether the run is to stop, in seconds.
_POLL_S = 0.2


def hold(run: Run) -> None:
    """Measure the fastest candidates of every task again, longer."""
    n = run.options.n_finalists
    for job in run.jobs if n > 0 else ():
        done: set[task_run.Key] = set()
        for _ in range(WAVES):
            found = _contenders(job, n, done)
            if not found:
                break
            done.update(map(task_run.key_of, found))
            _measure(run, job, found)


def _contenders(job: task_run.Job, n: int, done: set[task_run.Key]) -> list[records.Record]:
    """At first the n fastest; then those that look faster than the best measured again."""
    ranked = sorted(job.standing.values(), key=lambda r: r.measurement.latency_us or 0.0)
    if not ranked or job.best_us is None:
        return []
    limit_us = MARGIN * job.best_us
    if done:
        again = [r for r in ranked if task_run.key_of(r) in done]
        limit_us = (again[0].measurement.latency_us or 0.0) if again else limit_us
    return [
        record
        for record in ranked
        if task_run.key_of(record) not in done
        and (record.measurement.latency_us or 0.0) <= limit_us
    ][:n]


def _measure(run: Run, job: task_run.Job, found: Sequence[records.Record]) -> None:
    mods = [
        job.sketch_of(record).schedule(np.asarray(record.decisions, np.int64)).mod
        for record in found
    ]
    bursts: list[list[protocol.Measurement]] = [[] for _ in found]
    with run.breakdown.of("measure"):
        for turn in range(run.options.final_turns):
            if turn > 0 and job.task.target.kind.name == "llvm":
                _pause(run, run.options.final_pause_s)
            futures = [job.measurer.submit(mod, thorough=True) for mod in mods]
            for own, future in zip(bursts, futures, strict=True):
                own.append(_wait(run, future))
    for record, own in zip(found, bursts, strict=True):
        measurement = _pooled(own)
        if measurement is None:
            continue
        run.keep_repeat(
            job,
            dataclasses.replace(
                record,
                measurement=measurement,
                elapsed_s=run.elapsed_s,
                timestamp=time.time(),
                repeat=True,
            ),
        )


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


def _pause(run: Run, seconds: float) -> None:
    """With idle cores, so that the host of a virtual machine may place them anew."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        run.compute_guard.check()
        time.sleep(min(left, _POLL_S))


def _wait(run: Run, future: Future[protocol.Measurement]) -> protocol.Measurement:
    while not future.done():
        concurrent.futures.wait([future], _POLL_S)
        run.compute_guard.check()
    return future.result()
