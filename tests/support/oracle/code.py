"""Code features counted on TVM's program: copies by unrolling, SIMD lanes, updates in flight.

Knows only the meanings in `felix.features.spec`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from felix.features import spec
from felix.target import Hardware
from tests.support.oracle.programs import Axis, Nest


def copies(nest: Nest, nests: Sequence[Nest]) -> int:
    """Copies of the nest's store: outwards while all statements inside stay within the step."""
    result = _virtual(nest)
    for depth, axis in enumerate(nest.axes):
        steps = [a.unroll for a in nest.axes[: depth + 1] if a.unroll is not None]
        statements = sum(_statements(other, axis) for other in nests)
        if _is_plain(axis) and steps and axis.extent * statements <= steps[-1]:
            result *= axis.extent
    return result


def _statements(nest: Nest, axis: Axis) -> int:
    """Copies of the nest's store inside an axis when everything inside is unrolled; 0 outside."""
    for depth, other in enumerate(nest.axes):
        if other.variable.same_as(axis.variable):
            inside = [a.extent for a in nest.axes[depth + 1 :] if _is_plain(a)]
            return math.prod(inside) * _virtual(nest)
    return 0


def _is_plain(axis: Axis) -> bool:
    return axis.thread is None and not axis.task and not axis.vector


def _virtual(nest: Nest) -> int:
    return math.prod(
        a.extent
        for a in nest.axes
        if (a.thread or "").startswith("vthread")
        and any(v.same_as(x) for v in nest.named for x in (a.variable, *a.other_variables))
    )


def simd(nest: Nest, values: Mapping[str, float], machine: Hardware) -> dict[str, float]:
    """Lanes in use and updates in flight of one store."""
    vector = values["vector_extent"]
    filled = 1 if machine.is_gpu else math.ceil(vector / machine.vector_lanes)
    updates = values["buf0.reuse_trips"] / vector * filled
    lanes = vector / filled
    if machine.is_gpu:
        lanes = 1
    elif vector == 1:
        slots = range(1, min(spec.SLOTS, len(nest.slots())))
        neighbours = values["buf0.stride"] == 1
        neighbours = neighbours and all(values[f"buf{i}.stride"] <= 1 for i in slots)
        lanes = min(values["innermost_extent"], machine.vector_lanes) if neighbours else 1
    reduces = bool(nest.reduce) and not nest.is_init
    return {"simd_lanes": lanes, "independent_updates": updates if reduces else 0}
