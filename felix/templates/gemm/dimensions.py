"""Dimensions of a convolution's data, and the axes of its tensors told apart.

The data of a convolution are read at

    place = (output * step + tap * dilation + constant) / stride    where that is an integer,

and are 0 elsewhere, or where a guard says that the place lies outside. The stride is 1 but where
data are spread, as those of a transposed convolution.

Notation: tensors are numbered as in `walk.Accesses.tensors`: output, both operands, reads.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence

from felix.templates.gemm import axes, stages, walk
from felix.templates.gemm.axes import Axis, Group, Spatial
from felix.templates.gemm.phases import Phases
from felix.templates.gemm.problem import Gather, Window
from felix.templates.gemm.stages import require
from felix.tir.ranges import Linear, Quotient

_MAX_WINDOWS = 3
NO_WINDOWS = "the data of its convolution are read at indices that are no windows"


@dataclasses.dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution's axes, and how its operands are gathered.

    Attributes:
        data: the number, 1 or 2, of the tensor whose rows are i; the other one has j.
        spatial, k: its axes. Strides along what a `Gather` or `Phases` says are 0.
        gathers: of the data, and of the other operand unless its strides describe it.
        weights_offset: of the first tap of the other operand in its tensor.
        phases: of a transposed convolution.
    """

    data: int
    spatial: Spatial
    k: Group
    gathers: tuple[Gather, Gather | None]
    weights_offset: int
    phases: Phases | None = None

    @property
    def slides(self) -> bool:
        """Whether a window is more than an axis of rows."""
        return any(w.taps > 1 or w.stride > 1 or not w.is_inside for w in self.gathers[0].windows)


class Roles:
    """The axes of a program's tensors, told apart as those of a product of `data` and another."""

    def __init__(
        self,
        accesses: walk.Accesses,
        data: int,
        spatial: Sequence[Axis],
        reduced: Sequence[Axis],
        in_data: Collection[Axis] = (),
    ) -> None:
        """Tell them apart; `in_data` are axes that indices of the data have where these are 0."""
        self.data, self.other = data, 3 - data
        self.strides = [axes.coefficients(tensor.offset) for tensor in accesses.tensors]
        of_data, of_other = {*self.strides[data], *in_data}, self.strides[self.other]
        self.rows = [axis for axis in spatial if axis in of_data and axis not in of_other]
        self.columns = [axis for axis in spatial if axis in of_other and axis not in of_data]
        self.shared = [axis for axis in spatial if axis in of_other and axis in of_data]
        self.reduced = list(reduced)
        self._has_all = set(spatial) <= of_data | set(of_other) and all(
            axis in of_data and axis in of_other for axis in reduced
        )

    def require_all(self) -> None:
        """Raise NotPlain where an operand lacks an axis of the result or of the sum."""
        reason = "its convolution has an axis that one of its operands does not have"
        require(self._has_all, reason)

    def merged(self, of: Sequence[Axis]) -> list[Group]:
        """Axes of the result that are one for all tensors."""
        return axes.merged(axes.groups_of(of, self.strides), 0)

    def one(self, of: Sequence[Axis], name: str) -> Group | None:
        """Axes of the result as one.

        Raises:
            NotPlain: they are several.
        """
        groups = self.merged(of)
        require(len(groups) <= 1, f"several axes of its convolution's {name} are not one")
        return next(iter(groups), None)

    def slide(self, operand: walk.Access) -> bool:
        """Whether an index is a sum of an axis of rows and of one of k."""
        return any(
            {axis for axis, _ in index.terms} & set(self.rows)
            and {axis for axis, _ in index.terms} & set(self.reduced)
            for index in operand.indices
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Dimension:
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
        """What an output adds to the form."""
        return self.factors[self.output] if self.output else 1

    @property
    def dilation(self) -> int:
        """What a tap adds to the form."""
        return self.factors[self.tap] if self.tap else 1

    @property
    def tap_stride(self) -> int:
        """Elements from one tap to the next, where the stride is 1."""
        return self.dilation * self.element_stride

    @property
    def is_sliding(self) -> bool:
        """Whether it may be a window, or a part of the rows."""
        return bool(self.output or self.tap or self.form.constant)

    @property
    def is_rows(self) -> bool:
        """Whether it is an axis of rows that nothing slides over or pads."""
        is_plain = self.stride == 1 and self.tap is None and self.form.constant == 0
        return is_plain and self.window.is_inside

    @property
    def window(self) -> Window:
        """What slides over it, where the stride is 1."""
        return Window(
            outputs=self.outputs,
            taps=self.taps,
            stride=self.step,
            dilation=self.dilation,
            before=-self.form.constant,
            extent=self.extent,
            element_stride=self.element_stride,
        )

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value of the form."""
        ends = [k * (axis.extent - 1) for axis, k in self.factors.items()]
        least, most = (sum(of(end, 0) for end in ends) for of in (min, max))
        return self.form.constant + least, self.form.constant + most

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


def divided(index: Linear) -> tuple[Linear, int]:
    """(form, stride) of an index that is form / stride.

    Raises:
        NotPlain: it has several quotients.
    """
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
    operand: walk.Access, forms: Sequence[tuple[Linear, int]], known: Roles
) -> list[Dimension]:
    """The dimensions of the data, each read at form / stride, outer ones first; not those of 0.

    Raises:
        NotPlain: a form is not of this kind.
    """
    result: list[Dimension] = []
    met: set[Axis] = set()
    element_stride = math.prod(operand.extents)
    for (form, stride), extent in zip(forms, operand.extents, strict=True):
        element_stride //= extent
        factors = axes.coefficients(form)
        outputs = [axis for axis in factors if axis in known.rows]
        taps = [axis for axis in factors if axis in known.reduced]
        is_window = len(factors) == len(form.terms) and max(len(outputs), len(taps)) <= 1
        is_window &= len(factors) == len(outputs) + len(taps) or not (outputs or stride > 1)
        is_window &= not met & set(factors) and all(factors[axis] > 0 for axis in outputs)
        is_window &= stride == 1 or all(factors[axis] == 1 for axis in outputs)
        require(is_window, NO_WINDOWS)
        met |= set(factors)
        if form != Linear(0):
            output, tap = next(iter(outputs), None), next(iter(taps), None)
            made = Dimension(form, stride, extent, element_stride, output, tap)
            require(
                math.gcd(made.dilation, stride) == 1,
                f"its dilation of {abs(made.dilation)} and its stride of {stride} have a common "
                "divisor, so that some of its phases have no taps",
            )
            result.append(made)
    return result


def require_guards(operand: walk.Access, every: Sequence[Dimension]) -> None:
    """Guards say that places lie inside of the data and are integers, neither more nor less."""
    bounds = [
        g for g in operand.guards if any(d.is_lower_bound(g) or d.is_upper_bound(g) for d in every)
    ]
    require(
        len(bounds) == len(operand.guards),
        "the data of its convolution are 0 elsewhere than outside of their bounds",
    )
    for d in every:
        least, most = d.bounds
        is_sound = least > -d.stride or any(map(d.is_lower_bound, bounds))
        is_sound &= most < d.extent * d.stride or any(map(d.is_upper_bound, bounds))
        require(is_sound, "its convolution reads beyond its data")
    spread = [d for d in every if d.stride > 1]
    pairs = [
        (d, multiple)
        for d, multiple in itertools.product(every, operand.multiples)
        if d.implies(multiple)
    ]
    require(
        {d for d, _ in pairs} >= set(spread)
        and {multiple for _, multiple in pairs} == operand.multiples,
        "its data have zeros between them, but not as those of a transposed convolution",
    )


def require_linear(accesses: walk.Accesses, data: int, backwards: Collection[int] = ()) -> None:
    """All tensors but the data are read or written at linear forms, some may be backwards."""
    for number, tensor in enumerate(accesses.tensors):
        factors = axes.coefficients(tensor.offset)
        is_linear = len(factors) == len(tensor.offset.terms)
        is_forward = number in backwards or min(factors.values(), default=0) >= 0
        require(
            number == data or (is_linear and is_forward),
            "a tensor of its convolution is not read or written at a linear form of its iterators",
        )


def channel_of(every: Sequence[Dimension]) -> Dimension | None:
    """The dimension of channels: the last one that only k has, or None if there is none.

    Where channels are first it is the outermost one: behind it come windows of one output.
    """
    only = [
        d
        for d in every
        if d.tap
        and not d.output
        and d.stride == 1
        and d.form.constant == 0
        and min(d.factors.values()) > 0
        and d.bounds[1] < d.extent
    ]
    last = [d for d in only if d.tap_stride == 1]
    return next(iter(last or only), None)


def require_windows(windows: Sequence[Dimension]) -> None:
    """Raise NotPlain where there are more than tensors of a convolution have."""
    require(len(windows) <= _MAX_WINDOWS, f"its convolution has {len(windows)} windows")


def require_channels(channel: Dimension | None, known: Roles) -> None:
    """Raise NotPlain where each group has one channel."""
    require(
        channel is not None or not known.shared,
        "each group of its convolution has one channel, so that tensor cores would mostly "
        "multiply zeros",
    )
