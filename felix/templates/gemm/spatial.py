"""The axes of the result of a product: batches, rows and columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from felix.templates.gemm import problem
from felix.templates.gemm.axes import Axis, Group

#: Batch axes that a problem may have.
MAX_BATCH_AXES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Spatial:
    """The axes of C; of several batch axes the outermost is first."""

    batch: tuple[Group, ...]
    i: Group | None
    j: Group | None

    def places(self, names: Mapping[str, Axis]) -> tuple[problem.Place, ...]:
        """What names of axes mean."""
        result = []
        for name, axis in names.items():
            for number, groups in enumerate((self.batch, (self.i,), (self.j,))):
                members = [member for group in groups if group for member in group.members]
                if axis in members:
                    inner = members[members.index(axis) + 1 :]
                    divisor = math.prod(member.extent for member in inner)
                    result.append(problem.Place(name, number, divisor, axis.extent))
        return tuple(result)
