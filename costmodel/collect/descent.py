"""Descent on the current cost model, as a source of schedules to collect.

A data set that covers where descent goes must be collected by descending. Rounds are small
and all of them descend, because in a collection the model only has to show where it leads, and
hundreds of workloads take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from felix.search import descent, gradient

if TYPE_CHECKING:
    from felix.search import interface

SMALL_ROUNDS = gradient.GradientOptions(
    n_before=0,
    n_seeds=4,
    n_structures=8,
    n_new_structures=1,
    n_warm_rounds=0,
    n_samples=48,
    n_template_samples=128,
    n_polish=2,
    n_polished=4,
    descent=descent.DescentOptions(steps=60, hot=0.5, learning_rate=0.2, record_every=20),
)


def search(
    sketches: Sequence[interface.Sketch], model: interface.CostModel, seed: int
) -> gradient.GradientSearch:
    """A gradient search with small rounds; `model` predicts ln(latency_us)."""
    return gradient.GradientSearch(list(sketches), model, SMALL_ROUNDS, seed=seed)
