"""Measuring schedules for a data set: legal random ones and promising ones.

Workloads take turns, a few schedules at a time, so that an interrupted or time-limited run
leaves balanced data. What the data set already has is never measured again. Every measurement is
written soon after it is there.

Units: seconds for clocks, microseconds for latencies.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from costmodel.collect import proposals
from costmodel.data import dataset as datasets
from felix import errors
from felix.runner import protocol

#: A workload that loses more candidates to errors of the infrastructure is given up for this run.
MAX_LOST = 20

OpenWorkload = Callable[[datasets.Workload], proposals.OpenWorkload]


@dataclass(slots=True)
class Progress:
    """Counters for the person who waits.

    Attributes:
        total: schedules the data set is to have of these workloads.
        measured: those it has.
        failed: measured in this run, and have no latency.
        invalid: rejected by TVM or by their template.
        lost: not measured for reasons that are not the schedule's.
        workload: whose turn it is.
    """

    total: int
    measured: int = 0
    failed: int = 0
    invalid: int = 0
    lost: int = 0
    workload: str = ""


@dataclass(frozen=True, slots=True)
class StoredFeatures:
    """Features of generated kernels: their table's version, and those of a candidate [R, F]."""

    version: int
    of: Callable[[proposals.Proposal], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Environment:
    """What collecting works with.

    Attributes:
        open_workload: called once for each workload, when its first turn comes.
        clock: monotonic seconds; now: time stamp of a record.
        predict: the model, None for random schedules only.
        report: called after each measurement.
        stored: features that records have; None of traces, whose records have none.
    """

    open_workload: OpenWorkload
    clock: Callable[[], float]
    now: Callable[[], datetime.datetime]
    predict: proposals.Predict | None = None
    report: Callable[[Progress], None] | None = None
    stored: StoredFeatures | None = None


def collect(
    environment: Environment,
    workloads: Sequence[datasets.Workload],
    writer: datasets.Writer,
    known: Sequence[datasets.Record],
    options: proposals.CollectOptions,
) -> Progress:
    """Measure until every workload has its schedules or time is up.

    Args:
        environment: the pool, the clocks and the model.
        workloads: in the order of their turns.
        writer: of the data set.
        known: records the data set already has.
        options: what to collect.
    """
    clock = environment.clock
    collector = _Collector(environment, writer, known, options)
    collector.progress.total = options.per_workload * len(workloads)
    deadline = None if options.seconds is None else clock() + options.seconds
    active = list(workloads)
    while active:
        remaining: list[datasets.Workload] = []
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
    """Candidates in flight and the workloads they belong to."""

    def __init__(
        self,
        environment: Environment,
        writer: datasets.Writer,
        known: Sequence[datasets.Record],
        options: proposals.CollectOptions,
    ) -> None:
        self.environment, self.writer, self.options = environment, writer, options
        self.proposer = proposals.Proposer(options, environment.predict)
        self.progress = Progress(total=0)
        self.known: dict[str, list[datasets.Record]] = defaultdict(list)
        for record in known:
            if record.target == options.target:
                self.known[record.workload].append(record)
        self.states: dict[str, proposals.WorkloadState] = {}
        self.in_flight: dict[
            Future[protocol.Measurement], tuple[proposals.WorkloadState, proposals.Proposal]
        ] = {}

    def turn(self, workload: datasets.Workload) -> bool:
        """Submit a few schedules of one workload; whether it is to have another turn."""
        if workload.key not in self.states:
            if len(self.known[workload.key]) >= self.options.per_workload:
                self.progress.measured += self.options.per_workload
                return False
            self.states[workload.key] = self._open(workload)
        state = self.states[workload.key]
        self._take_completed(wait_s=0)
        self.progress.workload = workload.name
        count = min(self.options.turn, self.options.per_workload - state.submitted)
        with state.opened.computing():
            candidates = list(self.proposer.propose(state, count)) if count > 0 else []
        for candidate in candidates:
            self._submit(state, candidate)
        sketches = {sketch.key for sketch in state.opened.sketches}
        return state.submitted < self.options.per_workload and not sketches <= state.exhausted

    def finish(self) -> None:
        """Wait for everything in flight and write it."""
        while self.in_flight:
            self._take_completed()
        self.writer.flush()

    def _open(self, workload: datasets.Workload) -> proposals.WorkloadState:
        records = self.known[workload.key]
        state = proposals.WorkloadState(
            self.environment.open_workload(workload),
            {(r.sketch_key, r.decisions) for r in records},
            Counter(r.sketch_key for r in records),
            [(r.latency_us, r.sketch_key, r.decisions) for r in records if r.latency_us],
            submitted=len(records),
            draws=len(records),
        )
        self.progress.measured += len(records)
        if state.opened.search is not None:
            there = {sketch.key for sketch in state.opened.sketches}
            state.opened.search.tell(
                [
                    (state.opened.candidate(r.sketch_key, r.decisions), r.latency_us)
                    for r in records
                    if r.sketch_key in there
                ]
            )
        return state

    def _submit(self, state: proposals.WorkloadState, candidate: proposals.Proposal) -> None:
        try:
            with state.opened.computing():
                program = candidate.sketch.program(candidate.decisions)
        except errors.InvalidSchedule:
            self.progress.invalid += 1
            key = candidate.sketch.key
            state.invalid[key] += 1
            if state.invalid[key] > 2 * self.options.per_workload:
                state.exhausted.add(key)
            return
        while len(self.in_flight) >= self.options.in_flight:
            self._take_completed()
        state.submitted += 1
        self.in_flight[state.opened.submit(program)] = (state, candidate)

    def _take_completed(self, wait_s: float | None = None) -> None:
        """Record what is done; without `wait_s` wait until something is."""
        done, _ = wait(self.in_flight, wait_s, return_when=FIRST_COMPLETED)
        for future in done:
            self._record(*self.in_flight.pop(future), future.result())

    def _record(
        self,
        state: proposals.WorkloadState,
        candidate: proposals.Proposal,
        measurement: protocol.Measurement,
    ) -> None:
        if measurement.error is protocol.ErrorClass.INFRASTRUCTURE:
            self._lose(state, candidate)
        else:
            self._write(state, candidate, measurement)
            if state.opened.search is not None:
                asked = state.opened.candidate(candidate.sketch.key, candidate.decisions)
                state.opened.search.tell([(asked, measurement.latency_us)])
        if self.environment.report is not None:
            self.environment.report(self.progress)

    def _lose(self, state: proposals.WorkloadState, candidate: proposals.Proposal) -> None:
        """Let a candidate be tried again; give up a workload that loses too many."""
        self.progress.lost += 1
        state.submitted -= 1
        state.lost += 1
        state.withdraw(candidate)
        if state.lost > MAX_LOST:
            state.exhausted |= {sketch.key for sketch in state.opened.sketches}

    def _write(
        self,
        state: proposals.WorkloadState,
        candidate: proposals.Proposal,
        measurement: protocol.Measurement,
    ) -> None:
        stored = self.environment.stored
        record = datasets.Record(
            workload=state.opened.workload.key,
            target=self.options.target,
            sketch=candidate.sketch.index,
            sketch_key=candidate.sketch.key,
            decisions=candidate.decisions,
            latencies_us=measurement.latencies_us if measurement.ok else (),
            error=None if measurement.error is None else str(measurement.error),
            device=self.options.device or measurement.device,
            tvm=self.options.tvm,
            source=candidate.source,
            measured_at=self.environment.now(),
            async_copies=candidate.sketch.is_gpu,
            template=None if stored is None else str(candidate.sketch.variant),
            features=() if stored is None else tuple(stored.of(candidate)),
            features_version=None if stored is None else stored.version,
        )
        self.writer.add(record)
        self.progress.measured += 1
        if record.latency_us is None:
            self.progress.failed += 1
        else:
            state.ran.append((record.latency_us, record.sketch_key, record.decisions))
