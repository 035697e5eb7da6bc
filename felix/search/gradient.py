"""The search: legal samples, exact ranking, polishing, descent, rounding, selection.

The first rounds are warm-up: legal samples, polished, so that the model is corrected before a
search goes on from what it is wrong about. Any other round (`ask`):
  1. samples legal decisions anew of a few sketches and scores all samples exactly (new structures
     are what makes sampling slow, and old samples are still good);
  2. polishes: for a few generations scores everything one small change away from the best found,
     exactly;
  3. descends from the best of all, under at most a few structures (structural choices have no
     gradient: they change between rounds, with the samples and by mutation), from all seeds of
     all sketches together (`search.descent`);
  4. rounds the points on the way to several legal decisions each (`search.rounding`), and polishes
     them with the rest: rounding leaves a point near an optimum of the relaxed problem, seldom on
     it;
  5. adds neighbours of the best measured and selects (`search.selection`).
With no structure to descend under (`n_structures` = 0) it is the strategy `local`: steps 3 and 4
are left out, and it polishes for as long.

A round depends only on the seed, its number, what was proposed and measured, and the model, so
the state to store is small and a resumed search goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from felix import errors, events
from felix.features.kind import FeatureKind
from felix.search import base, descent, interface, mutations, rounding, scoring, selection
from felix.space import coordinates


@dataclass(frozen=True, slots=True)
class GradientOptions:
    """Sizes of a round."""

    #: structures of a sketch that a round may compile beyond those compiled before: at least so
    #: many, and more where formulas are small, as many as have this many variables together
    n_new_structures: int = 1
    new_structure_variables: int = 24
    #: first rounds, which select by `warm_selection`
    n_warm_rounds: int = 1
    #: sketches that are sampled anew in a round after the first
    n_resampled: int = 2
    #: legal samples of a sketch
    n_samples: int = 128
    #: the same of a template: its formulas are small, and few of its rows are good
    n_template_samples: int = 512
    #: generations of polishing before the descent, which starts from the best of all; after it;
    #: and in a warm-up round
    n_before: int = 6
    n_polish: int = 10
    n_warm_polish: int = 16
    #: candidates of each generation that are surrounded, and moves that these, and the seeds of a
    #: descent, are more than from each other; 0: however near
    n_polished: int = 8
    n_moves_apart: int = 2
    #: structures that are descended in one round, and seeds of each. 0: nothing descends
    n_structures: int = 2
    n_seeds: int = 8
    #: few steps, cool at once and small: the seeds are good already
    descent: descent.DescentOptions = field(default_factory=descent.DescentOptions)
    #: roundings of each recorded point
    n_roundings: int = 4
    #: best measured candidates that get neighbours, and how many each
    n_parents: int = 4
    n_neighbours: int = 24
    #: of the warm-up rounds
    warm_selection: selection.SelectionOptions = field(default_factory=selection.SelectionOptions)
    selection: selection.SelectionOptions = field(default_factory=selection.SelectionOptions)


class GradientSearch(base.BaseSearch):
    """Search on exact formulas, their gradients and the cost model (`interface.Search`).

    Args:
        sketches: sketches of one task; a candidate's `sketch_index` counts in this order.
        model: predicts ln(latency_us), of all features or one for each kind; may be retrained or
            replaced (`model`) between rounds.
        options: sizes of a round.
        seed: everything random follows from it.
    """

    def __init__(
        self,
        sketches: Sequence[interface.Sketch],
        model: interface.CostModels,
        options: GradientOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sketches, model, seed)
        self.options = options or GradientOptions()
        self.kind = "gradient" if self.options.n_structures else "local"
        #: on a CPU a search that descends takes candidates by predictions as they are
        self._draws = sketches[0].is_gpu or not self.options.n_structures
        self._descent = descent.Descent(self.scorer, self.options.descent)
        self._moves: list[mutations.Moves] = []
        self._rounders: list[rounding.Rounder] = []
        self._add(sketches)
        #: the latest samples of each sketch
        self._samples: dict[int, interface.Decisions] = {}

    def _add(self, sketches: Sequence[interface.Sketch]) -> None:
        self._moves += [mutations.Moves(s.variables) for s in sketches]
        self._rounders += [rounding.Rounder(s.variables) for s in sketches]

    @property
    def descent_steps(self) -> list[events.DescentStep]:
        """How the descent of the last round went, at the recorded steps."""
        return self._descent.steps

    def extend(self, sketches: Sequence[interface.Sketch]) -> None:
        """Search these sketches, too, from the next round on."""
        super().extend(sketches)
        self._add(sketches)

    def adopt(self, searched: base.Round) -> None:
        """See `BaseSearch.adopt`."""
        super().adopt(searched)
        self._descent.steps = list(searched.steps)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        samples = [[index, rows.tolist()] for index, rows in sorted(self._samples.items())]
        return {**super().state_dict(), "samples": samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state; see `BaseSearch.load_state_dict`."""
        super().load_state_dict(state)
        try:
            self._samples = {
                int(index): np.asarray(rows, np.int64).reshape(
                    len(rows), len(self.sketches[index].variables)
                )
                for index, rows in state["samples"]
            }
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise errors.RecordError(f"cannot read the state of a search: {error!r}") from error

    def _ask(self, n: int, rng: np.random.Generator) -> list[interface.Candidate]:
        options = self.options
        self._descent.steps = []
        self.scorer.begin_round([self._n_new_structures(i) for i in range(len(self.sketches))])
        pool = self._pool(options.selection)
        self._sample(n, rng)
        for index, samples in sorted(self._samples.items()):
            pool.add(index, samples.tolist(), selection.Source.SAMPLE)
        if self.round <= options.n_warm_rounds:
            rule = options.warm_selection
            self._polish(pool, options.n_warm_polish)
        else:
            rule = options.selection
            self._polish(pool, options.n_before)
            self._descend(pool)
            self._polish(pool, options.n_polish)
            for index, decisions in self.history.best(options.n_parents):
                near = self._moves[index].neighbours(decisions, options.n_neighbours, rng)
                pool.add(index, near, selection.Source.NEIGHBOUR)
        if not (pool.candidates or pool.fallback):
            # what samples and polishing missed of a small space: neighbours of all proposed
            for index, decisions in sorted((*self.history.measured, *self.history.pending)):
                pool.add(index, self._moves[index].around(decisions), selection.Source.NEIGHBOUR)
        if rule.draw_scale is None and not self._draws:
            rule = replace(rule, draw_scale=0.0)
        return [each.candidate() for each in selection.select(pool, n, rule, rng)]

    def _sample(self, n: int, rng: np.random.Generator) -> None:
        """New samples: of all sketches at first, then of a few at random."""
        missing = [i for i in range(len(self.sketches)) if i not in self._samples]
        order = rng.permutation(len(self.sketches)).tolist()
        for index in sorted(missing or order[: self.options.n_resampled]):
            is_template = self.scorer.kind_of(index) is FeatureKind.TEMPLATE
            wished = self.options.n_template_samples if is_template else self.options.n_samples
            count = max(wished, n)
            self._samples[index] = scoring.legal_samples(
                self.sketches[index], count, rng, self._n_new_structures(index) + 1
            )

    def _n_new_structures(self, index: int) -> int:
        """How many structures of a sketch a round may compile: compiling grows with variables."""
        n_variables = len(self.sketches[index].variables)
        n_small = self.options.new_structure_variables // max(1, n_variables)
        return max(self.options.n_new_structures, n_small)

    def _polish(self, pool: selection.Pool, generations: int) -> None:
        """Surround the best candidates that have not been surrounded yet."""
        for _ in range(generations):
            options = self.options
            parents = pool.apart(options.n_polished, options.n_moves_apart, pool.surrounded)
            pool.surrounded.update(c.key for c in parents)
            for index, moves in enumerate(self._moves):
                own = (c.decisions for c in parents if c.sketch_index == index)
                rows = [row for decisions in own for row in moves.around(decisions)]
                pool.add(index, rows, selection.Source.POLISH)

    def _descend(self, pool: selection.Pool) -> None:
        """Add roundings of where a descent from the best candidates leads."""
        for visited in self._descent.run(self._best(pool)):
            index = visited.entry.sketch_index
            rounded, _ = self._rounders[index].round(visited.values, self.options.n_roundings)
            rows = rounded.reshape(-1, rounded.shape[-1]).tolist()
            pool.add(index, rows, selection.Source.DESCENT)

    def _best(self, pool: selection.Pool) -> list[descent.Entry]:
        """Entries of the best candidates of all sketches, those of the best structures."""
        options = self.options
        if not options.n_structures:
            return []
        groups: dict[tuple[int, coordinates.Structure], list[tuple[int, ...]]] = {}
        for candidate in pool.apart(2 * options.n_seeds, options.n_moves_apart):
            if not all(v.structural for v in self.sketches[candidate.sketch_index].variables):
                key = (candidate.sketch_index, candidate.structure)
                groups.setdefault(key, []).append(candidate.decisions)
        return [
            descent.Entry(index, structure, np.asarray(rows[: options.n_seeds], np.int64))
            for (index, structure), rows in list(groups.items())[: options.n_structures]
        ]
