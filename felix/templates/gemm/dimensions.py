"""Dimensions of a convolution's data: what slides over them, and where they are padded.

The index of a dimension is a linear form of at most one axis of rows, one of the sum, and axes
that both operands have. A padded value is 0 exactly where an index leaves its dimension.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from felix.templates.gemm import walk
from felix.templates.gemm.axes import Axis
from felix.templates.gemm.problem import Window
from felix.templates.gemm.stages import require
from felix.tir.ranges import Linear


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
