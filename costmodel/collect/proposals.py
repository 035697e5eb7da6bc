"""Which schedules of a workload to measure next: random ones and promising ones.

Schedules are spread evenly over a workload's sketches. So that the data also cover where a search
goes, some are neighbours of the fastest measured so far, some come from a search, and with a model
some are the fastest predicted among many samples and such neighbours. None is proposed twice.

Notation: rows are decisions [N, V] in the order of the sketch's variables.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from felix.search import interface, mutations

if TYPE_CHECKING:
    from costmodel.data import dataset as datasets
    from felix.runner import protocol
    from felix.space.sketch import Sketch
    from felix.templates import generated

#: A row of decisions, or several.
Decisions = NDArray[np.int64]
#: ln(latency_us) predicted for rows of a sketch.
Predict = Callable[["Sketch", Decisions], NDArray[np.float32]]
#: Sketch key and decisions: what makes two schedules of a workload the same.
Identity = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class OpenWorkload:
    """A workload ready to be measured: its sketches, and where to submit their programs.

    `computing` is held while this process computes, so that timing can wait for it. `search`
    proposes schedules of these sketches by descent; None for none of those.
    """

    workload: datasets.Workload
    sketches: Sequence[Sketch]
    submit: Callable[[generated.Program], Future[protocol.Measurement]]
    computing: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    search: interface.Search | None = None

    def candidate(self, sketch_key: str, decisions: tuple[int, ...]) -> interface.Candidate:
        """A schedule as the search names it: by its sketch's place among these."""
        keys = [sketch.key for sketch in self.sketches]
        return interface.Candidate(keys.index(sketch_key), decisions)


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """What to collect.

    Attributes:
        target: canonical target JSON, stored with each record.
        device: what records say of the machine; by default what the measurer says.
        per_workload: schedules to have of each workload, those already there included.
        seconds: stop submitting after this long; None for no limit.
        turn: schedules a workload gets before the next one's turn.
        in_flight: candidates submitted and not yet finished.
        pool: samples a model chooses from in each turn.
        guided: with a model, share of a turn that it predicts to be the fastest.
        near: else, share of a turn taken from neighbours of the fastest measured.
        descend: share of a turn that the workload's search proposes, if it has one.
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
class Proposal:
    """A schedule to measure, and what proposed it."""

    sketch: Sketch
    decisions: tuple[int, ...]
    source: str


@dataclass(slots=True)
class WorkloadState:
    """Progress of one workload."""

    opened: OpenWorkload
    #: measured or proposed, so that none is measured twice
    proposed: set[Identity]
    per_sketch: Counter[str]
    #: (latency_us, sketch key, decisions) of what ran
    ran: list[tuple[float, str, tuple[int, ...]]] = field(default_factory=list)
    submitted: int = 0
    draws: int = 0
    lost: int = 0
    exhausted: set[str] = field(default_factory=set)
    #: sampled rows not used yet, by sketch key
    samples: defaultdict[str, list[Decisions]] = field(default_factory=lambda: defaultdict(list))
    #: rejected schedules by sketch key
    invalid: Counter[str] = field(default_factory=Counter)

    def is_proposed(self, sketch: Sketch, row: Decisions) -> bool:
        """Whether a schedule was measured or proposed."""
        return (sketch.key, tuple(row.tolist())) in self.proposed

    def propose(self, sketch: Sketch, row: Decisions, source: str) -> Proposal | None:
        """A schedule as a candidate; None if it was measured or proposed before."""
        if self.is_proposed(sketch, row):
            return None
        candidate = Proposal(sketch, tuple(row.tolist()), source)
        self.proposed.add((sketch.key, candidate.decisions))
        self.per_sketch[sketch.key] += 1
        return candidate

    def withdraw(self, candidate: Proposal) -> None:
        """Let a candidate be proposed again."""
        self.proposed.discard((candidate.sketch.key, candidate.decisions))


class Proposer:
    """Chooses candidates of workloads."""

    def __init__(self, options: CollectOptions, predict: Predict | None) -> None:
        self._options, self._predict = options, predict

    def propose(self, state: WorkloadState, count: int) -> Iterator[Proposal]:
        """New candidates: once something ran, some by the model or near the fastest."""
        promising = 0
        for candidate in self._descended(state, round(count * self._options.descend)):
            promising += 1
            yield candidate
        if state.ran:
            candidates = self._near(state, round(count * self._options.near))
            if self._predict is not None and self._options.guided:
                n_guided = int(count * self._options.guided)
                candidates = self._guided(state, n_guided, self._predict)
            for candidate in candidates:
                promising += 1
                yield candidate
        for _ in range(count - promising):
            drawn = self._random(state)
            if drawn is None:
                return
            yield drawn

    def _random(self, state: WorkloadState) -> Proposal | None:
        """A new legal sample of the sketch measured least; None when all are exhausted."""
        while True:
            open_sketches = [s for s in state.opened.sketches if s.key not in state.exhausted]
            if not open_sketches:
                return None
            sketch = min(open_sketches, key=lambda s: (state.per_sketch[s.key], s.index))
            samples = state.samples[sketch.key]
            if not samples:
                samples += self._new_samples(state, sketch)
            if not samples:  # a small space: only repeats come
                state.exhausted.add(sketch.key)
            while samples:
                candidate = state.propose(sketch, samples.pop(), "random")
                if candidate is not None:
                    return candidate

    def _descended(self, state: WorkloadState, count: int) -> Iterator[Proposal]:
        """What the workload's search proposes next."""
        if count == 0 or state.opened.search is None:
            return
        for asked in state.opened.search.ask(count):
            row = np.array(asked.decisions, dtype=np.int64)
            sketch = state.opened.sketches[asked.sketch_index]
            candidate = state.propose(sketch, row, "descent")
            if candidate is not None:
                yield candidate

    def _near(self, state: WorkloadState, count: int) -> Iterator[Proposal]:
        """Random neighbours of the fastest measured."""
        near: list[tuple[Sketch, Decisions]] = []
        for sketch in state.opened.sketches if count else ():
            seed = self._seed(state, sketch)
            near += [(sketch, row) for row in _neighbours_of_best(state, sketch, count, seed)]
        if not near:
            return
        rng = np.random.default_rng(self._seed(state, near[0][0]))
        for index in rng.permutation(len(near)).tolist():
            if count == 0:
                return
            sketch, row = near[index]
            candidate = state.propose(sketch, row, "neighbour")
            if candidate is not None:
                count -= 1
                yield candidate

    def _guided(self, state: WorkloadState, count: int, predict: Predict) -> Iterator[Proposal]:
        """The best predicted of samples and of neighbours of the best measured."""
        rated: list[tuple[float, Sketch, Decisions, str]] = []
        n_samples = max(8, self._options.pool // len(state.opened.sketches))
        for sketch in state.opened.sketches:
            seed = self._seed(state, sketch)
            for source, rows in (
                ("model", sketch.sample(n_samples, seed)),
                ("neighbour", _neighbours_of_best(state, sketch, 16, seed)),
            ):
                if len(rows):
                    costs = predict(sketch, rows).tolist()
                    rated += [(c, sketch, row, source) for c, row in zip(costs, rows, strict=True)]
        for _, sketch, row, source in sorted(rated, key=lambda item: item[0]):
            if count == 0:
                return
            candidate = state.propose(sketch, row, source)
            if candidate is not None:
                count -= 1
                yield candidate

    def _seed(self, state: WorkloadState, sketch: Sketch) -> int:
        """A seed that differs for every draw and is the same in every run."""
        state.draws += 1
        key = state.opened.workload.key
        text = f"{self._options.seed}:{key}:{sketch.index}:{state.draws}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) % (2**31 - 2) + 1

    def _new_samples(self, state: WorkloadState, sketch: Sketch) -> list[Decisions]:
        """Samples that were not proposed yet; draws more when all of a few were."""
        for count in (self._options.turn, 16 * self._options.turn):
            rows = self._preferred(sketch, sketch.sample(count, self._seed(state, sketch)))
            new = [row for row in rows if not state.is_proposed(sketch, row)]
            if new:
                return new
        return []

    def _preferred(self, sketch: Sketch, rows: Decisions) -> Decisions:
        """The best predicted of every few rows; all rows without a model."""
        size = self._options.tournament
        if size < 2 or self._predict is None or len(rows) < size:
            return rows
        rows = rows[: len(rows) // size * size]
        costs = self._predict(sketch, rows).reshape(-1, size)
        best: Decisions = rows[np.arange(len(costs)) * size + costs.argmin(axis=1)]
        return best


def some_of(sketches: Sequence[Sketch], count: int | None, seed: int) -> list[Sketch]:
    """At most `count` sketches at random, in their order, each as likely as another; None: all.

    Extracting the formulas of a sketch can take as long as building a kernel of it.
    """
    if count is None or len(sketches) <= count:
        return list(sketches)
    chosen = np.random.default_rng(seed).choice(len(sketches), count, replace=False)
    return [sketches[index] for index in sorted(chosen.tolist())]


def _neighbours_of_best(
    state: WorkloadState, sketch: Sketch, per_row: int, seed: int
) -> Decisions:
    """Neighbours of those of the workload's eight fastest schedules that are of this sketch."""
    best = [decisions for _, key, decisions in sorted(state.ran)[:8] if key == sketch.key]
    return neighbours(sketch, best, per_row, seed)


def neighbours(
    sketch: Sketch, rows: Sequence[tuple[int, ...]], per_row: int, seed: int
) -> Decisions:
    """Up to `per_row` distinct legal rows near each row; none that is among `rows`.

    One small change away (`felix.search.mutations`). Structural decisions (compute locations)
    are left alone: their legal values depend on the rest.
    """
    if not rows:
        return np.zeros((0, len(sketch.variables)), dtype=np.int64)
    columns = [i for i, variable in enumerate(sketch.variables) if not variable.structural]
    moves = mutations.Moves([sketch.variables[i] for i in columns])
    rng = np.random.default_rng(seed)
    near: dict[tuple[int, ...], None] = {}
    for row in rows:
        around = moves.around([row[i] for i in columns])
        for index in rng.permutation(len(around))[:per_row].tolist():
            changed = np.array(row, dtype=np.int64)
            changed[columns] = around[index]
            near[tuple(changed.tolist())] = None
    new = [row for row in near if row not in rows]
    batch = np.array(new, dtype=np.int64).reshape(len(new), len(sketch.variables))
    if len(batch) == 0:
        return batch
    legal: Decisions = batch[(sketch.formulas.constraints_exact(batch) <= 0).all(axis=1)]
    return legal
