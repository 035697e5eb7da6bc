"""Which scored candidates to measure: mostly the best, not all alike.

`Pool` collects candidates of all sketches, each once and never one that was proposed before,
together with its own score. Two kinds are a fallback, for when there is nothing else: copies
that the model cannot tell from what was proposed or is in the pool (`scoring`: equal features),
because a winner has so many that they would fill rounds, and those that a builder would give up.

`select` ranks them, by draws of what the model may be wrong about (`Pool.drawn`), with rules
against a model that is sure and wrong: no structure takes more than a share of the picks while
others have candidates, and the less the more of its candidates failed (some programs take LLVM
longer than a builder allows); nor does a variant of the task. Near copies of picks wait; a share
is for neighbours of what measured best, and a share is drawn at random. Models of different kinds
of features may be wrong by different factors, so a kind of which nothing was proposed has a
share. Code that takes long to build must promise more: the *acquisition* value adds the cost of
building to the prediction.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import math
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from felix.features.kind import FeatureKind
from felix.search import build_time, history, interface, scoring
from felix.space import coordinates

#: Candidates that `Pool.apart` looks at for each that it takes.
LOOKED_AT = 32
#: Where `SelectionOptions.draw_scale` leaves it to the search, it is this or 0.
DRAW_SCALE = 0.25
#: The best candidates that `Pool.drawn` draws of, random others beside them, and draws.
DRAWN_FROM, DRAWN_BESIDE, N_DRAWS = 384, 256, 64
#: Sketch index and structure.
Kind = tuple[int, coordinates.Structure]


class Source(Enum):
    """Where a candidate came from."""

    DESCENT = "descent"
    POLISH = "polish"
    NEIGHBOUR = "neighbour"
    SAMPLE = "sample"


@dataclass(frozen=True, slots=True)
class Scored:
    """A new legal candidate with its own score."""

    sketch_index: int
    decisions: tuple[int, ...]
    structure: coordinates.Structure
    #: predicted ln(latency_us)
    score: float
    source: Source
    #: the score plus what building costs, in nats (`SelectionOptions.build_weight`)
    acquisition: float

    @property
    def key(self) -> interface.Key:
        """Identity of the candidate."""
        return self.sketch_index, self.decisions

    def candidate(self) -> interface.Candidate:
        """As a candidate."""
        # a model far from its data may say anything; exp must not overflow
        predicted_us = math.exp(min(max(self.score, -50.0), 50.0))
        return interface.Candidate(self.sketch_index, self.decisions, predicted_us)


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """Shares of the picks."""

    #: drawn at random among legal candidates of any predicted quality
    random_share: float = 0.1
    #: for neighbours of the best measured
    neighbour_share: float = 0.2
    #: most that one (sketch, structure) may take while others have candidates; less where some
    #: of its candidates failed. A template is all that there is of its kind, and may take all
    structure_share: float = 0.6
    #: a candidate waits while so many picks are one move away: they differ in at most two values,
    #: or one parameter of a template
    max_similar: int = 2
    #: nats that a candidate must be predicted faster by to be built e times as long
    build_weight: float = 0.04
    #: predicted seconds of a CUDA build beyond which a candidate is a fallback: half of what a
    #: builder has (`LocalOptions.build_timeout_s`), for long ones take 1.3 times what is predicted
    #: in the median, some twice as long (docs/design/measuring-cuda.md)
    max_compile_s: float = 3.0
    #: most that the sketches of one variant of the task may take while others have candidates
    variant_share: float = 0.85
    #: least that a kind of features gets of which nothing was proposed, while it has candidates
    kind_share: float = 0.25
    #: width of the draws of the model's error that candidates are taken by (`Pool.drawn`), in
    #: deviations of its posterior; 0: predictions as they are. None: what suits the search
    draw_scale: float | None = None


@dataclass(slots=True)
class Pool:
    """Candidates of one round."""

    scorer: scoring.Scorer
    past: history.History
    options: SelectionOptions = field(default_factory=SelectionOptions)
    #: fingerprints of what was proposed before, and of the candidates
    fingerprints: set[bytes] = field(default_factory=set)
    #: fingerprint -> predicted ln(latency_us), of all that were scored
    predictions: dict[bytes, float] = field(default_factory=dict)
    candidates: dict[interface.Key, Scored] = field(default_factory=dict)
    #: copies of the others or of what was proposed, and what takes too long to build
    fallback: dict[interface.Key, Scored] = field(default_factory=dict)
    #: candidates all of whose neighbours were added
    surrounded: set[interface.Key] = field(default_factory=set)

    def add(self, sketch_index: int, rows: Iterable[Sequence[int]], source: Source) -> None:
        """Score rows that are new; the legal ones become candidates."""
        fresh: dict[tuple[int, ...], None] = {}
        for row in rows:
            decisions = tuple(map(int, row))
            key = (sketch_index, decisions)
            if not (key in self.candidates or key in self.fallback or key in self.past):
                fresh[decisions] = None
        if fresh:
            self._admit(sketch_index, list(fresh), source)

    def _admit(
        self, sketch_index: int, decisions_list: Sequence[tuple[int, ...]], source: Source
    ) -> None:
        rows = np.asarray(decisions_list, np.int64)
        scores = self.scorer.score(sketch_index, rows, self.predictions)
        statements = scores.build.statements / build_time.FREE_STATEMENTS
        acquisition = scores.ln_latency + self.options.build_weight * np.log1p(statements)
        is_long = scores.build.compile_s > self.options.max_compile_s
        structural = coordinates.structural(self.scorer.sketches[sketch_index].variables)
        for row in np.flatnonzero(~np.isnan(scores.ln_latency)).tolist():
            decisions, fingerprint = decisions_list[row], bytes(scores.fingerprints[row])
            is_fallback = bool(is_long[row]) or fingerprint in self.fingerprints
            self.fingerprints.add(fingerprint)
            group = self.fallback if is_fallback else self.candidates
            group[(sketch_index, decisions)] = Scored(
                sketch_index,
                decisions,
                tuple(decisions[column] for column in structural),
                float(scores.ln_latency[row]),
                source,
                float(acquisition[row]),
            )

    def ranked(self) -> list[Scored]:
        """Lowest acquisition first; ties by key, so that the order is the same everywhere."""
        return _ranked(self.candidates.values())

    def drawn(self, scale: float, rng: np.random.Generator) -> list[Scored]:
        """`ranked`, but after the first come those that are the best in a draw of the posterior.

        Thompson sampling (Biometrika 25, 1933) of a batch: each draw says what all latencies may
        be, so picks are alike only as far as the model knows what it says of them.
        """
        ranked = self.ranked()
        if not ranked:
            return []
        best = ranked[:DRAWN_FROM]
        others = [ranked[i] for i in rng.permutation(len(ranked))[:DRAWN_BESIDE]]
        among = list({c.key: c for c in (*best, *others)}.values())
        normals = rng.standard_normal((len(among), N_DRAWS))
        deviations = self.scorer.deviations([c.key for c in among], normals)
        acquisition = np.array([c.acquisition for c in among])
        rows = best_of_draws(acquisition, scale * deviations).tolist()
        first = {among[row].key: among[row] for row in rows}
        return [*first.values(), *(c for c in ranked if c.key not in first)]

    def best(self, n: int, beside: Container[interface.Key] = ()) -> list[Scored]:
        """The first n of `ranked` whose keys are not in `beside`, without sorting all."""
        others = (c for key, c in self.candidates.items() if key not in beside)
        return heapq.nsmallest(n, others, key=_order)

    def apart(self, n: int, n_moves: int, beside: Container[interface.Key] = ()) -> list[Scored]:
        """The best n of which those of one sketch are more than so many moves from each other.

        Where the best `LOOKED_AT` n have fewer, the best others follow.
        """
        ranked = self.best(LOOKED_AT * n, beside)
        rows = {
            index: [row for row, c in enumerate(ranked) if c.sketch_index == index]
            for index in {c.sketch_index for c in ranked}
        }
        values = {i: np.asarray([ranked[row].decisions for row in own]) for i, own in rows.items()}
        chosen: list[Scored] = []
        is_near = np.zeros(len(ranked), bool)
        for row, candidate in enumerate(ranked):
            if len(chosen) == n:
                break
            if not is_near[row]:
                chosen.append(candidate)
                index, width = candidate.sketch_index, n_moves * self.move_width(candidate)
                n_differing = (values[index] != np.asarray(candidate.decisions)).sum(axis=1)
                is_near[rows[index]] |= n_differing <= width
        others = (c for c in ranked if c not in chosen)
        return [*chosen, *itertools.islice(others, n - len(chosen))]

    def move_width(self, candidate: Scored) -> int:
        """Values of a candidate that one move changes."""
        return _MOVE[self.scorer.kind_of(candidate.sketch_index)]

    def failures(self) -> dict[Kind, float]:
        """Share of the measured candidates that failed, of kinds with any: f / (n + 1)."""
        counts: dict[Kind, list[int]] = {}
        for (index, decisions), latency_us in self.past.measured.items():
            variables = self.scorer.sketches[index].variables
            count = counts.setdefault((index, coordinates.structure(variables, decisions)), [0, 0])
            count[0] += latency_us is None
            count[1] += 1
        return {kind: failed / (n + 1) for kind, (failed, n) in counts.items() if failed}


def best_of_draws(
    acquisition: NDArray[np.float64], deviations: NDArray[np.float64]
) -> NDArray[np.intp]:
    """The lowest row and those that are lowest in a draw, each once, in the order of the draws.

    Args:
        acquisition: of all rows [B].
        deviations: of their values from these in each draw [B, n].
    """
    lowest = (acquisition[:, None] + deviations).argmin(axis=0)
    return np.array(list(dict.fromkeys([int(acquisition.argmin()), *lowest.tolist()])), np.intp)


def select(
    pool: Pool, n: int, options: SelectionOptions, rng: np.random.Generator
) -> list[Scored]:
    """Up to n candidates: lowest acquisition, or lowest in a draw, first; random ones; fallbacks
    if need be."""
    scale = DRAW_SCALE if options.draw_scale is None else options.draw_scale
    ranked = pool.drawn(scale, rng) if scale else pool.ranked()
    fallback = _ranked(pool.fallback.values())[: max(0, n - len(ranked))]
    n = min(n, len(ranked))
    n_random = min(n, round(options.random_share * n)) if n > 1 else 0
    n_greedy = n - n_random
    limit = max(1, math.ceil(options.structure_share * n_greedy))
    limits = _limits(pool, limit, n_greedy)
    variants = [sketch.variant for sketch in pool.scorer.sketches]
    variant_limit = math.ceil((options.variant_share if len(set(variants)) > 1 else 1) * n_greedy)
    near = [c for c in ranked if c.source is Source.NEIGHBOUR]
    n_of_kind = math.ceil(options.kind_share * n_greedy)
    chosen: dict[interface.Key, Scored] = {}
    taken: dict[Kind, int] = {}
    taken_of: collections.Counter[Hashable] = collections.Counter()

    def take(candidates: list[Scored], upto: int, capped: bool) -> None:
        for candidate in candidates:
            if len(chosen) >= upto:
                return
            key = candidate.key
            kind = (candidate.sketch_index, candidate.structure)
            variant = variants[candidate.sketch_index]
            if key in chosen:
                continue
            is_full = taken.get(kind, 0) >= limits[kind]
            is_full = is_full or taken_of[variant] >= variant_limit
            width = pool.move_width(candidate)
            if capped and (is_full or _n_similar(candidate, chosen, width) >= options.max_similar):
                continue
            chosen[key] = candidate
            taken[kind] = taken.get(kind, 0) + 1
            taken_of[variant] += 1

    for of_kind in _of_new_kinds(ranked, pool):
        take(of_kind, min(n_greedy, len(chosen) + n_of_kind), True)
    take(near, round(options.neighbour_share * n_greedy), True)
    take(ranked, n_greedy, True)
    take(ranked, n_greedy, False)  # one structure, or one neighbourhood, is all there is
    greedy = _ranked(chosen.values())
    rest = [c for c in ranked if c.key not in chosen]
    picks = rng.permutation(len(rest))[:n_random]
    return [*greedy, *(rest[i] for i in picks), *fallback]


def _limits(pool: Pool, limit: int, n_greedy: int) -> dict[Kind, int]:
    """Most picks of the structures that have candidates: `limit`, all of a template."""
    failures = pool.failures()
    sketches = pool.scorer.sketches
    limits: dict[Kind, int] = {}
    for candidate in pool.candidates.values():
        kind = (candidate.sketch_index, candidate.structure)
        if kind not in limits:
            is_template = sketches[kind[0]].formulas.kind is FeatureKind.TEMPLATE
            most = n_greedy if is_template else limit
            limits[kind] = math.ceil(most * (1 - failures.get(kind, 0.0)))
    return limits


def _of_new_kinds(ranked: Sequence[Scored], pool: Pool) -> list[list[Scored]]:
    """The candidates of each kind of features of which nothing was proposed; none where all
    sketches are of one kind."""
    kinds = [sketch.formulas.kind for sketch in pool.scorer.sketches]
    proposed = {kinds[index] for index, _ in (*pool.past.measured, *pool.past.pending)}
    groups: dict[FeatureKind, list[Scored]] = {}
    for candidate in ranked:
        kind = kinds[candidate.sketch_index]
        if kind not in proposed:
            groups.setdefault(kind, []).append(candidate)
    return list(groups.values()) if len(set(kinds)) > 1 else []


def _ranked(candidates: Iterable[Scored]) -> list[Scored]:
    return sorted(candidates, key=_order)


def _order(candidate: Scored) -> tuple[float, int, tuple[int, ...]]:
    return candidate.acquisition, candidate.sketch_index, candidate.decisions


#: Values that one move changes: two factors of a tiling, or one parameter.
_MOVE = {FeatureKind.TRACE: 2, FeatureKind.TEMPLATE: 1}


def _n_similar(candidate: Scored, others: Iterable[interface.Key], width: int) -> int:
    """How many others of the same sketch differ from a candidate in at most `width` values."""
    return sum(
        sum(a != b for a, b in zip(decisions, candidate.decisions, strict=True)) <= width
        for sketch_index, decisions in others
        if sketch_index == candidate.sketch_index
    )
