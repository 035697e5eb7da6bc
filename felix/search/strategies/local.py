"""The local search: legal samples, exact ranking, polishing, selection. It takes no gradients.

The first rounds are warm-up: legal samples, polished, so that the model is corrected before a
search goes on from what it is wrong about. Any other round (`suggest`):
  1. sample legal decisions anew of a few sketches and score all samples exactly (new structures
     are what makes sampling slow, and old samples are still good);
  2. polish: for a few generations score everything one small change away from the best found,
     exactly;
  3. add neighbours of the best measured and select (`search.selection`).

A round depends only on the seed, its number, what was proposed and measured, and the model, so
the state to store is small and a resumed search goes on as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from felix import errors
from felix.features.kind import FeatureKind
from felix.search import interface, mutations, scoring, selection
from felix.search.strategies import base

#: Times the latency of the fastest kind of features beyond which another is polished no more,
#: where each is polished (`LocalOptions.polishes_each_kind`).
FAR_BEHIND = 2.0


@dataclass(frozen=True, slots=True)
class LocalOptions:
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
    #: generations of polishing, and candidates of each that are surrounded
    n_polish: int = 16
    n_polished: int = 8
    #: whether kinds of features share these equally, because their models may be wrong by
    #: different factors; a kind that is `FAR_BEHIND` then has none
    polishes_each_kind: bool = False
    #: moves that these are more than from each other; 0: however near
    n_moves_apart: int = 2
    #: generations of polishing in a warm-up round
    n_warm_polish: int = 16
    #: best measured candidates that get neighbours, and how many each
    n_parents: int = 4
    n_neighbours: int = 24
    #: of the warm-up rounds
    warm_selection: selection.SelectionOptions = field(default_factory=selection.SelectionOptions)
    selection: selection.SelectionOptions = field(default_factory=selection.SelectionOptions)


class LocalSearch(base.ModelSearch):
    """Local search on exact formulas and the cost model (`interface.Search`).

    Args:
        sketches: sketches of one task; a suggestion's `sketch_index` counts in this order.
        model: predicts ln(latency_us), of all features or one for each kind; may be retrained or
            replaced (`model`) between rounds.
        options: sizes of a round.
        seed: everything random follows from it.
    """

    kind = "local"
    options: LocalOptions

    def __init__(
        self,
        sketches: Sequence[interface.Sketch],
        model: interface.CostModels,
        options: LocalOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sketches, model, seed)
        self.options = options or LocalOptions()
        self._moves = [mutations.Moves(s.variables) for s in sketches]
        #: the latest samples of each sketch
        self._samples: dict[int, interface.Decisions] = {}

    def extend(self, sketches: Sequence[interface.Sketch]) -> None:
        """Search these sketches, too, from the next round on."""
        super().extend(sketches)
        self._moves += [mutations.Moves(s.variables) for s in sketches]

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

    def _candidates(self, n: int, rng: np.random.Generator) -> list[selection.Candidate]:
        self.scorer.begin_round([self._n_new_structures(i) for i in range(len(self.sketches))])
        pool = self._pool(self.options.selection)
        self._sample(n, rng)
        for index, samples in sorted(self._samples.items()):
            pool.add(index, samples.tolist(), selection.Source.SAMPLE)
        rule = self.options.selection
        if self.round <= self.options.n_warm_rounds:
            rule = self.options.warm_selection
            self._polish(pool, self.options.n_warm_polish)
        else:
            self._improve(pool, rng)
        if not (pool.candidates or pool.fallback):
            self._surround_proposed(pool)
        self.statistics = base.Statistics(pool.n_considered, pool.n_new, pool.n_legal)
        return selection.select(pool, n, rule, rng)

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
        return max(
            self.options.n_new_structures,
            self.options.new_structure_variables // max(1, n_variables),
        )

    def _improve(self, pool: selection.Pool, rng: np.random.Generator) -> None:
        """Everything that a round adds to its samples."""
        self._polish(pool, self.options.n_polish)
        for index, decisions in self.history.best(self.options.n_parents):
            near = self._moves[index].neighbours(decisions, self.options.n_neighbours, rng)
            pool.add(index, near, selection.Source.NEIGHBOUR)

    def _surround_proposed(self, pool: selection.Pool) -> None:
        """Add what samples and polishing missed of a small space: neighbours of all proposed."""
        for index, decisions in sorted((*self.history.measured, *self.history.pending)):
            pool.add(index, self._moves[index].around(decisions), selection.Source.NEIGHBOUR)

    def _polish(self, pool: selection.Pool, generations: int) -> None:
        """Surround the best candidates that have not been surrounded yet."""
        groups = self._polished_together()
        share = math.ceil(self.options.n_polished / len(groups))
        for _ in range(generations):
            parents = [
                candidate
                for kinds in groups
                for candidate in pool.apart(
                    share, self.options.n_moves_apart, pool.surrounded, kinds
                )
            ]
            pool.surrounded.update(c.key for c in parents)
            for index in range(len(self.sketches)):
                rows = [
                    r
                    for c in parents
                    if c.sketch_index == index
                    for r in self._moves[index].around(c.decisions)
                ]
                pool.add(index, rows, selection.Source.POLISH)

    def _polished_together(self) -> list[list[FeatureKind]]:
        """Groups of kinds of features that have as many parents: each kind of the sketches, but
        those whose best measured is far behind."""
        kinds = list(dict.fromkeys(map(self.scorer.kind_of, range(len(self.sketches)))))
        if not self.options.polishes_each_kind:
            return [kinds]
        fastest_us: dict[FeatureKind, float] = {}
        for (index, _), latency_us in self.history.measured.items():
            if latency_us is not None:
                kind = self.scorer.kind_of(index)
                fastest_us[kind] = min(latency_us, fastest_us.get(kind, latency_us))
        limit_us = FAR_BEHIND * min(fastest_us.values(), default=0.0)
        return [[kind] for kind in kinds if fastest_us.get(kind, 0.0) <= limit_us]
