"""The gradient search: legal seeds, descent, rounding, exact ranking, selection.

The first rounds are warm-up: legal samples, half of them the best predicted and half random, so
that the model is corrected before a descent exploits what it is wrong about. Any other round
(`suggest`):
  1. sample legal decisions anew of a few sketches and score all samples exactly (new structures
     are what makes sampling slow, and old samples are still good);
  2. take seeds from the best of them, from random ones and from the best measured so far,
     under at most a few structures a sketch (structural choices have no gradient: they change
     between rounds, with the samples and by mutation), of the sketches that promise most;
  3. descend from all seeds of all sketches together (`search.descent`);
  4. round the points on the way to several legal decisions each (`search.rounding`);
  5. polish: for a few generations score everything one small change away from the best found,
     exactly; rounding leaves a point near an optimum of the relaxed problem, seldom on it;
  6. add neighbours of the best measured and select (`search.selection`).

A round depends only on the seed, its number, what was proposed and measured, and the model, so
the state to store is small and a resumed search goes on as if it had never stopped.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from felix import errors, events
from felix.features.kind import FeatureKind
from felix.search import descent, interface, mutations, rounding, scoring, selection
from felix.search.strategies import base
from felix.sketch import coordinates


@dataclass(frozen=True, slots=True)
class GradientOptions:
    """Sizes of a round."""

    #: seeds of a sketch
    n_seeds: int = 8
    #: structures of a sketch that are descended in one round
    n_structures: int = 2
    #: (sketch, structure) pairs that are descended in one round: those of the best seeds, and one
    #: at random
    n_entries: int = 8
    #: structures of a sketch that a round may compile beyond those compiled before: at least so
    #: many, and more where formulas are small, as many as have this many variables together
    n_new_structures: int = 1
    new_structure_variables: int = 24
    #: first rounds that take samples instead of descending
    n_warm_rounds: int = 1
    #: sketches that are sampled anew in a round after the first
    n_resampled: int = 2
    #: legal samples of a sketch, from which seeds are taken
    n_samples: int = 64
    #: the same of a template: its formulas are small, and few of its rows are good
    n_template_samples: int = 512
    #: share of the seeds that start at the best measured candidates
    measured_share: float = 0.25
    #: share of the seeds that start at random samples; the rest are the best predicted
    random_share: float = 0.25
    #: roundings of each recorded point
    n_roundings: int = 4
    #: generations of polishing, and candidates of each that are surrounded
    n_polish: int = 8
    n_polished: int = 8
    #: best measured candidates that get neighbours, and how many each
    n_parents: int = 4
    n_neighbours: int = 24
    descent: descent.DescentOptions = field(default_factory=descent.DescentOptions)
    #: of the warm-up rounds
    warm_selection: selection.SelectionOptions = field(
        default_factory=lambda: selection.SelectionOptions(random_share=0.5)
    )
    selection: selection.SelectionOptions = field(default_factory=selection.SelectionOptions)


class GradientSearch(base.ModelSearch):
    """Multi-seed gradient descent through the formulas and the cost model (`interface.Search`).

    Args:
        sketches: sketches of one task; a suggestion's `sketch_index` counts in this order.
        model: predicts ln(latency_us), of all features or one for each kind; may be retrained or
            replaced (`model`) between rounds.
        options: sizes of a round.
        seed: everything random follows from it.
    """

    kind = "gradient"

    def __init__(
        self,
        sketches: Sequence[interface.Sketch],
        model: interface.CostModels,
        options: GradientOptions | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(sketches, model, seed)
        self.options = options or GradientOptions()
        self._descent = descent.Descent(self.scorer, self.options.descent)
        self._rounders = [rounding.Rounder(s.variables) for s in sketches]
        self._moves = [mutations.Moves(s.variables) for s in sketches]
        #: the latest samples of each sketch
        self._samples: dict[int, interface.Decisions] = {}

    def extend(self, sketches: Sequence[interface.Sketch]) -> None:
        """Search these sketches, too, from the next round on."""
        super().extend(sketches)
        self._rounders += [rounding.Rounder(s.variables) for s in sketches]
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

    def adopt(self, searched: base.Round) -> None:
        """See `BaseSearch.adopt`."""
        super().adopt(searched)
        self._descent.steps = list(searched.steps)

    def _candidates(self, n: int, rng: np.random.Generator) -> list[selection.Candidate]:
        self.scorer.begin_round([self._n_new_structures(i) for i in range(len(self.sketches))])
        pool = self._pool(self.options.selection)
        self._sample(n, rng)
        for index, samples in sorted(self._samples.items()):
            pool.add(index, samples.tolist(), selection.Source.SAMPLE)
        rule = self.options.selection
        if self.round <= self.options.n_warm_rounds:
            self._descent.steps = []
            rule = self.options.warm_selection
        else:
            self._descend(pool, rng)
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

    def _descend(self, pool: selection.Pool, rng: np.random.Generator) -> None:
        """Everything that a round adds to its samples."""
        entries = self._promising(pool, rng) if self.options.descent.steps else []
        for visited in self._descent.run(entries):
            index = visited.entry.sketch_index
            rounded, _ = self._rounders[index].round(visited.values, self.options.n_roundings)
            rows = rounded.reshape(-1, rounded.shape[-1]).tolist()
            pool.add(index, rows, selection.Source.DESCENT)
        self._polish(pool)
        for index, decisions in self.history.best(self.options.n_parents):
            near = self._moves[index].neighbours(decisions, self.options.n_neighbours, rng)
            pool.add(index, near, selection.Source.NEIGHBOUR)

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

    @property
    def descent_steps(self) -> list[events.DescentStep]:
        """How the descent of the last round went, at the recorded steps."""
        return self._descent.steps

    def _polish(self, pool: selection.Pool) -> None:
        """Surround the best candidates that have not been surrounded yet."""
        done: set[interface.Key] = set()
        for _ in range(self.options.n_polish):
            parents = pool.best(self.options.n_polished, done)
            done.update(c.key for c in parents)
            for index in range(len(self.sketches)):
                rows = [r for c in parents if c.sketch_index == index
                        for r in self._moves[index].around(c.decisions)]  # fmt: skip
                pool.add(index, rows, selection.Source.DESCENT)

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
