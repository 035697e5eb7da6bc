"""Searches to compare with: random legal schedules, and evolution with the same model.

A round of evolution starts from legal samples and the best measured candidates, and for some
generations breeds by crossover and mutation, choosing parents by predicted latency (a tournament
of two).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from felix.search import base, interface, mutations, scoring, selection
from felix.space import sampling

#: Draws of n random samples before a space counts as exhausted.
MAX_DRAWS = 4


class RandomSearch(base.BaseSearch):
    """Legal random decisions, sketches in equal shares, none twice."""

    kind = "random"

    def _ask(self, n: int, rng: np.random.Generator) -> list[interface.Candidate]:
        chosen: dict[interface.Key, None] = {}
        for _ in range(MAX_DRAWS):
            per_sketch = []
            for index, sketch in enumerate(self.sketches):
                rows = scoring.legal_samples(sketch, n, rng, sampling.MAX_STRUCTURES)
                keys = dict.fromkeys((index, tuple(row)) for row in rows.tolist())
                per_sketch.append([k for k in keys if k not in self.history and k not in chosen])
            turns = max(map(len, per_sketch))
            for turn in range(turns):  # round robin over sketches
                for keys_of_sketch in per_sketch:
                    if turn < len(keys_of_sketch) and len(chosen) < n:
                        chosen[keys_of_sketch[turn]] = None
            if len(chosen) >= n:
                break
        return [interface.Candidate(index, decisions) for index, decisions in chosen]


@dataclass(frozen=True, slots=True)
class EvolutionOptions:
    """Sizes of a round (stock MetaSchedule: 4 generations of 512 to 2048)."""

    population: int = 1024
    generations: int = 8
    #: children made by crossover; the rest by mutation
    crossover_share: float = 0.3
    #: share of the first population taken from the best measured
    measured_share: float = 0.2
    #: structures of a sketch that a round may compile beyond those compiled before
    n_new_structures: int = 8
    selection: selection.SelectionOptions = field(default_factory=selection.SelectionOptions)


class EvolutionarySearch(base.BaseSearch):
    """See the module docstring; arguments as for `felix.search.GradientSearch`."""

    kind = "evolutionary"

    def __init__(
        self,
        sketches: Sequence[interface.Sketch],
        model: interface.CostModels,
        options: EvolutionOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sketches, model, seed)
        self.options = options or EvolutionOptions()
        self._moves = [mutations.Moves(s.variables) for s in sketches]

    def extend(self, sketches: Sequence[interface.Sketch]) -> None:
        """Search these sketches, too, from the next round on."""
        super().extend(sketches)
        self._moves += [mutations.Moves(s.variables) for s in sketches]

    def _ask(self, n: int, rng: np.random.Generator) -> list[interface.Candidate]:
        self.scorer.begin_round(self.options.n_new_structures)
        pool = self._pool(self.options.selection)
        size = max(1, self.options.population // len(self.sketches))
        for index, sketch in enumerate(self.sketches):
            limit = self.options.n_new_structures + 1
            samples = scoring.legal_samples(sketch, size, rng, limit)
            pool.add(index, samples.tolist(), selection.Source.SAMPLE)
            self._evolve(index, pool, size, rng)
        chosen = selection.select(pool, n, self.options.selection, rng)
        return [each.candidate() for each in chosen]

    def _evolve(
        self, index: int, pool: selection.Pool, size: int, rng: np.random.Generator
    ) -> None:
        """Generations of one sketch; every legal child enters the pool."""
        n_measured = round(self.options.measured_share * size)
        elite = [decisions for _, decisions in self.history.best(n_measured, index)]
        for generation in range(self.options.generations):
            scored = [c for c in pool.ranked() if c.sketch_index == index][:size]
            parents = [*elite, *(c.decisions for c in scored)]
            if not parents:
                return
            children = [self._child(index, parents, rng) for _ in range(size)]
            near = generation == 0 and bool(elite)
            source = selection.Source.NEIGHBOUR if near else selection.Source.POLISH
            pool.add(index, children, source)

    def _child(
        self, index: int, parents: Sequence[tuple[int, ...]], rng: np.random.Generator
    ) -> list[int]:
        """Parents are ranked, so the smaller of two random positions wins the tournament."""
        first = parents[int(rng.integers(0, len(parents), 2).min())]
        if rng.random() >= self.options.crossover_share:
            return self._moves[index].mutate(first, rng)
        second = parents[int(rng.integers(0, len(parents), 2).min())]
        return _crossover(self._moves[index].groups, first, second, rng)


def _crossover(
    groups: Sequence[list[int]], a: Sequence[int], b: Sequence[int], rng: np.random.Generator
) -> list[int]:
    """Each group from one parent or the other."""
    result = [int(v) for v in a]
    for group in groups:
        if rng.random() < 0.5:
            for position in group:
                result[position] = int(b[position])
    return result
