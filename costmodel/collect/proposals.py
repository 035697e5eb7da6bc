"""Which schedules of a workload to measure next: random ones and promising ones.

Schedules are spread evenly over a workload's sketches. So that the data also cover where a search
goes, some are neighbours of the fastest measured so far, some come from a search, and with a model
some are the fastest predicted among many samples and such neighbours. None is proposed twice.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from costmodel.collect import neighbours
from costmodel.data import dataset as data


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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule to measure, and what proposed it."""

    sketch: Sketch
    decisions: tuple[int, ...]
    source: str

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """What a search knows it by."""
        return self.sketch.index, self.decisions


@dataclass(slots=True)
class Job:
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

    def knows(self, sketch: Sketch, row: NDArray[np.int64]) -> bool:
        """Whether a schedule was measured or proposed."""
        return (sketch.key, tuple(map(int, row))) in self.seen

    def claim(self, sketch: Sketch, row: NDArray[np.int64]) -> bool:
        """Take a schedule for measuring; False if it was taken before."""
        if self.knows(sketch, row):
            return False
        self.seen.add((sketch.key, tuple(map(int, row))))
        self.per_sketch[sketch.key] += 1
        return True


class Proposer:
    """Chooses candidates for jobs."""

    def __init__(self, options: CollectOptions, predict: Predict | None) -> None:
        self._options, self._predict = options, predict

    def propose(self, job: Job, want: int) -> Iterator[Candidate]:
        """New candidates: once something ran, some by the model or near the fastest."""
        guided = 0
        for candidate in self._descended(job, round(want * self._options.descend)):
            guided += 1
            yield candidate
        if job.ran:
            chosen = self._near(job, round(want * self._options.near))
            if self._predict is not None and self._options.guided:
                chosen = self._guided(job, int(want * self._options.guided))
            for candidate in chosen:
                guided += 1
                yield candidate
        for _ in range(want - guided):
            drawn = self._random(job)
            if drawn is None:
                return
            yield drawn

    def _random(self, job: Job) -> Candidate | None:
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
                if job.claim(sketch, row):
                    return Candidate(sketch, tuple(map(int, row)), "random")

    def _descended(self, job: Job, want: int) -> Iterator[Candidate]:
        """What the space's search proposes next."""
        if want == 0 or job.space.search is None:
            return
        by_index = {sketch.index: sketch for sketch in job.space.sketches}
        for suggestion in job.space.search.suggest(want):
            sketch = by_index[suggestion.sketch_index]
            row = np.array(suggestion.decisions, dtype=np.int64)
            if job.claim(sketch, row):
                yield Candidate(sketch, tuple(map(int, row)), "descent")

    def _near(self, job: Job, want: int) -> Iterator[Candidate]:
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
            if want and job.claim(sketch, row):
                want -= 1
                yield Candidate(sketch, tuple(map(int, row)), "neighbour")

    def _guided(self, job: Job, want: int) -> Iterator[Candidate]:
        """The best predicted of samples and of neighbours of the best measured."""
        assert self._predict is not None
        rated: list[tuple[float, Sketch, NDArray[np.int64], str]] = []
        share = max(8, self._options.pool // len(job.space.sketches))
        for sketch in job.space.sketches:
            seed = self._seed(job, sketch)
            batches = [
                ("model", sketch.sample(share, seed)),
                ("neighbour", _around_best(job, sketch, 16, seed)),
            ]
            for source, rows in batches:
                if len(rows):
                    costs = self._predict(sketch, rows)
                    rated += [
                        (float(c), sketch, r, source) for c, r in zip(costs, rows, strict=True)
                    ]
        for _, sketch, row, source in sorted(rated, key=lambda item: item[0]):
            if want and job.claim(sketch, row):
                want -= 1
                yield Candidate(sketch, tuple(map(int, row)), source)

    def _seed(self, job: Job, sketch: Sketch) -> int:
        """A seed that differs for every draw and is the same in every run."""
        job.draws += 1
        text = f"{self._options.seed}:{job.space.workload.key}:{sketch.index}:{job.draws}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % (2**31 - 2) + 1

    def _fresh(self, job: Job, sketch: Sketch) -> list[NDArray[np.int64]]:
        """Samples that were not tried yet; looks harder when all of a few were."""
        for count in (self._options.turn, 16 * self._options.turn):
            rows = self._preferred(sketch, sketch.sample(count, self._seed(job, sketch)))
            fresh = [row for row in rows if not job.knows(sketch, row)]
            if fresh:
                return fresh
        return []

    def _preferred(self, sketch: Sketch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The best predicted of every few rows; all rows without a model."""
        size = self._options.tournament
        if size < 2 or self._predict is None or len(rows) < size:
            return rows
        rows = rows[: len(rows) // size * size]
        costs = self._predict(sketch, rows).reshape(-1, size)
        best: NDArray[np.int64] = rows[np.arange(len(costs)) * size + costs.argmin(axis=1)]
        return best


def _around_best(job: Job, sketch: Sketch, per_row: int, seed: int) -> NDArray[np.int64]:
    """Neighbours of those of the workload's eight fastest schedules that are of this sketch."""
    near = [d for _, key, d in sorted(job.ran)[:8] if key == sketch.key]
    if not near or not sketch.variables:
        return np.zeros((0, len(sketch.variables)), dtype=np.int64)
    return neighbours.around(sketch, np.array(near, dtype=np.int64), per_row, seed)
