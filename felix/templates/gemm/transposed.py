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

import math
from collections.abc import Sequence

from felix.templates.gemm import axes, dimensions, walk
from felix.templates.gemm.axes import Axis, Group, Spatial
from felix.templates.gemm.dimensions import Convolution, Dimension, Roles
from felix.templates.gemm.phases import PhaseAxis, Phases
from felix.templates.gemm.problem import Gather, Window
from felix.templates.gemm.stages import require
from felix.tir.ranges import Linear


def of_accesses(
    accesses: walk.Accesses, spatial: Sequence[Axis], reduced: Sequence[Axis]
) -> Convolution | None:
    """The transposed convolution of a program; None where nothing is spread or flipped.

    Raises:
        NotPlain: something is, but not as in a transposed convolution.
    """
    for number, operand in enumerate(accesses.operands, start=1):
        if operand.multiples:
            return _of_data(accesses, number, spatial, reduced)
    # an axis goes through an operand from its end
    offsets = [axes.coefficients(operand.offset) for operand in accesses.operands]
    if any(min(factors.values(), default=0) < 0 for factors in offsets):
        for number in (1, 2):
            if Roles(accesses, number, spatial, reduced).slide(accesses.operands[number - 1]):
                return _of_data(accesses, number, spatial, reduced)
    return None


def _of_data(
    accesses: walk.Accesses, data: int, spatial: Sequence[Axis], reduced: Sequence[Axis]
) -> Convolution:
    require(not accesses.places, "its epilogue computes with places of a transposed convolution")
    dimensions.require_linear(accesses, data, (1, 2))
    operand = accesses.operands[data - 1]
    forms = _forms_of(operand, spatial)
    in_data = [axis for form, _ in forms for axis in axes.coefficients(form)]
    known = Roles(accesses, data, spatial, reduced, in_data)
    known.require_all()
    every = dimensions.of_forms(operand, forms, known)
    channel = dimensions.channel_of(every)
    dimensions.require_guards(operand, every)
    images, windows = _with_images_apart([d for d in every if d.is_sliding and d is not channel])
    require(bool(windows), "nothing slides over the data of its transposed convolution")
    dimensions.require_windows(windows)
    dimensions.require_channels(channel, known)
    j, group = known.one(known.columns, "columns"), known.one(known.shared, "groups")
    return _assembled(accesses, known, channel, images, windows, (group, j))


def _forms_of(operand: walk.Access, spatial: Sequence[Axis]) -> list[tuple[Linear, int]]:
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

    divided = [dimensions.divided(index) for index in operand.indices]
    bounds = operand.guards - {form for form, _ in divided}
    zeros = sorted((g for g in bounds if g.scaled(-1) in bounds and is_forward(g)), key=order)
    for number, extent in reversed(list(enumerate(operand.extents))):
        if zeros and extent == 1 and operand.indices[number] == Linear(0):
            divided[number] = (zeros.pop(), 1)
    return divided


def _with_images_apart(
    sliding: Sequence[Dimension],
) -> tuple[Dimension | None, Sequence[Dimension]]:
    """The outermost dimension if it is one of images, and the windows."""
    if len(sliding) > 1 and sliding[0].is_rows and sliding[0].step == 1:
        return sliding[0], sliding[1:]
    return None, sliding


def _assembled(
    accesses: walk.Accesses,
    known: Roles,
    channel: Dimension | None,
    images: Dimension | None,
    windows: Sequence[Dimension],
    groups: tuple[Group | None, Group | None],
) -> Convolution:
    (group, j), other, factors = groups, known.other, known.strides
    none = (0,) * len(factors)
    of_axis = channel.tap if channel else None
    n_channels, channel_stride = (channel.taps, channel.tap_stride) if channel else (1, 1)
    n_images, image_stride = (images.outputs, images.element_stride) if images else (1, 0)
    n_columns, column_stride = (j.extent, j.strides[other]) if j else (1, 0)
    phase_axes = tuple(_phases(d) for d in windows)
    moved = tuple(_of_data_window(d) for d in windows)
    taps = tuple(_of_taps(d, factors[other].get(d.tap, 0) if d.tap else 0) for d in windows)
    of_data = Gather(n_images, image_stride, moved, n_channels, channel_stride)
    of_k = factors[other][of_axis] if of_axis else 1
    of_weights = Gather(n_columns, column_stride, taps, n_channels, of_k)
    backwards = [d for d in windows if d.tap and d.dilation < 0]
    offset = sum(factors[other][d.tap] * (d.taps - 1) for d in backwards if d.tap)
    pixel_axes = [images.output if images else None, *(d.output for d in windows)]

    def lies(number: int) -> tuple[int, ...]:
        return tuple(factors[number].get(axis, 0) if axis else 0 for axis in pixel_axes)

    reads = tuple(lies(number) for number in range(3, len(factors)))
    phases = Phases(1, n_images, phase_axes, lies(0), reads)
    batch = (Group(phases.count, none), group or Group(1, none))
    spatial, k = Spatial(batch, Group(of_data.rows, none), j), Group(of_data.k, none)
    offset += accesses.tensors[other].offset.constant
    return Convolution(known.data, spatial, k, (of_data, of_weights), offset, phases)


def _phases(d: Dimension) -> PhaseAxis:
    """The phases of a dimension; of period 1 there is one, whatever its outputs' distance."""
    (dilation, constant), period = _forward(d), _period(d)
    if period == 1:
        return PhaseAxis(1, d.outputs, d.taps, (constant,), (0,))
    moves, first_taps = [], []
    for phase in range(min(period, d.outputs)):
        tap = next(t for t in range(period) if (phase + t * dilation + constant) % period == 0)
        first_taps.append(tap)
        moves.append((phase + tap * dilation + constant) // period)
    return PhaseAxis(period, d.outputs, d.taps, tuple(moves), tuple(first_taps))


def _of_data_window(d: Dimension) -> Window:
    """Where a phase reads the dimension, but for its move; phases may have fewer taps."""
    (dilation, _), period = _forward(d), _period(d)
    outputs, taps = -(-d.outputs // period), _phases(d).most_taps
    step = d.step if period == 1 else 1
    return Window(outputs, taps, step, dilation, 0, d.extent, d.element_stride)


def _of_taps(d: Dimension, element_stride: int) -> Window:
    """The taps of a phase in the weights, but for the first one."""
    forward = element_stride if d.dilation > 0 else -element_stride
    return Window(1, _phases(d).most_taps, 1, _period(d), 0, d.taps, forward)


def _forward(d: Dimension) -> tuple[int, int]:
    """(dilation, constant) with the taps in the order that makes the dilation positive."""
    constant = d.form.constant
    if d.dilation > 0:
        return d.dilation, constant
    return -d.dilation, constant + d.dilation * (d.taps - 1)


def _period(d: Dimension) -> int:
    """Pixels after which a phase comes again.

    Of a dimension of one cell any stride says the same. As many as there are taps let each
    phase have one, where one of stride 1 would multiply padding by most of them.
    """
    if d.extent > 1 or d.stride > 1 or not d.output:
        return d.stride
    is_dense = d.step == math.gcd(d.dilation, d.taps) == 1
    return d.taps if is_dense else 1
