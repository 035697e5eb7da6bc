"""Accesses to one dimension of a buffer, as sums of terms: an index, and conditions.

The conditions are those of the boundary predicate. One allocation of the buffer sees all
iterations of the loops inside its place, and of the threads that share it: inner loops. Of the
other loops, the outer ones, it sees one iteration.

Notation
    column  a sum: the index of an access, or a condition, which holds where it is 1 or more
    piece   columns of an access that share inner loops
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import sym, tirx
from tvm.ir.expr import Call, TensorLoad
from tvm_ffi import structural

from felix.verify import tvm_schedule

#: Thread loops outside of the site that a buffer of the scope spans all the same.
_SPANNED = {"shared": ("threadIdx", "vthread"), "local": ()}


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Columns of one access, each a list of (factor, term); the first is an index or none is."""

    columns: list[list[tuple[int, Any]]]
    has_index: bool
    extents: dict[Any, int]
    inner: set[Any]

    @property
    def is_condition(self) -> NDArray[np.bool_]:
        """Of each column, all but an index."""
        return np.arange(len(self.columns)) >= int(self.has_index)

    @property
    def outer_extents(self) -> dict[Any, int]:
        """Extents of the outer loops alone."""
        return {v: extent for v, extent in self.extents.items() if v not in self.inner}


def of(module: tvm.IRModule, label: str, dimension: int) -> Iterator[list[Piece]]:
    """The pieces of each access to one dimension of a buffer, that of its index first."""
    placed = tvm_schedule.allocated(module)[label]
    buffer = next(b for b, other in tvm_schedule.labels_of(module).items() if other == label)
    spanned = _SPANNED.get(placed.scope.split(".")[0], ("threadIdx", "vthread", "blockIdx"))
    depth = len(placed.site)
    for stage in tvm_schedule.stages(module):
        inner = {
            variable
            for i, (variable, loop) in enumerate(zip(stage.variables, stage.loops, strict=True))
            if i >= depth or bool(spanned and (loop.thread or "").startswith(spanned))
        }
        for index in indices(stage, buffer, dimension):
            yield _pieces(stage, index, inner)


def indices(stage: tvm_schedule.Stage, buffer: Any, dimension: int) -> list[Any]:
    """Index expressions, in the block's iterators, of the stage's accesses to the buffer."""
    found = [
        store.indices[dimension]
        for store in (*stage.stores, *stage.inits)
        if store.buffer.same_as(buffer)
    ]
    for value in stage.values:
        for node in tvm_schedule.walk(value):
            if isinstance(node, TensorLoad) and node.source.same_as(buffer):
                found.append(node.indices[dimension])
    return found


def _pieces(stage: tvm_schedule.Stage, index: Any, inner: set[Any]) -> list[Piece]:
    realize = stage.realize
    iterators = [iterator.var for iterator in realize.block.iter_vars]
    bindings = dict(zip(iterators, realize.iter_values, strict=True))
    extents = dict(zip(stage.variables, (loop.extent for loop in stage.loops), strict=True))
    analyzer = sym.Analyzer()
    for variable, extent in extents.items():
        analyzer.bind(variable, tvm.ir.Range(0, extent))
    bound = structural.structural_map(index, (tirx.Var, lambda v: bindings.get(v, v)))
    sums = [analyzer.simplify(each) for each in (bound, *_conditions(realize.predicate))]
    used = [tvm_schedule.variables(each) for each in sums]
    pieces = []
    for numbers in connected([[v for v in each if v in inner] for each in used]):
        depends = {v: extents[v] for number in numbers for v in used[number]}
        columns = [list(_terms(sums[number])) for number in numbers]
        pieces.append(Piece(columns, 0 in numbers, depends, inner))
    return pieces


def _conditions(predicate: Any) -> Iterator[Any]:
    """Expressions that are all 1 or more where the predicate holds."""
    if isinstance(predicate, Call) and str(predicate.op.name).endswith(".likely"):
        yield from _conditions(predicate.args[0])
    elif isinstance(predicate, tirx.And):
        yield from _conditions(predicate.a)
        yield from _conditions(predicate.b)
    elif type(predicate) in _MARGINS and tvm_schedule.is_integer(predicate.a):
        yield _MARGINS[type(predicate)](predicate.a, predicate.b)
    else:
        yield predicate.astype("int32")


#: How far a comparison of integers is met: 1 or more where it is.
_MARGINS: dict[type[Any], Any] = {
    tirx.LT: lambda a, b: b - a,
    tirx.LE: lambda a, b: b - a + 1,
    tirx.GT: lambda a, b: a - b,
    tirx.GE: lambda a, b: a - b + 1,
}


def _terms(node: Any, factor: int = 1) -> Iterator[tuple[int, Any]]:
    """The terms of an expression, and what each is multiplied with."""
    if not tvm_schedule.is_integer(node):
        yield factor, node
    elif isinstance(node, (tirx.Add, tirx.Sub)):
        yield from _terms(node.a, factor)
        yield from _terms(node.b, -factor if isinstance(node, tirx.Sub) else factor)
    elif isinstance(node, tirx.Mul) and isinstance(node.b, tirx.IntImm):
        yield from _terms(node.a, factor * int(node.b.value))
    else:
        yield factor, node


def connected(owned: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Numbers of sequences that have items in common, directly or not; each list ascends."""
    components: list[tuple[list[int], set[Any]]] = []
    for number, items in enumerate(owned):
        numbers, joined = [number], set(items)
        apart = []
        for component in components:
            if component[1] & joined:
                numbers, joined = component[0] + numbers, component[1] | joined
            else:
                apart.append(component)
        components = [*apart, (numbers, joined)]
    return sorted(sorted(numbers) for numbers, _ in components)
