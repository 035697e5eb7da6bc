"""Buffers of a program from TVM's JSON, made anew: compact, in plain memory, from its beginning.

What says the same in other words is accepted: strides and a layout that are those of the shape,
and a parameter whose element offset is a variable, which is 0 here. Tuned programs take tensors
that begin where their memory begins, and TVM's checks refuse others. The variable cannot stay:
TVM's cache instructions give it to the copies of the buffer as well, so that a copy of the
buffer's size would be written from the offset on.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from felix.tir import grammar
from felix.tir import graph as json_graph
from felix.tir.expressions import INDEX_DTYPES, ExpressionReader
from felix.tir.grammar import check
from felix.tir.graph import quoted

MAX_BUFFER_BYTES = 2**40
#: Bytes to which memory of a buffer is aligned.
_ALIGNMENT = 64
#: The axis of a layout that is memory.
_MEMORY = "m"
_BUFFER = (
    "dtype",
    "storage_scope",
    "shape",
    "strides",
    "elem_offset",
    "data_alignment",
    "offset_factor",
    "layout",
    "allocated_addr",
)


class BufferReader(ExpressionReader):
    """Reads declarations of buffers of one graph."""

    def __init__(self, graph: json_graph.Graph, clamp: bool) -> None:
        super().__init__(graph, clamp)
        self._buffer_names: set[str] = set()

    def _declare_buffer(self, index: int, is_parameter: bool = False) -> Any:
        graph = self._graph
        fields = graph.fields(index, ("ty", "name"))
        name = self._name(fields["name"], self._buffer_names)
        label = quoted(name)
        check(index not in self._buffers, f"buffer {label} is declared twice")
        check(
            graph.type_of(fields["ty"]) == "tirx.BufferType",
            f"parameter {label} is a scalar; dynamic shapes and scalar arguments are not "
            "supported",
        )
        parts = graph.fields(fields["ty"], _BUFFER)
        shape = [self._extent(item, f"buffer {label}") for item in graph.array(parts["shape"])]
        dtype = self._dtype(parts["dtype"])
        check(
            dtype in grammar.DTYPES,
            f"buffer {label} has the unsupported dtype "
            f"{quoted(dtype)[1:-1]}; supported: {', '.join(grammar.DTYPES)}",
        )
        elements = math.prod(int(extent) for extent in shape)
        check(
            elements * grammar.element_bytes(dtype) <= MAX_BUFFER_BYTES,
            f"buffer {label} is larger than 1 TiB",
        )
        self._check_memory(parts, [int(extent) for extent in shape], label)
        self._check_offset(parts["elem_offset"], label, is_parameter)
        start = tirx.IntImm(grammar.dtype(shape[0]) if shape else "int32", 0)
        buffer = tirx.decl_buffer(
            shape,
            dtype,
            name,
            elem_offset=start,
            scope="global",
            data_alignment=_ALIGNMENT,
            offset_factor=1,
            layout=None,
        )
        self._buffers[index] = buffer
        return buffer

    def _check_memory(self, parts: Mapping[str, Any], shape: Sequence[int], label: str) -> None:
        """A buffer is compact and lies in plain memory."""
        graph = self._graph
        scope = graph.string(parts["storage_scope"])
        check(scope in ("", "global"), f"buffer {label} has the storage scope {quoted(scope)}")
        strides = graph.array(parts["strides"])
        check(
            not strides or self._integers(strides) == _strides(shape),
            f"buffer {label} has explicit strides that are not those of its shape; give it the "
            "shape of its memory, and index the part of it that is used",
        )
        check(not graph.array(parts["allocated_addr"]), f"buffer {label} has a fixed address")
        check(
            graph.is_none(parts["layout"]) or self._is_compact(parts["layout"], shape),
            f"buffer {label} has a layout that is not that of its shape; leave it out, and "
            "index the buffer as its memory lies",
        )

    def _check_offset(self, index: int, label: str, is_parameter: bool) -> None:
        """A buffer begins where its memory begins; a parameter's offset may be a variable."""
        kind = self._graph.type_of(index)
        if kind == "None" or (kind == "ir.Var" and is_parameter):
            return
        check(
            kind == "ir.IntImm",
            f"buffer {label} has an element offset that is no constant; "
            "give it the element offset 0",
        )
        offset = int(self._constant(index))
        check(
            offset == 0,
            f"buffer {label} has the element offset {offset}; give it the element "
            "offset 0, and what comes before as a part of its shape",
        )

    def _is_compact(self, index: int, shape: Sequence[int]) -> bool:
        """Whether a layout says that elements lie one after the other, the last axis innermost."""
        graph = self._graph
        if graph.type_of(index) != "tirx.TileLayout":
            return False
        layout = graph.fields(index, ("shard", "replica", "offset"))
        axes = [
            graph.fields(item, ("extent", "stride", "axis"))
            for item in graph.array(layout["shard"])
        ]
        return (
            all(graph.name(each["axis"], "tirx.Axis") == _MEMORY for each in axes)
            and self._integers([each["extent"] for each in axes]) == list(shape)
            and self._integers([each["stride"] for each in axes]) == _strides(shape)
            and not graph.array(layout["replica"])
            and not list(graph.map(layout["offset"]))
        )

    def _integers(self, indices: Sequence[int]) -> list[int] | None:
        """The values of constants; None if there is something else among them."""
        if any(self._graph.type_of(index) != "ir.IntImm" for index in indices):
            return None
        return [int(self._constant(index)) for index in indices]

    def _extent(self, index: int, owner: str) -> Any:
        check(
            self._graph.type_of(index) == "ir.IntImm",
            f"{owner} has a dynamic shape; every extent must be a constant",
        )
        extent = self._constant(index)
        check(int(extent) > 0, f"{owner} has an extent below 1: {int(extent)}")
        check(
            grammar.dtype(extent) in INDEX_DTYPES,
            f"{owner} has an extent that is neither int32 nor int64",
        )
        return extent


def _strides(shape: Sequence[int]) -> list[int]:
    """Of a compact buffer, in elements."""
    return list(itertools.accumulate(shape[:0:-1], operator.mul, initial=1))[::-1] if shape else []
