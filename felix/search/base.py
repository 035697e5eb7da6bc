"""What a search of any kind has: history, scores, seeds of rounds, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix import errors, events
from felix.search import history, interface, scoring, selection
from felix.space import coordinates

#: Exact features of one candidate [R, F].
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round as `BaseSearch.run_round` gives it, for a search of the same state elsewhere."""

    candidates: Sequence[interface.Candidate]
    #: of the search after the round, without its history
    state: dict[str, Any]
    steps: Sequence[events.DescentStep]
    #: of each candidate
    features: Sequence[Rows]


class BaseSearch:
    """History, scores, rounds and state; a subclass adds `kind` and `_ask`."""

    #: what a stored state is of
    kind: str

    def __init__(
        self, sketches: Sequence[interface.Sketch], model: interface.CostModels, seed: int = 0
    ) -> None:
        if not sketches:
            raise ValueError("a search needs at least one sketch")
        self.sketches = list(sketches)
        self.scorer = scoring.Scorer(self.sketches, model)
        self.seed = seed
        self.round = 0
        self.history = history.History()
        #: of what was proposed; made from the history where it is missing
        self._fingerprints: dict[interface.Key, bytes] = {}
        #: of candidates that were searched elsewhere
        self._features: dict[interface.Key, Rows] = {}

    @property
    def model(self) -> interface.CostModels:
        """The cost model, or one for each kind of features; assign to replace it."""
        return self.scorer.model

    @model.setter
    def model(self, model: interface.CostModels) -> None:
        self.scorer.model = model

    @property
    def descent_steps(self) -> list[events.DescentStep]:
        """How the descent of the last round went, at the recorded steps; empty without one."""
        return []

    def ask(self, n: int) -> list[interface.Candidate]:
        """Up to n new candidates; see `interface.Search`."""
        rng = np.random.default_rng([self.seed, self.round])
        self.round += 1
        candidates = self._ask(n, rng) if n > 0 else []
        self.history.propose(candidates)
        return candidates

    def tell(self, results: Sequence[tuple[interface.Candidate, float | None]]) -> None:
        """Learn measurements."""
        self.history.record(results)

    def extend(self, sketches: Sequence[interface.Sketch]) -> None:
        """Search these sketches, too, from the next round on."""
        self.sketches += sketches

    def _ask(self, n: int, rng: np.random.Generator) -> list[interface.Candidate]:
        raise NotImplementedError

    def features_of(self, candidate: interface.Candidate) -> Rows:
        """Exact features of a candidate [R, F], as the search ranked it."""
        if candidate.key in self._features:
            return self._features.pop(candidate.key)  # nobody asks twice
        index, decisions = candidate.sketch_index, candidate.decisions
        structure = coordinates.structure(self.sketches[index].variables, decisions)
        rows = self.scorer.features(index, structure, np.asarray([decisions], np.float64))
        return np.asarray(rows[0], np.float32)

    def run_round(self, n: int) -> Round:
        """`ask`, with what a search elsewhere needs to `adopt` the round."""
        candidates = self.ask(n)
        state = {name: value for name, value in self.state_dict().items() if name != "history"}
        return Round(
            candidates=candidates,
            state=state,
            steps=self.descent_steps,
            features=[self.features_of(candidate) for candidate in candidates],
        )

    def adopt(self, searched: Round) -> None:
        """Take over a round that began with the state that this search had.

        What was measured since then stays known.

        Raises:
            RecordError: the round is of another kind of search, or of other sketches.
        """
        self.load_state_dict({**searched.state, "history": self.history.state_dict()})
        self.history.propose(searched.candidates)
        keys = [candidate.key for candidate in searched.candidates]
        self._features.update(zip(keys, searched.features, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "kind": self.kind,
            "seed": self.seed,
            "round": self.round,
            "history": self.history.state_dict(),
            "structures": [[i, list(structure)] for i, structure in sorted(self.scorer.known)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state.

        Candidates that were pending stay so; a caller that lost them forgets them with
        `forget_pending`.

        Raises:
            RecordError: the state is malformed or of another kind of search.
        """
        try:
            kind, seed, number = state["kind"], int(state["seed"]), int(state["round"])
            past = state["history"]
            known = {(int(i), tuple(int(v) for v in s)) for i, s in state["structures"]}
        except (KeyError, TypeError, ValueError) as error:
            raise errors.RecordError(f"cannot read the state of a search: {error!r}") from error
        if kind != self.kind:
            raise errors.RecordError(f"the state is of a {kind!r} search, not {self.kind!r}")
        self.history.load_state_dict(past)
        self.seed, self.round, self.scorer.known = seed, number, known

    def forget_pending(self, keys: Iterable[interface.Key] | None = None) -> None:
        """Make pending candidates available again, all or these: their measurements were lost."""
        self.history.pending.difference_update(
            list(self.history.pending if keys is None else keys)
        )

    def _pool(self, options: selection.SelectionOptions) -> selection.Pool:
        """The empty pool of a round, which knows what was proposed before."""
        proposed = [*self.history.measured, *self.history.pending]
        for index in range(len(self.sketches)):
            fresh = [k for k in proposed if k[0] == index and k not in self._fingerprints]
            if fresh:
                rows = np.asarray([decisions for _, decisions in fresh], np.int64)
                made = self.scorer.fingerprints(index, rows).tolist()
                self._fingerprints.update(zip(fresh, made, strict=True))
        fingerprints = {self._fingerprints[key] for key in proposed}
        return selection.Pool(self.scorer, self.history, options, fingerprints)
