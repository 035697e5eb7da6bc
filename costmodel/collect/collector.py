"""Measuring schedules for a data set: legal random ones and promising ones.

Workloads take turns, a few schedules at a time, so that an interrupted or time-limited run
leaves balanced data. What the data set already has is never measured again. Every result is
written soon after it is known.

Units: seconds for `elapsed_s`, microseconds for latencies.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodel.collect import proposals
from costmodel.data import dataset as data
from felix import errors

#: Error classes that are no property of the schedule; such a result is not kept.
TRANSIENT = "infrastructure"
#: A workload that loses more candidates to such errors is given up for this run.
MAX_LOST = 20


@dataclass(slots=True)
class Progress:
    """Counters for the person who waits."""

    wanted: int
    measured: int = 0
    failed: int = 0
    invalid: int = 0
    lost: int = 0
    workload: str = ""


def collect(
    spaces: Callable[[data.Workload], proposals.Space],
    workloads: Sequence[data.Workload],
    writer: data.Writer,
    known: Sequence[data.Record],
    options: proposals.CollectOptions,
    clock: Callable[[], float],
    now: Callable[[], datetime.datetime],
    predict: proposals.Predict | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Progress:
    """Measure until every workload has what is wanted or time is up.

    Args:
        spaces: opens a workload (called once each, when its first turn comes).
        known: records the data set already has.
        clock: monotonic seconds; now: time stamp of a record.
        predict: the model, None for random schedules only.
        report: called after each result.
    """
    collector = _Collector(spaces, writer, known, options, now, predict, report)
    collector.progress.wanted = options.per_workload * len(workloads)
    deadline = None if options.seconds is None else clock() + options.seconds
    active = list(workloads)
    while active:
        remaining: list[data.Workload] = []
        for workload in active:
            if deadline is not None and clock() >= deadline:
                remaining = []
                break
            if collector.turn(workload):
                remaining.append(workload)
        active = remaining
    collector.finish()
    return collector.progress


class _Collector:
    """Candidates in flight and the jobs they belong to."""

    def __init__(
        self,
        spaces: Callable[[data.Workload], proposals.Space],
        writer: data.Writer,
        known: Sequence[data.Record],
        options: proposals.CollectOptions,
        now: Callable[[], datetime.datetime],
        predict: proposals.Predict | None,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.spaces, self.writer, self.options = spaces, writer, options
        self.now, self.report = now, report
        self.proposer = proposals.Proposer(options, predict)
        self.progress = Progress(wanted=0)
        self.known: dict[str, list[data.Record]] = defaultdict(list)
        for record in known:
            if record.target == options.target:
                self.known[record.workload].append(record)
        self.jobs: dict[str, proposals.Job] = {}
        self.flying: dict[Future[Any], tuple[proposals.Job, proposals.Candidate]] = {}

    def turn(self, workload: data.Workload) -> bool:
        """Submit a few schedules of one workload; whether it wants another turn."""
        if workload.key not in self.jobs:
            if len(self.known[workload.key]) >= self.options.per_workload:
                self.progress.measured += self.options.per_workload
                return False
            self.jobs[workload.key] = self._open(workload)
        job = self.jobs[workload.key]
        self._harvest(wait_s=0)
        self.progress.workload = workload.name
        want = min(self.options.turn, self.options.per_workload - job.submitted)
        with job.space.computing():
            candidates = list(self.proposer.propose(job, want)) if want > 0 else []
        for candidate in candidates:
            self._submit(job, candidate)
        sketches = {sketch.key for sketch in job.space.sketches}
        return job.submitted < self.options.per_workload and not sketches <= job.exhausted

    def finish(self) -> None:
        """Wait for everything in flight and write it."""
        while self.flying:
            self._harvest()
        self.writer.flush()

    def _open(self, workload: data.Workload) -> proposals.Job:
        records = self.known[workload.key]
        job = proposals.Job(
            self.spaces(workload),
            {(r.sketch_key, r.decisions) for r in records},
            Counter(r.sketch_key for r in records),
            [(r.latency_us, r.sketch_key, r.decisions) for r in records if r.latency_us],
            submitted=len(records),
            draws=len(records),
        )
        self.progress.measured += len(records)
        if job.space.search is not None:
            sketches = {sketch.key: sketch for sketch in job.space.sketches}
            known = [
                (proposals.Candidate(sketches[r.sketch_key], r.decisions, r.source), r)
                for r in records
                if r.sketch_key in sketches
            ]
            job.space.search.update(known)
        return job

    def _submit(self, job: proposals.Job, candidate: proposals.Candidate) -> None:
        try:
            with job.space.computing():
                row = np.array(candidate.decisions, dtype=np.int64)
                schedule = candidate.sketch.schedule(row)
        except errors.InvalidSchedule:
            self.progress.invalid += 1
            key = candidate.sketch.key
            job.invalid[key] += 1
            if job.invalid[key] > 2 * self.options.per_workload:
                job.exhausted.add(key)
            return
        while len(self.flying) >= self.options.in_flight:
            self._harvest()
        job.submitted += 1
        self.flying[job.space.submit(schedule.mod)] = (job, candidate)

    def _harvest(self, wait_s: float | None = None) -> None:
        """Keep what is done; without `wait_s` wait until something is."""
        done, _ = wait(self.flying, wait_s, return_when=FIRST_COMPLETED)
        for future in done:
            self._keep(*self.flying.pop(future), future.result())

    def _keep(self, job: proposals.Job, candidate: proposals.Candidate, measurement: Any) -> None:
        if measurement.error is not None and str(measurement.error) == TRANSIENT:
            self.progress.lost += 1
            self._lose(job, candidate)
        else:
            self._write(job, candidate, measurement)
            if job.space.search is not None:
                job.space.search.update([(candidate, measurement)])
        if self.report is not None:
            self.report(self.progress)

    def _lose(self, job: proposals.Job, candidate: proposals.Candidate) -> None:
        """Let a candidate be tried again; give up a workload that loses too many."""
        job.submitted -= 1
        job.lost += 1
        job.seen.discard((candidate.sketch.key, candidate.decisions))
        if job.lost > MAX_LOST:
            job.exhausted |= {sketch.key for sketch in job.space.sketches}

    def _write(self, job: proposals.Job, candidate: proposals.Candidate, measurement: Any) -> None:
        error = None if measurement.error is None else str(measurement.error)
        record = data.Record(
            workload=job.space.workload.key,
            target=self.options.target,
            sketch=candidate.sketch.index,
            sketch_key=candidate.sketch.key,
            decisions=candidate.decisions,
            latencies_us=tuple(measurement.latencies_us) if error is None else (),
            error=error,
            device=self.options.device or measurement.device,
            tvm=self.options.tvm,
            source=candidate.source,
            measured_at=self.now(),
        )
        self.writer.add(record)
        self.progress.measured += 1
        if record.latency_us is None:
            self.progress.failed += 1
        else:
            job.ran.append((record.latency_us, record.sketch_key, record.decisions))
