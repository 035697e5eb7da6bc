"""Iterators of a program as the axes of a product: split, told apart, merged; those of its result.

Notation: an `Axis` is an independent integer 0 <= value < extent. Where a tensor is read or
written is a linear form of axes, whose coefficients are its strides in elements.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from felix.templates.gemm import problem
from felix.tir import ranges
from felix.tir.ranges import Linear


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """An iterator; `number` tells equal ones apart."""

    number: int
    extent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Axes that are one for every tensor: its extent, and its stride in each tensor in order.

    `members` are the axes, the outermost first.
    """

    extent: int
    strides: tuple[int, ...]
    members: tuple[Axis, ...] = ()


class Axes:
    """The axes that variables have become; `split` makes two of one."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._parts: dict[Axis, tuple[Axis, Axis]] = {}

    def new(self, extent: int) -> Axis:
        """Another axis."""
        return Axis(next(self._numbers), extent)

    def value(self, axis: Axis) -> Linear:
        """The axis by the parts that it has been split into; 0 where its extent is 1."""
        if axis.extent == 1:
            return Linear(0)
        if axis not in self._parts:
            return Linear.of(axis)
        outer, inner = self._parts[axis]
        return self.value(outer).scaled(inner.extent) + self.value(inner)

    def scope(self, roots: Iterable[Axis]) -> ranges.Scope:
        """What is known of the parts of these axes."""
        intervals: dict[ranges.Atom, ranges.Interval] = {
            part: ranges.Interval(0, part.extent - 1) for part in self.all_parts(roots)
        }
        return ranges.Scope(intervals)

    def all_parts(self, roots: Iterable[Axis]) -> list[Axis]:
        """The axes that these have been split into, without those of extent 1."""
        result = []
        for axis in roots:
            if axis in self._parts:
                result += self.all_parts(self._parts[axis])
            elif axis.extent > 1:
                result.append(axis)
        return result

    def split(self, form: Linear) -> bool:
        """Split an axis so that a quotient or remainder in the form may vanish; False if none."""
        for atom, _ in form.terms:
            if not isinstance(atom, ranges.Quotient | ranges.Remainder):
                continue
            for axis, factor in atom.dividend.terms:
                if not isinstance(axis, Axis):
                    if self.split(Linear.of(axis)):
                        return True
                    continue
                inner = _inner_extent(axis.extent, factor, atom.divisor)
                if inner is not None:
                    self._parts[axis] = (self.new(axis.extent // inner), self.new(inner))
                    return True
        return False


def _inner_extent(extent: int, factor: int, divisor: int) -> int | None:
    """Of the part whose multiples by the factor stay below the divisor; None if there is none."""
    if factor <= 0 or divisor % factor:
        return None
    inner = divisor // factor
    return inner if 1 < inner < extent and extent % inner == 0 else None


def strides_of(form: Linear) -> dict[Axis, int] | None:
    """Strides of a tensor that is read at a form; None where it is not linear in axes."""
    strides = {axis: factor for axis, factor in form.terms if isinstance(axis, Axis)}
    if len(strides) < len(form.terms) or min(strides.values(), default=0) < 0:
        return None
    return strides


def groups_of(axes: Sequence[Axis], tensors: Sequence[Mapping[Axis, int]]) -> list[Group]:
    """Each axis by itself."""
    return [Group(axis.extent, tuple(t.get(axis, 0) for t in tensors), (axis,)) for axis in axes]


def merged(groups: Sequence[Group], key: int) -> list[Group]:
    """Groups, outer ones first by tensor number `key`, with those merged that every tensor allows.

    Two are one axis where the outer one's stride is that of the inner one after its last value.
    """
    result: list[Group] = []
    for inner in sorted(groups, key=lambda group: group.strides[key], reverse=True):
        outer = result[-1] if result else None
        if outer and all(
            a == b * inner.extent for a, b in zip(outer.strides, inner.strides, strict=True)
        ):
            extent, members = outer.extent * inner.extent, outer.members + inner.members
            result[-1] = Group(extent, inner.strides, members)
        else:
            result.append(inner)
    return result


def with_largest_apart(groups: Sequence[Group]) -> tuple[Group | None, list[Group]]:
    """The group of the largest extent, and the others."""
    if not groups:
        return None, []
    largest = max(groups, key=lambda group: group.extent)
    return largest, [group for group in groups if group is not largest]


def coefficients(form: Linear) -> dict[Axis, int]:
    """Of its axes."""
    return {axis: factor for axis, factor in form.terms if isinstance(axis, Axis)}


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
