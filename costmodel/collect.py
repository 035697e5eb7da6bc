"""Measuring schedules for a data set: legal random ones and promising ones.

Workloads take turns, a few schedules at a time, so that an interrupted or time-limited run
leaves balanced data. Schedules are spread evenly over a workload's sketches. So that the data
also cover where a search goes, some are neighbours of the fastest measured so far; with a model,
half are the fastest predicted among many samples and such neighbours. What the data set already
has is never measured again. Every result is written soon after it is known.

Units: seconds for `elapsed_s`, microseconds for latencies. Reads `felix` sketches through small
protocols and a measurer; feeds `dataset`.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from costmodel import dataset as data
from costmodel import neighbours
from felix import errors

#: Error classes that are no property of the schedule; such a result is not kept.
TRANSIENT = "infrastructure"
#: A workload that loses more candidates to such errors is given up for this run.
MAX_LOST = 20


class Sketch(Protocol):
    """What collecting needs of a `felix.Sketch`."""

    index: int

    @property
    def key(self) -> str: ...

    @property
    def variables(self) -> Sequence[Any]: ...

    @property
    def formulas(self) -> Any: ...

    def sample(self, n: int, seed: int) -> NDArray[np.int64]: ...

    def schedule(self, row: NDArray[np.int64]) -> Any: ...


@dataclass(frozen=True, slots=True)
class Space:
    """A workload ready to be measured: its sketches, and where to submit their modules.

    `computing` is held while this process computes, so that timing can wait for it. `search`
    (a `felix.search.Search`) proposes schedules by descent; None for none of those.
    """

    workload: data.Workload
    sketches: Sequence[Sketch]
    submit: Callable[[Any], Future[Any]]
    computing: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    search: Any | None = None


#: ln(latency_us) predicted for a batch of decisions of a sketch.
Predict = Callable[[Sketch, NDArray[np.int64]], NDArray[np.floating[Any]]]


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """What to collect.

    Attributes:
        target: canonical target JSON, stored with each record.
        device: what records say of the machine; by default what the measurer says.
        per_workload: schedules wanted of each workload, those already there included.
        seconds: stop submitting after this long; None for no limit.
        turn: schedules a workload gets before the next one's turn.
        in_flight: candidates submitted and not yet finished.
        pool: samples a model chooses from in each turn.
        guided: with a model, share of a turn that it predicts to be the fastest.
        near: else, share of a turn taken from neighbours of the fastest measured.
        descend: share of a turn that the space's search proposes, if it has one.
        tournament: a random schedule is the best predicted of so many, if there is a model.
    """

    target: str
    tvm: str
    device: str = ""
    per_workload: int = 80
    seconds: float | None = None
    seed: int = 0
    turn: int = 16
    in_flight: int = 8
    pool: int = 256
    guided: float = 0.5
    near: float = 0.0
    descend: float = 0.0
    tournament: int = 1


@dataclass(slots=True)
class Progress:
    """Counters for the person who waits."""

    wanted: int
    measured: int = 0
    failed: int = 0
    invalid: int = 0
    lost: int = 0
    workload: str = ""


@dataclass(frozen=True, slots=True)
class _Candidate:
    sketch: Sketch
    decisions: tuple[int, ...]
    source: str

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """What a search knows it by."""
        return self.sketch.index, self.decisions


@dataclass(slots=True)
class _Job:
    """Progress of one workload."""

    space: Space
    #: (sketch key, decisions) measured or tried, so that none is measured twice
    seen: set[tuple[str, tuple[int, ...]]]
    per_sketch: Counter[str]
    #: (latency_us, sketch key, decisions) of what ran
    ran: list[tuple[float, str, tuple[int, ...]]] = field(default_factory=list)
    submitted: int = 0
    draws: int = 0
    lost: int = 0
    exhausted: set[str] = field(default_factory=set)
    #: sampled rows not used yet, by sketch key
    stock: defaultdict[str, list[NDArray[np.int64]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    #: rejected schedules by sketch key
    invalid: Counter[str] = field(default_factory=Counter)


def collect(
    spaces: Callable[[data.Workload], Space],
    workloads: Sequence[data.Workload],
    writer: data.Writer,
    known: Sequence[data.Record],
    options: CollectOptions,
    clock: Callable[[], float],
    now: Callable[[], datetime.datetime],
    predict: Predict | None = None,
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
        spaces: Callable[[data.Workload], Space],
        writer: data.Writer,
        known: Sequence[data.Record],
        options: CollectOptions,
        now: Callable[[], datetime.datetime],
        predict: Predict | None,
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.spaces, self.writer, self.options = spaces, writer, options
        self.now, self.predict, self.report = now, predict, report
        self.progress = Progress(wanted=0)
        self.known: dict[str, list[data.Record]] = defaultdict(list)
        for record in known:
            if record.target == options.target:
                self.known[record.workload].append(record)
        self.jobs: dict[str, _Job] = {}
        self.flying: dict[Future[Any], tuple[_Job, _Candidate]] = {}

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
            candidates = list(self._propose(job, want)) if want > 0 else []
        for candidate in candidates:
            self._submit(job, candidate)
        sketches = {sketch.key for sketch in job.space.sketches}
        return job.submitted < self.options.per_workload and not sketches <= job.exhausted

    def finish(self) -> None:
        """Wait for everything in flight and write it."""
        while self.flying:
            self._harvest()
        self.writer.flush()

    def _open(self, workload: data.Workload) -> _Job:
        records = self.known[workload.key]
        job = _Job(
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
                (_Candidate(sketches[r.sketch_key], r.decisions, r.source), r)
                for r in records
                if r.sketch_key in sketches
            ]
            job.space.search.update(known)
        return job

    def _propose(self, job: _Job, want: int) -> Iterator[_Candidate]:
        """New candidates: once something ran, some by the model or near the fastest."""
        guided = 0
        for candidate in self._descended(job, round(want * self.options.descend)):
            guided += 1
            yield candidate
        if job.ran:
            chosen = self._near(job, round(want * self.options.near))
            if self.predict is not None and self.options.guided:
                chosen = self._guided(job, int(want * self.options.guided))
            for candidate in chosen:
                guided += 1
                yield candidate
        for _ in range(want - guided):
            drawn = self._random(job)
            if drawn is None:
                return
            yield drawn

    def _random(self, job: _Job) -> _Candidate | None:
        """A new legal sample of the sketch measured least; None when all are exhausted."""
        while True:
            open_sketches = [s for s in job.space.sketches if s.key not in job.exhausted]
            if not open_sketches:
                return None
            sketch = min(open_sketches, key=lambda s: (job.per_sketch[s.key], s.index))
            stock = job.stock[sketch.key]
            if not stock:
                stock += self._fresh(job, sketch)
            if not stock:  # a small space: only repeats come
                job.exhausted.add(sketch.key)
            while stock:
                row = stock.pop()
                if self._claim(job, sketch, row):
                    return _Candidate(sketch, tuple(map(int, row)), "random")

    def _descended(self, job: _Job, want: int) -> Iterator[_Candidate]:
        """What the space's search proposes next."""
        if want == 0 or job.space.search is None:
            return
        by_index = {sketch.index: sketch for sketch in job.space.sketches}
        for suggestion in job.space.search.suggest(want):
            sketch = by_index[suggestion.sketch_index]
            row = np.array(suggestion.decisions, dtype=np.int64)
            if self._claim(job, sketch, row):
                yield _Candidate(sketch, tuple(map(int, row)), "descent")

    def _near(self, job: _Job, want: int) -> Iterator[_Candidate]:
        """Random neighbours of the fastest measured."""
        found: list[tuple[Sketch, NDArray[np.int64]]] = []
        for sketch in job.space.sketches if want else ():
            seed = self._seed(job, sketch)
            found += [(sketch, row) for row in _around_best(job, sketch, want, seed)]
        if not found:
            return
        draws = np.random.default_rng(self._seed(job, found[0][0]))
        for place in draws.permutation(len(found)).tolist():
            sketch, row = found[place]
            if want and self._claim(job, sketch, row):
                want -= 1
                yield _Candidate(sketch, tuple(map(int, row)), "neighbour")

    def _guided(self, job: _Job, want: int) -> Iterator[_Candidate]:
        """The best predicted of samples and of neighbours of the best measured."""
        assert self.predict is not None
        rated: list[tuple[float, Sketch, NDArray[np.int64], str]] = []
        share = max(8, self.options.pool // len(job.space.sketches))
        for sketch in job.space.sketches:
            seed = self._seed(job, sketch)
            batches = [
                ("model", sketch.sample(share, seed)),
                ("neighbour", _around_best(job, sketch, 16, seed)),
            ]
            for source, rows in batches:
                if len(rows):
                    costs = self.predict(sketch, rows)
                    rated += [
                        (float(c), sketch, r, source) for c, r in zip(costs, rows, strict=True)
                    ]
        for _, sketch, row, source in sorted(rated, key=lambda item: item[0]):
            if want and self._claim(job, sketch, row):
                want -= 1
                yield _Candidate(sketch, tuple(map(int, row)), source)

    def _seed(self, job: _Job, sketch: Sketch) -> int:
        """A seed that differs for every draw and is the same in every run."""
        job.draws += 1
        text = f"{self.options.seed}:{job.space.workload.key}:{sketch.index}:{job.draws}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % (2**31 - 2) + 1

    def _fresh(self, job: _Job, sketch: Sketch) -> list[NDArray[np.int64]]:
        """Samples that were not tried yet; looks harder when all of a few were."""
        for count in (self.options.turn, 16 * self.options.turn):
            rows = self._preferred(sketch, sketch.sample(count, self._seed(job, sketch)))
            fresh = [row for row in rows if not self._is_known(job, sketch, row)]
            if fresh:
                return fresh
        return []

    def _preferred(self, sketch: Sketch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The best predicted of every few rows; all rows without a model."""
        size = self.options.tournament
        if size < 2 or self.predict is None or len(rows) < size:
            return rows
        rows = rows[: len(rows) // size * size]
        costs = self.predict(sketch, rows).reshape(-1, size)
        best: NDArray[np.int64] = rows[np.arange(len(costs)) * size + costs.argmin(axis=1)]
        return best

    def _is_known(self, job: _Job, sketch: Sketch, row: NDArray[np.int64]) -> bool:
        return (sketch.key, tuple(map(int, row))) in job.seen

    def _claim(self, job: _Job, sketch: Sketch, row: NDArray[np.int64]) -> bool:
        if self._is_known(job, sketch, row):
            return False
        job.seen.add((sketch.key, tuple(map(int, row))))
        job.per_sketch[sketch.key] += 1
        return True

    def _submit(self, job: _Job, candidate: _Candidate) -> None:
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

    def _keep(self, job: _Job, candidate: _Candidate, measurement: Any) -> None:
        if measurement.error is not None and str(measurement.error) == TRANSIENT:
            self.progress.lost += 1
            self._lose(job, candidate)
        else:
            self._write(job, candidate, measurement)
            if job.space.search is not None:
                job.space.search.update([(candidate, measurement)])
        if self.report is not None:
            self.report(self.progress)

    def _lose(self, job: _Job, candidate: _Candidate) -> None:
        """Let a candidate be tried again; give up a workload that loses too many."""
        job.submitted -= 1
        job.lost += 1
        job.seen.discard((candidate.sketch.key, candidate.decisions))
        if job.lost > MAX_LOST:
            job.exhausted |= {sketch.key for sketch in job.space.sketches}

    def _write(self, job: _Job, candidate: _Candidate, measurement: Any) -> None:
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


def _around_best(job: _Job, sketch: Sketch, per_row: int, seed: int) -> NDArray[np.int64]:
    """Neighbours of those of the workload's eight fastest schedules that are of this sketch."""
    near = [d for _, key, d in sorted(job.ran)[:8] if key == sketch.key]
    if not near or not sketch.variables:
        return np.zeros((0, len(sketch.variables)), dtype=np.int64)
    return neighbours.around(sketch, np.array(near, dtype=np.int64), per_row, seed)
