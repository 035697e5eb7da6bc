"""Convolutions whose extents are padded to multiples that divide well.

A result of 35 x 35 cells can be tiled by 5 and 7 only, and one of 127 channels not at all. Extents
of the result and channels are rounded up: the convolution reads copies of its operands that are 0
outside of them, and a copy of its result leaves out what was added. All of these are inlined like
any elementwise program. Taps of the kernel stay as they are.

An axis that a window moves along is padded to a multiple of 2, 4 or 8 that adds at most
`MAX_WASTE` of it, unless 4 divides it. Channels are padded as those of a matrix product
(`padded_extents.multiple`). What padding adds to the work is what the cost model and measuring
decide by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.expr import TensorLoad

from felix.tir.design_space.variants import nests, padded_extents, split_reductions
from felix.tir.design_space.variants.nests import REDUCE, SPATIAL, Axis, Expr, Nest
from felix.tir.design_space.variants.variant import Prefix, Variant, remade

MULTIPLES = (8, 4, 2)
#: Of an axis that a window moves along; shorter ones are not padded.
MIN_EXTENT = 8
#: Share of such an axis that its padding may add.
MAX_WASTE = 0.06


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """A convolution with the extents that its axes are given, those that stay left out."""

    nest: Nest
    term: Expr
    extents: Mapping[tirx.Var, int]
    producers: Mapping[Any, Nest]

    def extent(self, axis: Axis) -> int:
        """Of an axis after padding."""
        return self.extents.get(axis.variable, axis.extent)


def prefixes(mod: tvm.IRModule) -> Sequence[Prefix]:
    """The program with its convolution padded; none where all extents divide well."""
    largest = split_reductions.large_product(mod["main"])
    if largest is None or largest.has_plain_indices:
        return []
    program = nests.of_function(mod["main"]) or []
    for position, nest in enumerate(program):
        padded = _padded(nest, nests.producers(program)) if nest.name == largest.name else None
        if padded is None:
            continue
        made = [*program[:position], *_nests(padded), *program[position + 1 :]]
        variant = Variant("padded_windows", _parameters(padded))
        checked = remade(variant, nests.function(mod["main"], made))
        if checked:
            return checked
    return []


def _parameters(padded: Padded) -> tuple[tuple[str, int], ...]:
    """The new extents, by the number of their loop."""
    return tuple(
        (f"loop{i}", padded.extents[axis.variable])
        for i, axis in enumerate(padded.nest.axes)
        if axis.variable in padded.extents
    )


def window_multiple(extent: int) -> int:
    """What the extent of an axis under a window is rounded up to multiples of; 1: it stays."""
    if extent < MIN_EXTENT or extent % 4 == 0:
        return 1
    return next((m for m in MULTIPLES if -extent % m <= MAX_WASTE * extent), 1)


def _padded(nest: Nest, producers: Mapping[Any, Nest]) -> Padded | None:
    """What is padded of a nest; None if nothing is."""
    term = nests.summed(nest)
    loads = [] if term is None else nests.loads(term)
    windows = _in_windows(loads)
    channels = [a for a in nest.axes if a.kind == REDUCE and a.variable not in windows]
    if term is None or not nests.is_product(term) or not channels:
        return None
    extents = {}
    for axis in nest.axes:
        moves = axis.variable in windows
        if moves and axis.kind == REDUCE:
            continue  # a tap
        multiple = (window_multiple if moves else padded_extents.multiple)(axis.extent)
        if axis.extent % multiple:
            extents[axis.variable] = -(-axis.extent // multiple) * multiple
    return Padded(nest, term, extents, producers) if extents else None


def _in_windows(loads: Sequence[TensorLoad]) -> set[tirx.Var]:
    """Iterators that make an index together with others."""
    groups = [nests.variables(index) for load in loads for index in load.indices]
    return {variable for group in groups if len(group) > 1 for variable in group}


# ---------------------------------------------------------------- rewriting


def _nests(padded: Padded) -> list[Nest]:
    """Padded operands, the convolution of them, and its result without what was added."""
    operands = {}
    for number, load in enumerate(nests.loads(padded.term)):
        shape = _reach(padded, load)
        if any(grown > int(old) for grown, old in zip(shape, load.source.shape, strict=True)):
            operands[number] = _operand(padded, load, shape)
    result = _result(padded, operands)
    return [*operands.values(), result, _cropped(padded, result)]


def _reach(padded: Padded, load: TensorLoad) -> list[int]:
    """The extents of an operand that holds every element which is read."""
    axes = padded.nest.axes
    at = [axis.variable for axis in axes]
    analyzer = nests.analyzer(at, [padded.extent(axis) for axis in axes])
    bounds = [analyzer.const_int_bound(index).max_value + 1 for index in load.indices]
    return [max(int(b), int(old)) for b, old in zip(bounds, load.source.shape, strict=True)]


def _operand(padded: Padded, load: TensorLoad, shape: Sequence[int]) -> Nest:
    """A copy of an operand, 0 outside of it; in one with padding that makes the operand."""

    def value(at: Sequence[Expr]) -> Expr:
        analyzer = nests.analyzer(at, shape)
        inside = [
            place < old
            for place, grown, old in zip(at, shape, load.source.shape, strict=True)
            if grown > int(old)
        ]
        element = tirx.BufferLoad(load.source, list(at))
        conditions, value = nests.resolved(element, padded.producers)
        return nests.zero_unless(conditions, inside, value, analyzer)

    return nests.computed(f"{load.source.name}_padded", load.source, shape, value)


def _result(padded: Padded, operands: Mapping[int, Nest]) -> Nest:
    """The convolution of the padded operands."""
    nest = padded.nest
    axes = [dataclasses.replace(axis, extent=padded.extent(axis)) for axis in nest.axes]
    spatial = [axis for axis in axes if axis.kind == SPATIAL]
    name = f"{nest.buffer.name}_padded"
    buffer = nests.buffer_like(name, nest.buffer, [axis.extent for axis in spatial])
    at = [axis.variable for axis in spatial]
    loads = nests.loads(padded.term)

    def read(load: TensorLoad) -> Expr | None:
        number = next(i for i, each in enumerate(loads) if each.same_as(load))
        if number not in operands:
            return None
        return tirx.BufferLoad(operands[number].buffer, list(load.indices))

    value = tirx.BufferLoad(buffer, at) + nests.with_loads(padded.term, read)
    return nests.make(buffer, axes, at, value, nest.block.init.value, name=nest.name)


def _cropped(padded: Padded, result: Nest) -> Nest:
    """The part of the result that the task has."""
    nest = padded.nest
    spatial = [axis.extent for axis in nest.axes if axis.kind == SPATIAL]

    def value(at: Sequence[Expr]) -> Expr:
        return tirx.BufferLoad(result.buffer, list(at))

    return nests.filled(nest.buffer, spatial, value, f"{nest.name}_cropped")
