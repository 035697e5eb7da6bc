"""The gradient search: a local search (`local`) that descends before it polishes.

A round that is no warm-up also
  1. polishes its samples for a few generations and takes the best of all as seeds, under at most a
     few structures (structural choices have no gradient: they change between rounds, with the
     samples and by mutation);
  2. descends from all seeds of all sketches together (`search.descent`);
  3. rounds the points on the way to several legal decisions each (`search.rounding`), which are
     polished with the rest: rounding leaves a point near an optimum of the relaxed problem,
     seldom on it.
Without polishing before (`n_before` = 0) seeds are taken from the best of the samples, from random
ones and from the best measured so far, of the sketches that promise most.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from felix import events
from felix.search import descent, interface, rounding, selection
from felix.search.strategies import base, local
from felix.sketch import coordinates

#: By predictions as they are: on a CPU, where this search is the default, draws gained nothing
#: (docs/design/gradients.md). Other `SelectionOptions` draw unless told not to.
_by_mean = functools.partial(selection.SelectionOptions, draw_scale=0.0)


@dataclass(frozen=True, slots=True)
class GradientOptions(local.LocalOptions):
    """Sizes of a round."""

    #: generations of polishing before the descent, which then starts from the best of all
    n_before: int = 6
    #: and after it
    n_polish: int = 10
    #: seeds of a structure, and structures that are descended in one round; without polishing
    #: before both are of each sketch
    n_seeds: int = 8
    n_structures: int = 2
    #: without polishing before: (sketch, structure) pairs that are descended in one round, those
    #: of the best seeds and one at random; shares of the seeds that start at the best measured
    #: candidates and at random samples, where the rest are the best predicted
    n_entries: int = 8
    measured_share: float = 0.25
    random_share: float = 0.25
    #: roundings of each recorded point
    n_roundings: int = 4
    #: few steps, cool at once and small: the seeds are good already
    descent: descent.DescentOptions = field(
        default_factory=lambda: descent.DescentOptions(steps=10, hot=0.15, learning_rate=0.1)
    )
    warm_selection: selection.SelectionOptions = field(default_factory=_by_mean)
    selection: selection.SelectionOptions = field(default_factory=_by_mean)


class GradientSearch(local.LocalSearch):
    """Local search with multi-seed descent through the formulas and the cost model.

    Args:
        sketches, model, seed: as of `LocalSearch`.
        options: sizes of a round.
    """

    kind = "gradient"
    options: GradientOptions
    #: moves the seeds
    descent_kind: type[descent.Descent] = descent.Descent

    def __init__(
        self,
        sketches: Sequence[interface.Sketch],
        model: interface.CostModels,
        options: GradientOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sketches, model, options or GradientOptions(), seed)
        self._descent = self.descent_kind(self.scorer, self.options.descent)
        self._rounders = [rounding.Rounder(s.variables) for s in sketches]

    def extend(self, sketches: Sequence[interface.Sketch]) -> None:
        """Search these sketches, too, from the next round on."""
        super().extend(sketches)
        self._rounders += [rounding.Rounder(s.variables) for s in sketches]

    @property
    def descent_steps(self) -> list[events.DescentStep]:
        """How the descent of the last round went, at the recorded steps."""
        return self._descent.steps

    def adopt(self, searched: base.Round) -> None:
        """See `BaseSearch.adopt`."""
        super().adopt(searched)
        self._descent.steps = list(searched.steps)

    def _candidates(self, n: int, rng: np.random.Generator) -> list[selection.Candidate]:
        self._descent.steps = []
        return super()._candidates(n, rng)

    def _improve(self, pool: selection.Pool, rng: np.random.Generator) -> None:
        if self.options.n_before:
            self._polish(pool, self.options.n_before)
            entries = self._best(pool)
        else:
            entries = self._promising(pool, rng)
        for visited in self._descent.run(entries):
            index = visited.entry.sketch_index
            rounded, _ = self._rounders[index].round(visited.values, self.options.n_roundings)
            rows = rounded.reshape(-1, rounded.shape[-1]).tolist()
            pool.add(index, rows, selection.Source.DESCENT)
        super()._improve(pool, rng)

    def _best(self, pool: selection.Pool) -> list[descent.Entry]:
        """Entries of the best candidates of all sketches, those of the best structures."""
        groups: dict[tuple[int, coordinates.Structure], list[tuple[int, ...]]] = {}
        for candidate in pool.apart(2 * self.options.n_seeds, self.options.n_moves_apart):
            if not all(v.structural for v in self.sketches[candidate.sketch_index].variables):
                key = (candidate.sketch_index, candidate.structure)
                groups.setdefault(key, []).append(candidate.decisions)
        return [
            descent.Entry(index, structure, np.asarray(rows[: self.options.n_seeds], np.int64))
            for (index, structure), rows in list(groups.items())[: self.options.n_structures]
        ]

    def _promising(self, pool: selection.Pool, rng: np.random.Generator) -> list[descent.Entry]:
        """Entries of all sketches whose best seed is predicted best, and one at random."""
        ranked = pool.ranked()
        entries = [e for i in range(len(self.sketches)) for e in self._entries(i, ranked, rng)]
        limit = self._n_entries(entries)
        if len(entries) <= limit:
            return entries
        best: list[float] = []
        for entry in entries:
            scores = self.scorer.score(entry.sketch_index, entry.starts).ln_latency
            best.append(float(np.nanmin(scores)) if np.isfinite(scores).any() else np.inf)
        order = np.argsort(best, kind="stable").tolist()
        chosen, rest = order[: limit - 1], order[limit - 1 :]
        chosen.append(rest[int(rng.integers(len(rest)))])
        return [entries[i] for i in sorted(chosen)]

    def _n_entries(self, entries: Sequence[descent.Entry]) -> int:
        """At most as many as the program with most of them has, or one for each program: variants
        of a task add choice and hardly any descents."""
        programs = collections.Counter(self.sketches[e.sketch_index].variant for e in entries)
        most = max([len(programs), *programs.values()])
        return max(1, min(self.options.n_entries, most))

    def _entries(
        self, index: int, legal: Sequence[selection.Candidate], rng: np.random.Generator
    ) -> list[descent.Entry]:
        """Seeds of one sketch, grouped by structure; none where nothing has a gradient."""
        variables = self.sketches[index].variables
        if all(variable.structural for variable in variables):
            return []
        ranked = self._ranked_seeds(index, legal, rng)
        if not ranked:
            return []
        groups: dict[coordinates.Structure, list[tuple[int, ...]]] = {}
        for row in ranked:
            groups.setdefault(coordinates.structure(variables, row), []).append(row)
        chosen = list(groups)[: max(1, self.options.n_structures - 1)]
        others = list(groups)[len(chosen) :]
        if others and self.options.n_structures > 1:
            chosen.append(others[int(rng.integers(len(others)))])
        share = -(-self.options.n_seeds // len(chosen))
        return [
            descent.Entry(index, structure, np.asarray(groups[structure][:share], np.int64))
            for structure in chosen
        ]

    def _ranked_seeds(
        self, index: int, legal: Sequence[selection.Candidate], rng: np.random.Generator
    ) -> list[tuple[int, ...]]:
        """Distinct starts: best measured, best predicted and random ones, the former first.

        More than `n_seeds` are returned, so that every structure finds its own.
        """
        options = self.options
        n_measured = round(options.measured_share * options.n_seeds)
        n_random = round(options.random_share * options.n_seeds)
        measured = [decisions for _, decisions in self.history.best(n_measured, index)]
        by_score = [c.decisions for c in legal if c.sketch_index == index]
        n_best = max(0, options.n_seeds - len(measured) - n_random)
        shuffled = [by_score[i] for i in rng.permutation(len(by_score))]
        ordered = [*measured, *by_score[:n_best], *shuffled[:n_random], *by_score]
        return list(dict.fromkeys(ordered))
