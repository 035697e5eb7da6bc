"""What the searches take and give: candidates, measurements, sketches, cost models.

A search follows one protocol (`Search`): `ask` what to measure, `tell` what was
measured. Candidates stay *pending* until they are told of, so the next round can be searched
while the last one is still being measured.

Units: latencies in microseconds; a cost model predicts ln(latency_us).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from felix.features.kind import FeatureKind

if TYPE_CHECKING:
    import torch

    from felix.space.formula_cache import StructureFormulas as StructureFormulas
    from felix.space.sketch import Sketch as Sketch
    from felix.symbolic.interpret import Instruction as Instruction

Array = NDArray[np.float64]
#: Decisions, one row a candidate, one column a variable.
Decisions = NDArray[np.int64]
#: Sketch index and decisions: what makes two candidates the same.
Key = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule to measure."""

    sketch_index: int
    decisions: tuple[int, ...]
    #: What the cost model expects; None where it was not asked.
    predicted_us: float | None = None

    @property
    def key(self) -> Key:
        """Identity of the candidate: equal decisions of two sketches are two candidates."""
        return self.sketch_index, self.decisions


#: rows [batch, n_rows, n_features], mask [batch, n_rows] -> ln(latency_us) [batch].
CostModel = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
#: One model for all sketches, or one for each kind of features.
CostModels = CostModel | Mapping[FeatureKind, CostModel]


@runtime_checkable
class ProbabilisticModel(Protocol):
    """A cost model that knows how sure it is."""

    def deviations(
        self, rows: torch.Tensor, mask: torch.Tensor, normals: torch.Tensor, /
    ) -> torch.Tensor:
        """Draws of ln(latency_us) of B programs less its mean [B, n], of standard normal numbers
        [B, n]; a column is one draw of all programs."""
        ...


class Search(Protocol):
    """One way to choose what to measure next.

    Deterministic under its seed: the same calls give the same candidates. `ask` never
    returns a candidate that is pending or measured; an empty list says that it found no new
    legal one (a small space is exhausted).
    """

    def ask(self, n: int) -> list[Candidate]:
        """Up to n new candidates, best first; they are pending until `tell`."""
        ...

    def tell(self, results: Sequence[tuple[Candidate, float | None]]) -> None:
        """Learn latencies in us, None of what failed; of own candidates or of others."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, as JSON-able values (the cost model is not included)."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        ...
