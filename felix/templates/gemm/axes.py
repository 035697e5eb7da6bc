"""Iterators of a program as the axes of a product: split, told apart, merged; those of its result,
and the dimensions of a convolution's data that windows slide over.

Notation: an `Axis` is an independent integer 0 <= value < extent. Where a tensor is read or
written is a linear form of axes, whose coefficients are its strides in elements. The index of a
dimension is a linear form of at most one axis of rows, one of the sum, and axes that both operands
have; a padded value is 0 exactly where an index leaves its dimension.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from felix.templates.gemm import problem, walk
from felix.templates.gemm.problem import Window
from felix.templates.gemm.stages import require
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


@dataclasses.dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of `extent`, whose neighbours are `stride` elements apart.

    Attributes:
        output: the axis of rows in its index.
        tap: the axis of the sum in its index.
    """

    index: Linear
    extent: int
    stride: int
    output: Axis | None
    tap: Axis | None

    @property
    def is_rows(self) -> bool:
        """Whether it is an axis of rows that nothing slides over or pads."""
        return self.tap is None and self.index.constant == 0 and self.window.is_inside

    @property
    def window(self) -> Window:
        factors = dict(self.index.terms)
        return Window(
            outputs=self.output.extent if self.output else 1,
            taps=self.tap.extent if self.tap else 1,
            stride=factors[self.output] if self.output else 1,
            dilation=factors[self.tap] if self.tap else 1,
            before=-self.index.constant,
            extent=self.extent,
            element_stride=self.stride,
        )


def of_access(
    operand: walk.Access, rows: Sequence[Axis], reduced: Sequence[Axis]
) -> list[Dimension]:
    """The dimensions of an operand, outer ones first.

    Args:
        rows: the axes that the operand alone has of the result.
        reduced: the axes of the sum.

    Raises:
        NotPlain: an index is not of this form, or guards are other than the tensor's bounds.
    """
    result: list[Dimension] = []
    met: set[Axis] = set()
    stride = math.prod(operand.extents)
    for index, extent in zip(operand.indices, operand.extents, strict=True):
        stride //= extent
        factors = coefficients(index)
        outputs = [axis for axis in factors if axis in rows]
        taps = [axis for axis in factors if axis in reduced]
        has_shared = len(factors) > len(outputs) + len(taps)
        is_plain = len(factors) == len(index.terms) and min(factors.values(), default=1) > 0
        is_plain &= len(outputs) <= 1 and len(taps) <= 1 and not met & set(factors)
        is_plain &= not (has_shared and (outputs or index.constant or _is_guarded(operand, index)))
        require(is_plain, "the data of its convolution are read at indices that are no windows")
        output, tap = outputs[0] if outputs else None, taps[0] if taps else None
        result.append(Dimension(index, extent, stride, output, tap))
        met |= set(factors)
    _require_padding(operand, result)
    return result


def _is_guarded(operand: walk.Access, index: Linear) -> bool:
    """Whether a guard has one of the index's axes."""
    of_index = set(coefficients(index))
    return any(of_index & set(coefficients(guard)) for guard in operand.guards)


def _require_padding(operand: walk.Access, dimensions: Sequence[Dimension]) -> None:
    """Guards say that a place lies inside of the data, and what may lie outside is guarded."""
    bounds = {d.index: d.extent for d in dimensions}
    inside = {index for index in bounds if index in operand.guards}
    below = {index for index, extent in bounds.items() if _below(index, extent) in operand.guards}
    of_bounds = {*inside, *(_below(index, bounds[index]) for index in below)}
    require(
        set(operand.guards) == of_bounds,
        "the data of its convolution are 0 elsewhere than outside of their bounds",
    )
    for d in dimensions:
        if d.output or d.tap or d.index.constant:
            last = sum(
                factor * (axis.extent - 1) for axis, factor in coefficients(d.index).items()
            )
            is_sound = (d.index.constant >= 0 or d.index in inside) and (
                last + d.index.constant < d.extent or d.index in below
            )
            require(is_sound, "its convolution reads beyond its data")


def _below(index: Linear, extent: int) -> Linear:
    """What is 0 or more where the index is less than the extent."""
    return index.scaled(-1).shifted(extent - 1)


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
