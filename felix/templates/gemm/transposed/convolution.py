"""Transposed convolutions as products: one ordinary convolution for each phase of the result.

A transposed convolution reads its data at places that a stride divides, and 0 elsewhere:

    place = (y + tap * dilation + constant) / stride    where that is an integer.

Of a *phase*, the pixels y = output * stride + phase, the taps that meet data are each `stride`-th
one from a first tap, and their places are output + tap * dilation + move: an ordinary convolution.
First taps and moves are those of a `PhaseAxis`. Convolutions whose weights are flipped are
the case of stride 1.

Notation: tensors are numbered as in `walk.Accesses.tensors`: output, both operands, reads.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from felix.templates.gemm import axes, walk
from felix.templates.gemm.axes import Axis, Group, Spatial
from felix.templates.gemm.phases import PhaseAxis, Phases
from felix.templates.gemm.problem import Gather, Window
from felix.templates.gemm.stages import require
from felix.templates.gemm.transposed import strided
from felix.templates.gemm.transposed.strided import Strided

_MAX_WINDOWS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution's axes, how its operands are gathered, and its phases.

    Attributes:
        data: the number, 1 or 2, of the tensor whose rows are i; the other one has the weights.
        spatial, k: its axes. Strides along what a `Gather` or `Phases` says are 0.
        gathers: of the data, and of the weights.
        weights_offset: of the first tap of the weights in their tensor.
    """

    data: int
    spatial: Spatial
    k: Group
    gathers: tuple[Gather, Gather]
    weights_offset: int
    phases: Phases


def of_accesses(
    accesses: walk.Accesses, spatial: Sequence[Axis], reduced: Sequence[Axis]
) -> Transposed | None:
    """The transposed convolution of a program; None where nothing is spread or flipped.

    Raises:
        NotPlain: something is, but not as in a transposed convolution.
    """
    for number, operand in enumerate(accesses.operands, start=1):
        if operand.multiples:
            return _of_data(accesses, number, spatial, reduced)
    if any(map(_goes_backwards, accesses.operands)):
        for number in (1, 2):
            if _slides(accesses, number, spatial, reduced):
                return _of_data(accesses, number, spatial, reduced)
    return None


def _goes_backwards(operand: walk.Access) -> bool:
    """Whether an axis goes through an operand from its end."""
    return min(axes.coefficients(operand.offset).values(), default=0) < 0


def _slides(
    accesses: walk.Accesses, data: int, spatial: Sequence[Axis], reduced: Sequence[Axis]
) -> bool:
    """Whether an operand has an index of an axis of the sum and of one that it alone has."""
    in_other = axes.coefficients(accesses.operands[2 - data].offset)
    rows = {axis for axis in spatial if axis not in in_other}
    of_indices = map(axes.coefficients, accesses.operands[data - 1].indices)
    return any(rows & set(known) and set(reduced) & set(known) for known in of_indices)


def _of_data(
    accesses: walk.Accesses, data: int, spatial: Sequence[Axis], reduced: Sequence[Axis]
) -> Transposed:
    require(not accesses.places, "its epilogue computes with places of a transposed convolution")
    _require_linear(accesses, data)
    strides = [axes.coefficients(tensor.offset) for tensor in accesses.tensors]
    operand, in_other = accesses.operands[data - 1], strides[3 - data]
    forms = strided.forms_of(operand, spatial)
    in_data = {axis for form, _ in forms for axis in axes.coefficients(form)}
    has_all = set(spatial) <= in_data | set(in_other) and set(reduced) <= in_data & set(in_other)
    require(has_all, "its convolution has an axis that one of its operands does not have")
    rows = [axis for axis in spatial if axis in in_data and axis not in in_other]
    every = strided.of_forms(operand, forms, rows, reduced)
    channel = _channel(every)
    _require_guards(operand, every)
    sliding = [d for d in every if d is not channel and (d.output or d.tap or d.form.constant)]
    images, windows = _with_images_apart(sliding)
    require(bool(windows), "nothing slides over the data of its transposed convolution")
    require(len(windows) <= _MAX_WINDOWS, f"its convolution has {len(windows)} windows")
    columns = [axis for axis in spatial if axis not in in_data]
    shared = [axis for axis in spatial if axis in in_data and axis in in_other]
    require(
        channel is not None or not shared,
        "each group of its convolution has one channel, so that tensor cores would mostly "
        "multiply zeros",
    )
    j = _one(axes.merged(axes.groups_of(columns, strides), 0), "columns")
    group = _one(axes.merged(axes.groups_of(shared, strides), 0), "groups")
    return _assembled(accesses, data, channel, images, windows, (group, j))


def _require_linear(accesses: walk.Accesses, data: int) -> None:
    """All tensors but the data are read or written at linear forms, only weights backwards."""
    for number, tensor in enumerate(accesses.tensors):
        factors = axes.coefficients(tensor.offset)
        is_linear = number == data or len(factors) == len(tensor.offset.terms)
        is_forward = number in (1, 2) or min(factors.values(), default=0) >= 0
        require(
            is_linear and is_forward,
            "a tensor of its convolution is not read or written at a linear form of its iterators",
        )


def _channel(every: Sequence[Strided]) -> Strided | None:
    """The dimension of channels: the last one that only k has, else the first."""
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
    last = [d for d in only if d.element_stride == 1]
    return next(iter(last or only), None)


def _require_guards(operand: walk.Access, every: Sequence[Strided]) -> None:
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


def _with_images_apart(sliding: Sequence[Strided]) -> tuple[Strided | None, Sequence[Strided]]:
    """The outermost dimension if it is one of images, and the windows."""
    if len(sliding) > 1 and sliding[0].is_rows:
        return sliding[0], sliding[1:]
    return None, sliding


def _one(groups: Sequence[Group], name: str) -> Group | None:
    require(len(groups) <= 1, f"several axes of its convolution's {name} are not one")
    return next(iter(groups), None)


def _assembled(
    accesses: walk.Accesses,
    data: int,
    channel: Strided | None,
    images: Strided | None,
    windows: Sequence[Strided],
    groups: tuple[Group | None, Group | None],
) -> Transposed:
    tensors, (group, j), other = accesses.tensors, groups, 3 - data
    none = (0,) * len(tensors)
    factors = [axes.coefficients(tensor.offset) for tensor in tensors]
    of_axis = channel.tap if channel else None
    n_channels = of_axis.extent if of_axis else 1
    n_images = images.outputs if images else 1
    phase_axes = tuple(_phases(d) for d in windows)
    of_data = Gather(
        n_images,
        images.element_stride if images else 0,
        tuple(_of_data_window(d) for d in windows),
        n_channels,
        channel.element_stride if channel else 1,
    )
    of_weights = Gather(
        j.extent if j else 1,
        j.strides[other] if j else 0,
        tuple(_of_taps(d, factors[other].get(d.tap, 0) if d.tap else 0) for d in windows),
        n_channels,
        factors[other][of_axis] if of_axis else 1,
    )
    backwards = [d for d in windows if d.tap and d.step < 0]
    offset = sum(factors[other][d.tap] * (d.taps - 1) for d in backwards if d.tap)
    pixel_axes = [images.output if images else None, *(d.output for d in windows)]

    def lies(number: int) -> tuple[int, ...]:
        return tuple(factors[number].get(axis, 0) if axis else 0 for axis in pixel_axes)

    reads = tuple(lies(number) for number in range(3, len(tensors)))
    phases = Phases(1, n_images, phase_axes, lies(0), reads)
    batch = (Group(phases.count, none), group or Group(1, none))
    return Transposed(
        data,
        Spatial(batch, Group(of_data.rows, none), j),
        Group(of_data.k, none),
        (of_data, of_weights),
        tensors[other].offset.constant + offset,
        phases,
    )


def _phases(d: Strided) -> PhaseAxis:
    """The phases of a dimension; of period 1 there is one, whatever its outputs' distance."""
    (dilation, constant), period = d.forward, d.period
    if period == 1:
        return PhaseAxis(1, d.outputs, d.taps, (constant,), (0,))
    moves, first_taps = [], []
    for phase in range(min(period, d.outputs)):
        tap = next(t for t in range(period) if (phase + t * dilation + constant) % period == 0)
        first_taps.append(tap)
        moves.append((phase + tap * dilation + constant) // period)
    return PhaseAxis(period, d.outputs, d.taps, tuple(moves), tuple(first_taps))


def _of_data_window(d: Strided) -> Window:
    """Where a phase reads the dimension, but for its move; phases may have fewer taps."""
    (dilation, _), period = d.forward, d.period
    outputs, taps = -(-d.outputs // period), _phases(d).most_taps
    step = d.factors[d.output] if d.output and period == 1 else 1
    return Window(outputs, taps, step, dilation, 0, d.extent, d.element_stride)


def _of_taps(d: Strided, element_stride: int) -> Window:
    """The taps of a phase in the weights, but for the first one."""
    forward = element_stride if d.step > 0 else -element_stride
    return Window(1, _phases(d).most_taps, 1, d.period, 0, d.taps, forward)
