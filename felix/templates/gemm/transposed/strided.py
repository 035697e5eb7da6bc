"""Dimensions of data that are spread: read at a form that a stride divides, 0 elsewhere."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from felix.templates.gemm import axes, stages, walk
from felix.templates.gemm.axes import Axis
from felix.templates.gemm.stages import require
from felix.tir.ranges import Linear, Quotient


@dataclasses.dataclass(frozen=True, slots=True)
class Strided:
    """A dimension of the data, read at form / stride.

    Attributes:
        element_stride: elements between neighbours.
        output, tap: the axes of rows and of the sum in the form; None where it has none.
    """

    form: Linear
    stride: int
    extent: int
    element_stride: int
    output: Axis | None
    tap: Axis | None

    @property
    def factors(self) -> dict[Axis, int]:
        return axes.coefficients(self.form)

    @property
    def outputs(self) -> int:
        return self.output.extent if self.output else 1

    @property
    def taps(self) -> int:
        return self.tap.extent if self.tap else 1

    @property
    def step(self) -> int:
        """What a tap adds to the form."""
        return self.factors[self.tap] if self.tap else 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value of the form."""
        ends = [k * (axis.extent - 1) for axis, k in self.factors.items()]
        constant = self.form.constant
        return (
            constant + sum(min(end, 0) for end in ends),
            constant + sum(max(end, 0) for end in ends),
        )

    @property
    def is_rows(self) -> bool:
        """Whether it is an axis of rows that nothing slides over."""
        plain = self.output is not None and self.tap is None and self.stride == 1
        return plain and self.form == Linear.of(self.output) and self.outputs <= self.extent

    def is_lower_bound(self, guard: Linear) -> bool:
        """Whether a form is 0 or more exactly where the place is."""
        difference = guard - self.form
        return not difference.terms and 0 <= difference.constant < self.stride

    def is_upper_bound(self, guard: Linear) -> bool:
        """Whether a form is 0 or more exactly where the place is below the extent."""
        total = guard + self.form
        beyond = total.constant - (self.extent - 1) * self.stride
        return not total.terms and 0 <= beyond < self.stride

    def implies(self, multiple: stages.Multiple) -> bool:
        """Whether a form is a multiple where the place is one of the dimension."""
        is_read = self.stride == multiple.divisor or self.extent == self.stride == 1
        return is_read and multiple.divides(self.form)

    @property
    def forward(self) -> tuple[int, int]:
        """(dilation, constant) with the taps in the order that makes the dilation positive."""
        constant = self.form.constant
        if self.step > 0:
            return self.step, constant
        return -self.step, constant + self.step * (self.taps - 1)

    @property
    def period(self) -> int:
        """Pixels after which a phase comes again.

        Of a dimension of one cell any stride says the same. As many as there are taps let each
        phase have one, where one of stride 1 would multiply padding by most of them.
        """
        if self.extent > 1 or self.stride > 1 or not self.output:
            return self.stride
        is_dense = self.factors[self.output] == math.gcd(self.step, self.taps) == 1
        return self.taps if is_dense else 1


def forms_of(operand: walk.Access, spatial: Sequence[Axis]) -> list[tuple[Linear, int]]:
    """Of each dimension (form, stride), of which the index is form / stride.

    The index of a dimension of one cell is 0 whatever the stride is; then guards say which form
    is 0, and any such dimension may have it.
    """

    def order(form: Linear) -> tuple[bool, int]:
        """Axes of the result, then those of the sum."""
        first = min(axes.coefficients(form), key=lambda axis: axis.number)
        return first not in spatial, first.number

    def is_forward(form: Linear) -> bool:
        factors = axes.coefficients(form)
        of_result = [k for axis, k in factors.items() if axis in spatial]
        return bool(factors) and min(of_result or factors.values()) > 0

    divided = [_divided(index) for index in operand.indices]
    bounds = operand.guards - {form for form, _ in divided}
    zeros = sorted((g for g in bounds if g.scaled(-1) in bounds and is_forward(g)), key=order)
    for number, extent in reversed(list(enumerate(operand.extents))):
        if zeros and extent == 1 and operand.indices[number] == Linear(0):
            divided[number] = (zeros.pop(), 1)
    return divided


def _divided(index: Linear) -> tuple[Linear, int]:
    """(form, stride) of an index that is form / stride."""
    quotients = [(atom, k) for atom, k in index.terms if isinstance(atom, Quotient)]
    if not quotients:
        return index, 1
    require(
        len(quotients) == 1 and quotients[0][1] == 1,
        "the data of its transposed convolution are read at several quotients at once",
    )
    ((quotient, _),) = quotients
    whole = (index - Linear.of(quotient)).scaled(quotient.divisor)
    return whole + quotient.dividend, quotient.divisor


def of_forms(
    operand: walk.Access,
    forms: Sequence[tuple[Linear, int]],
    rows: Sequence[Axis],
    reduced: Sequence[Axis],
) -> list[Strided]:
    """The dimensions that have an axis or a constant, outer ones first."""
    result: list[Strided] = []
    met: set[Axis] = set()
    element_stride = math.prod(operand.extents)
    for (form, stride), extent in zip(forms, operand.extents, strict=True):
        element_stride //= extent
        factors = axes.coefficients(form)
        outputs = [axis for axis in factors if axis in rows]
        taps = [axis for axis in factors if axis in reduced]
        is_window = len(factors) == len(form.terms) and max(len(outputs), len(taps)) <= 1
        is_window &= len(factors) == len(outputs) + len(taps) or not (outputs or stride > 1)
        is_window &= not met & set(factors) and all(factors[axis] > 0 for axis in outputs)
        is_window &= stride == 1 or all(factors[axis] == 1 for axis in outputs)
        require(is_window, "the data of its convolution are read at indices that are no windows")
        met |= set(factors)
        if form != Linear(0):
            output, tap = next(iter(outputs), None), next(iter(taps), None)
            made = Strided(form, stride, extent, element_stride, output, tap)
            require(
                math.gcd(made.step, stride) == 1,
                f"its dilation of {abs(made.step)} and its stride of {stride} have a common "
                "divisor, so that some of its phases have no taps",
            )
            result.append(made)
    return result
