"""Software pipelines counted on TVM's program: stages, and bytes copied asynchronously.

Knows only the meanings in `felix.features.spec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.ir.expr import TensorLoad

from tests.support.oracle import expressions
from tests.support.oracle.programs import Nest

STAGES, ASYNC = "software_pipeline_stage", "software_pipeline_async_stages"


def features(nest: Nest, counted: Mapping[str, float]) -> dict[str, float]:
    """`pipeline_stages` and `async_bytes` of one store; `counted` has its features so far."""
    values = {"pipeline_stages": 0.0, "async_bytes": 0.0}
    for axis in nest.axes:
        if axis.notes is not None and STAGES in axis.notes:
            stages = [int(stage) for stage in axis.notes[STAGES]]
            values["pipeline_stages"] = max(stages) + 1
            asynchronous = [int(stage) for stage in axis.notes.get(ASYNC, ())]
            if stages[axis.child] in asynchronous:
                values["async_bytes"] = _copied(nest, counted)
    return values


def _copied(nest: Nest, counted: Mapping[str, float]) -> float:
    value: Any = nest.store.value
    lanes = int(counted["vector_extent"])
    if expressions.is_if(value):
        value, lanes = value.args[1], 1
    if not isinstance(value, TensorLoad):
        return 0
    if not str(nest.store.buffer.scope()).startswith("shared"):
        return 0
    if str(value.source.scope()) not in ("", "global"):
        return 0
    if lanes > 1 and counted["buf1.vector_stride"] != 1:
        return 0
    element = expressions.element_bytes(nest.store.buffer)
    return nest.trip * element if lanes * element in (4, 8, 16) else 0
