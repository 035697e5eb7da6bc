"""Transposed convolutions by phases: no zero between the cells of the input is multiplied.

A transposed convolution of stride s spreads its input, s - 1 zeros between two cells, and
convolves that with stride 1. An output cell s·t + p meets cells of the input only at the kernel's
taps r ≡ q(p) mod s, so that each *phase* p in [0, s) is a dense convolution of the input with each
s-th tap. The variant is one convolution with an axis of phases for each strided axis,

    result[p, ..., t] = sum over m of  cells[p, ..., t + m] · taps[p, m, ...],

of which `cells` are the input moved for the phase, `taps` the kernel's taps s·m + q(p), and a copy
that joins the phases follows. All three are inlined like any elementwise program. The taps of a
kernel whose extent is no multiple of s are filled up with zeros.

Infinities and what is no number spread differently: the task multiplies them by the zeros between
the cells, phases by those of filled-up taps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad

from felix.tir import grammar
from felix.tir.design_space.variants import nests, transposed
from felix.tir.design_space.variants.nests import SPATIAL, Axis, Expr, Nest
from felix.tir.design_space.variants.variant import Machine, Prefix, Variant, remade

#: Share of the task's multiplications up to which phases replace its own program on a GPU.
FEW = 0.25


def prefixes(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """The program by phases, where it is a transposed convolution; not if it is not proved."""
    made = rewritten(mod["main"])
    if made is None:
        return []
    func, strided = made
    strides = tuple((f"stride{i}", each.stride) for i, each in enumerate(strided))
    replaces_stock = machine.is_gpu and _share(strided) <= FEW
    return remade(Variant("phases", strides, replaces_stock), func)


def _share(strided: Sequence[transposed.Strided]) -> float:
    """Multiplications of the phases, of one of the task's."""
    taps = math.prod(each.taps for each in strided)
    return taps / math.prod(each.tap.extent for each in strided)


def rewritten(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tuple[transposed.Strided, ...]] | None:
    """The function with a transposed convolution by phases, and its axes; None without one."""
    program = nests.of_function(func)
    if program is None:
        return None
    for position, nest in enumerate(program):
        conv = transposed.of_nest(nest, program)
        if conv is not None:
            made = [*program[:position], *_phased(conv), *program[position + 1 :]]
            return nests.function(func, made), conv.strided
    return None


def _phased(conv: transposed.Transposed) -> list[Nest]:
    """Cells, taps, the convolution of all phases, and its result in the task's order."""
    cells = _cells(conv)
    taps = [
        (load, _taps(conv, load)) for load in nests.loads(conv.term) if any(_tap_axes(conv, load))
    ]
    result = _convolution(conv, cells, taps)
    return [cells, *(nest for _, nest in taps), result, _joined(conv, result)]


def _cells(conv: transposed.Transposed) -> Nest:
    """The input's cells of each phase, where its convolution reads them."""
    strided, spread = conv.strided, conv.spread
    moved_axes = [each for each in strided if each.is_moved]
    shape = [axis.extent for axis in spread.axes]
    for each in strided:
        shape[each.dimension] = each.steps + each.taps - 1
    sizes = [*(each.stride for each in moved_axes), *shape]

    def value(at: Sequence[Expr]) -> Expr:
        phases = dict(zip(moved_axes, at[: len(moved_axes)], strict=True))
        moved = at[len(moved_axes) :]
        analyzer = nests.analyzer(at, sizes)
        cell = {axis.variable: index for axis, index in zip(spread.axes, moved, strict=True)}
        inside = []
        for each in strided:
            axis = spread.axes[each.dimension]
            index = each.cell_of(phases.get(each), moved[each.dimension])
            cell[axis.variable] = analyzer.simplify(index)
            inside += [index >= 0, index < axis.extent]
        conditions = [grammar.substituted(c, cell) for c in spread.conditions]
        value = grammar.substituted(spread.value, cell)
        return nests.zero_unless(conditions, inside, value, analyzer)

    source = conv.load.source
    return nests.computed(f"{source.name}_phases", source, sizes, value)


def _tap_axes(conv: transposed.Transposed, load: TensorLoad) -> list[transposed.Strided | None]:
    """Of each dimension of another tensor the strided axis whose taps index it."""
    if load.same_as(conv.load):
        return [None] * len(load.indices)
    of_taps = [[conv.of_tap(v) for v in nests.variables(i)] for i in load.indices]
    return [next((each for each in axes if each), None) for axes in of_taps]


def _taps(conv: transposed.Transposed, load: TensorLoad) -> Nest:
    """The taps of each phase of a tensor that the sum's strided iterators index."""
    axes = _tap_axes(conv, load)
    phased = [each for each in axes if each]
    shape = [
        each.taps if each else int(extent)
        for each, extent in zip(axes, load.source.shape, strict=True)
    ]
    sizes = [*(each.stride for each in phased), *shape]

    def value(at: Sequence[Expr]) -> Expr:
        phases = dict(zip(phased, at[: len(phased)], strict=True))
        analyzer = nests.analyzer(at, sizes)
        indices, inside = [], []
        for each, old, new in zip(axes, load.indices, at[len(phased) :], strict=True):
            if each is None:
                indices.append(new)
                continue
            tap = each.tap_of(phases[each], new)
            indices.append(analyzer.simplify(grammar.substituted(old, {each.tap.variable: tap})))
            if each.taps * each.stride != each.tap.extent:  # some phase has fewer taps
                inside.append(tap < each.tap.extent)
        conditions, element = nests.resolved(tirx.BufferLoad(load.source, indices), conv.producers)
        return nests.zero_unless([*inside, *conditions], [], element, analyzer)

    return nests.computed(f"{load.source.name}_phases", load.source, sizes, value)


def _convolution(
    conv: transposed.Transposed, cells: Nest, taps: Sequence[tuple[TensorLoad, Nest]]
) -> Nest:
    """The convolution of all phases; the phases are its first axes."""
    strided = conv.strided
    old = conv.nest
    axes = [Axis(each.phase, each.stride) for each in strided]
    for axis in old.axes:
        of_result = conv.of_result(axis.variable)
        of_tap = conv.of_tap(axis.variable)
        extent = of_result.steps if of_result else of_tap.taps if of_tap else axis.extent
        axes.append(dataclasses.replace(axis, extent=extent))
    spatial = [axis for axis in axes if axis.kind == SPATIAL]
    buffer = nests.buffer_like(
        f"{old.buffer.name}_phases", old.buffer, [axis.extent for axis in spatial]
    )
    at = [axis.variable for axis in spatial]

    def read(load: TensorLoad) -> Expr | None:
        if load.same_as(conv.load):
            return _read_cells(conv, cells)
        nest = next((nest for other, nest in taps if other.same_as(load)), None)
        return _read_taps(conv, load, nest) if nest else None

    term = nests.with_loads(conv.term, read)
    value = tirx.BufferLoad(buffer, at) + term
    return nests.make(buffer, axes, at, value, old.block.init.value, name=old.name)


def _read_cells(conv: transposed.Transposed, cells: Nest) -> Expr:
    indices = list(conv.load.indices)
    for each in conv.strided:
        indices[each.dimension] = each.moved(each.result.variable, each.tap.variable)
    phases = [each.phase for each in conv.strided if each.is_moved]
    return tirx.BufferLoad(cells.buffer, [*phases, *indices])


def _read_taps(conv: transposed.Transposed, load: TensorLoad, taps: Nest) -> Expr:
    axes = _tap_axes(conv, load)
    phases = [each.phase for each in axes if each]
    indices = [
        each.tap.variable if each else old for each, old in zip(axes, load.indices, strict=True)
    ]
    return tirx.BufferLoad(taps.buffer, [*phases, *indices])


def _joined(conv: transposed.Transposed, result: Nest) -> Nest:
    """The result in the task's order of elements."""
    old = conv.nest
    spatial = [axis for axis in old.axes if axis.kind == SPATIAL]
    fresh = [
        Axis(tirx.Var(axis.variable.name, axis.variable.ty.dtype), axis.extent) for axis in spatial
    ]
    at = {old.variable: new.variable for old, new in zip(spatial, fresh, strict=True)}
    phases = [tirx.floormod(at[e.result.variable], e.stride) for e in conv.strided]
    places = []
    for axis in spatial:
        each = conv.of_result(axis.variable)
        index = at[axis.variable]
        places.append(tirx.floordiv(index, each.stride) if each else index)
    variables = [axis.variable for axis in fresh]
    value = tirx.BufferLoad(result.buffer, [*phases, *places])
    return nests.make(old.buffer, fresh, variables, value, name=f"{old.name}_joined")
