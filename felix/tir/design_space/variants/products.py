"""Convolutions as matrix products.

The axes of a convolution's result that only its input has (batch, height, width) become one axis
of rows, and the input is read by rows and terms as if its windows had been copied out of it
(im2col). That copy is inlined into the filling of shared memory, a second one gives rows their
place in the result. One axis of 7·7 or 35·35 rows has more tilings than two of 7 or 35, and is
padded where it divides badly (`padded_extents.multiple`): rows, columns and terms that are added
are 0 and not stored.

    result[m, o] = sum over r of  rows[m, r] · kernel[r, o]
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tvm import tirx
from tvm.ir.expr import TensorLoad

from felix.tir.design_space.variants import nests, padded_extents
from felix.tir.design_space.variants.nests import SPATIAL, Axis, Expr, Nest


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A sum of products whose first factor is read in windows.

    Attributes:
        rows: axes of the result that only the first factor has, two or more.
        row: the variable of all of them in one.
    """

    nest: Nest
    term: Expr
    windows: TensorLoad
    kernel: TensorLoad
    rows: tuple[Axis, ...]
    row: tirx.Var

    @property
    def n_rows(self) -> int:
        return math.prod(axis.extent for axis in self.rows)

    @property
    def others(self) -> list[Axis]:
        """The axes that stay, in order."""
        rows = {axis.variable for axis in self.rows}
        return [axis for axis in self.nest.axes if axis.variable not in rows]


def rewritten(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, int] | None:
    """The function with its convolution as a product, and the rows; None without one."""
    program = nests.of_function(func) or []
    for position, nest in enumerate(program):
        convolution = _convolution(nest)
        if convolution is not None:
            made = [*program[:position], *_product(convolution), *program[position + 1 :]]
            return nests.function(func, made), padded(convolution.n_rows)
    return None


def padded(extent: int) -> int:
    """The extent that an axis has in the product."""
    return -(-extent // padded_extents.multiple(extent)) * padded_extents.multiple(extent)


# ---------------------------------------------------------------- recognising


def _convolution(nest: Nest) -> Convolution | None:
    """The nest as a convolution that has rows to put together; None if it is none."""
    term = nests.summed(nest)
    loads = [] if term is None else nests.loads(term)
    if len(loads) != 2 or loads[0].source.same_as(loads[1].source):
        return None
    windows = next((load for load in loads if not _is_plain(load)), None)
    if windows is None:
        return None
    kernel = loads[1] if windows.same_as(loads[0]) else loads[0]
    of_kernel = {v for index in kernel.indices for v in nests.variables(index)}
    rows = tuple(
        axis for axis in nest.axes if axis.kind == SPATIAL and axis.variable not in of_kernel
    )
    if sum(axis.extent > 1 for axis in rows) < 2 or not _is_plain(kernel):
        return None
    dtype = str(rows[0].variable.ty.dtype)
    return Convolution(nest, term, windows, kernel, rows, tirx.Var("m", dtype))


def _is_plain(load: TensorLoad) -> bool:
    return all(isinstance(index, tirx.Var | tirx.IntImm) for index in load.indices)


# ---------------------------------------------------------------- rewriting


def _product(convolution: Convolution) -> list[Nest]:
    """Rows, the kernel where it is padded, the product, and its result in the task's order."""
    axes = {
        a.variable: dataclasses.replace(a, extent=padded(a.extent)) for a in convolution.others
    }
    m = Axis(convolution.row, padded(convolution.n_rows))
    rows = _rows(convolution, m, axes)
    kernel = _padded_kernel(convolution, axes)
    result = _result(convolution, m, axes, rows, kernel)
    return [rows, *([kernel] if kernel else []), result, _unpacked(convolution, m, result)]


def _rows(convolution: Convolution, m: Axis, axes: Mapping[tirx.Var, Axis]) -> Nest:
    """The windows by rows and terms, 0 outside."""
    order = _order(convolution)
    extents = {axis.variable: axis.extent for axis in convolution.nest.axes}
    sizes = [m.extent if v.same_as(convolution.row) else axes[v].extent for v in order]

    def value(at: Sequence[Expr]) -> Expr:
        places = dict(zip(order, at, strict=True))
        row = places.pop(convolution.row)
        analyzer = nests.analyzer(at, sizes)
        inside = [place < extents[v] for v, place in places.items()
                  if axes[v].extent > extents[v]]  # fmt: skip
        inside += [row < convolution.n_rows] if m.extent > convolution.n_rows else []
        places |= _unfused(convolution.rows, row)
        indices = [
            analyzer.simplify(nests.substituted(index, places))
            for index in convolution.windows.indices
        ]
        return nests.zero_unless(inside, tirx.BufferLoad(convolution.windows.source, indices))

    source = convolution.windows.source
    return nests.computed(f"{source.name}_rows", source, sizes, value)


def _order(convolution: Convolution) -> list[tirx.Var]:
    """Iterators in the order in which the input has them, all rows as one at the last of them."""
    rows = [axis.variable for axis in convolution.rows]
    indices = convolution.windows.indices
    occurring = [v for index in indices for v in nests.variables(index)]
    order = [v for v in dict.fromkeys(occurring) if v not in rows]
    last = any(v in rows for v in nests.variables(indices[-1]))
    return [*order, convolution.row] if last else [convolution.row, *order]


def _unfused(rows: Sequence[Axis], row: Expr) -> dict[tirx.Var, Expr]:
    """The axes of rows as functions of their one index."""
    inner, places = 1, {}
    for position, axis in reversed(list(enumerate(rows))):
        index = tirx.floordiv(row, inner)
        places[axis.variable] = index if position == 0 else tirx.floormod(index, axis.extent)
        inner *= axis.extent
    return places


def _padded_kernel(convolution: Convolution, axes: Mapping[tirx.Var, Axis]) -> Nest | None:
    """The other factor, 0 where an axis is padded; None if none is."""
    load = convolution.kernel
    extents = {axis.variable: axis.extent for axis in convolution.nest.axes}
    grown = [isinstance(i, tirx.Var) and axes[i].extent > extents[i] for i in load.indices]
    if not any(grown):
        return None
    sizes = [axes[index].extent if grows else int(extent) for index, grows, extent
             in zip(load.indices, grown, load.source.shape, strict=True)]  # fmt: skip

    def value(at: Sequence[Expr]) -> Expr:
        inside = [place < extents[index] for place, index, grows
                  in zip(at, load.indices, grown, strict=True) if grows]  # fmt: skip
        return nests.zero_unless(inside, tirx.BufferLoad(load.source, list(at)))

    return nests.computed(f"{load.source.name}_padded", load.source, sizes, value)


def _result(
    convolution: Convolution,
    m: Axis,
    axes: Mapping[tirx.Var, Axis],
    rows: Nest,
    kernel: Nest | None,
) -> Nest:
    """The product of rows and kernel."""
    nest, last = convolution.nest, convolution.rows[-1]
    in_order = [
        m if axis is None else axes[axis.variable]
        for axis in (None if each.variable.same_as(last.variable) else each for each in nest.axes)
        if axis is None or axis.variable in axes
    ]
    spatial = [axis for axis in in_order if axis.kind == SPATIAL]
    buffer = nests.buffer_like(
        f"{nest.buffer.name}_rows", nest.buffer, [axis.extent for axis in spatial]
    )
    at = [axis.variable for axis in spatial]

    def read(load: TensorLoad) -> Expr | None:
        if load.same_as(convolution.windows):
            return tirx.BufferLoad(rows.buffer, _order(convolution))
        return tirx.BufferLoad(kernel.buffer, list(load.indices)) if kernel else None

    value = tirx.BufferLoad(buffer, at) + nests.with_loads(convolution.term, read)
    return nests.make(buffer, in_order, at, value, nest.block.init.value, name=nest.name)


def _unpacked(convolution: Convolution, m: Axis, result: Nest) -> Nest:
    """The result in the task's order of elements, without what was padded."""
    spatial = [axis for axis in convolution.nest.axes if axis.kind == SPATIAL]
    fresh = {
        axis.variable: dataclasses.replace(
            axis, variable=tirx.Var(axis.variable.name, axis.variable.ty.dtype)
        )
        for axis in spatial
    }
    row: Expr = 0
    for axis in convolution.rows:
        row = row * axis.extent + fresh[axis.variable].variable
    indices = [
        row if index.same_as(convolution.row) else fresh[index].variable
        for index in result.block.body.indices
    ]
    axes = list(fresh.values())
    value = tirx.BufferLoad(result.buffer, indices)
    name = f"{convolution.nest.name}_unpacked"
    at = [axis.variable for axis in axes]
    return nests.make(convolution.nest.buffer, axes, at, value, name=name)
