"""Random legal schedules: the baseline that every search has to beat."""

from __future__ import annotations

import numpy as np

from felix.search import interface, scoring
from felix.search.strategies import base
from felix.sketch import sampling

#: Draws of n samples before a space counts as exhausted.
MAX_DRAWS = 4


class RandomSearch(base.BaseSearch):
    """Legal random decisions, sketches in equal shares, none twice."""

    kind = "random"

    def _suggest(self, n: int, rng: np.random.Generator) -> list[interface.Suggestion]:
        chosen: dict[interface.Key, None] = {}
        n_considered = n_new = 0
        for _ in range(MAX_DRAWS):
            per_sketch = []
            for index, sketch in enumerate(self.sketches):
                rows = scoring.legal_samples(sketch, n, rng, sampling.MAX_STRUCTURES)
                n_considered += len(rows)
                keys = dict.fromkeys((index, tuple(row)) for row in rows.tolist())
                per_sketch.append([k for k in keys if k not in self.history and k not in chosen])
            n_new += sum(map(len, per_sketch))
            turns = max(map(len, per_sketch))
            for turn in range(turns):  # round robin over sketches
                for keys_of_sketch in per_sketch:
                    if turn < len(keys_of_sketch) and len(chosen) < n:
                        chosen[keys_of_sketch[turn]] = None
            if len(chosen) >= n:
                break
        self.statistics = base.Statistics(n_considered, n_new, n_new)
        return [interface.Suggestion(index, decisions) for index, decisions in chosen]
