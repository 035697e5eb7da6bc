"""Operands that are copied before the product: contiguous along k, in whole pieces.

Matrices are copied where they are not contiguous along k and ldmatrix cannot transpose them, as
it does elements of 16 bits alone: to [batch][row][k], lines filled up to a multiple of 16 bytes.

Of convolutions, channels become the last axis.

cp.async copies pieces of 4 bytes or more, so channels have to be neighbours in memory, and as
many as fill pieces. Where they are not (channels first, or three of them), the data are copied to
a workspace [batch][image][place][channel] with channels filled up with zeros, and the weights to
one [batch][column][tap][channel]. Weights are copied as well where they are not contiguous along
k and ldmatrix cannot transpose them. Those of transposed convolutions always are: to
[phase][group][column][tap][channel], with zeros for the taps that a phase has less than others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from felix.launch_plan import Launch
from felix.templates.gemm.ampere import instructions, layout
from felix.templates.gemm.phases import Phases
from felix.templates.gemm.problem import Gather, GemmProblem, Operand, Window
from felix.tir import grammar

#: Of a block; each copies one piece.
THREADS = 256
#: Channels are filled up to a multiple of so many: 4 bytes at least, of any type.
_CHANNELS = 4

#: Lines of a matrix are filled up to a multiple of so many.
LINE_BYTES = 16

#: Types of pieces, by their bytes.
VECTORS = {16: "uint4", 8: "u64", 4: "u32"}


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """A tensor [batch][row][place][channel] that is copied; strides in elements of the source.

    A matrix has one place, and its k are the channels.

    Attributes:
        param: the source; `workspace` is the number of the copy's tensor.
        batches: of the outer and the inner batch axis; 1 where one matrix serves all.
        offset: of the source's first element.
        padded: channels of the copy.
        taps: of weights that phases share: their windows, of which `places` are the taps.
        phases: which are the outer batch axis of the copy.
        is_along_rows: neighbours in memory are rows, not channels.
    """

    param: int
    workspace: int
    dtype: str
    batches: tuple[int, int]
    batch_strides: tuple[int, int]
    offset: int
    rows: int
    row_stride: int
    places: int
    place_stride: int
    channels: int
    channel_stride: int
    padded: int
    taps: tuple[Window, ...] = ()
    phases: Phases | None = None
    is_along_rows: bool = False

    @property
    def elements(self) -> int:
        """Of the copy."""
        return math.prod(self.batches) * self.matrix_elements

    @property
    def matrix_elements(self) -> int:
        """Of one matrix of the copy."""
        return self.rows * self.places * self.padded

    @property
    def copied_strides(self) -> tuple[int, int]:
        """Of the outer and the inner batch axis in the copy."""
        outer, inner = self.batches
        size = self.matrix_elements
        return size * inner if outer > 1 else 0, size if inner > 1 else 0

    @property
    def bytes(self) -> int:
        """Of the copy."""
        return self.elements * grammar.element_bytes(self.dtype)

    @property
    def read_bytes(self) -> int:
        """Of the source."""
        if self.phases is None:
            return self.bytes // self.padded * self.channels
        taps = math.prod(sum(axis.phase_taps) for axis in self.phases.axes)
        size = grammar.element_bytes(self.dtype)
        return self.batches[1] * self.rows * taps * self.channels * size

    @property
    def piece_bytes(self) -> int:
        """That a thread writes at once."""
        size = grammar.element_bytes(self.dtype)
        return next(b for b in VECTORS if self.padded * size % b == 0)

    @property
    def blocks(self) -> int:
        return -(-self.bytes // (self.piece_bytes * THREADS))


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A problem as it is computed, and the copies that its operands are."""

    problem: GemmProblem
    copies: tuple[Copy, ...] = ()

    @property
    def blocks(self) -> int:
        """Of the kernel that copies."""
        return sum(copy.blocks for copy in self.copies)


def packed(problem: GemmProblem) -> Packed:
    """The problem on copies of the operands that have to be copied."""
    a, b = problem.a, problem.b
    data = _data(problem)
    if data is None:
        return _packed_matrices(problem)
    weights = b if data is a else a
    assert data.gather is not None
    channels = data.gather.channels
    copies: list[Copy] = []
    made: dict[Operand, Operand] = {}
    piece = layout.copy_bytes(problem, data)
    if piece is None and _is_flat(data.gather.windows):
        channels = -(-channels // _CHANNELS) * _CHANNELS
        copies.append(_of_data(problem, data, data.gather, channels))
        made[data] = _packed_data(data, data.gather, copies[-1])
    is_wider = channels != data.gather.channels
    columns = problem.n if weights is b else problem.m
    if is_wider or not _suits(problem, weights):
        copy = _of_weights(problem, weights, data.gather, columns, channels, len(copies))
        if copy is None:
            return Packed(problem)
        copies.append(copy)
        made[weights] = _packed_weights(weights, copy)
    k = problem.k // data.gather.channels * channels
    changed = dataclasses.replace(problem, a=made.get(a, a), b=made.get(b, b), k=k)
    return Packed(changed, tuple(copies))


def _packed_matrices(problem: GemmProblem) -> Packed:
    """A product that is no convolution."""
    copies: list[Copy] = []
    operands = []
    for operand, rows in ((problem.a, problem.m), (problem.b, problem.n)):
        if problem.k > 1 and not _suits(problem, operand):
            copies.append(_of_matrix(problem, operand, rows, len(copies)))
            operand = _packed_weights(operand, copies[-1])
        operands.append(operand)
    a, b = operands
    return Packed(dataclasses.replace(problem, a=a, b=b), tuple(copies))


def _of_matrix(problem: GemmProblem, operand: Operand, rows: int, number: int) -> Copy:
    _, row_stride, k_stride = operand.strides
    in_line = LINE_BYTES // operand.element_bytes
    source, of_rows, place = _source(problem, operand, number), (rows, row_stride), (1, 0)
    channels = problem.k, k_stride, -(-problem.k // in_line) * in_line
    return Copy(*source, *of_rows, *place, *channels, is_along_rows=True)


def _source(
    problem: GemmProblem, operand: Operand, number: int
) -> tuple[int, int, str, tuple[int, int], tuple[int, int], int]:
    """What a `Copy`, of this number, has of its operand first."""
    batches, strides = _batches(problem, operand), problem.batch_strides(operand)
    workspace = problem.n_params + number
    return operand.param, workspace, operand.dtype, batches, strides, operand.offset


def _data(problem: GemmProblem) -> Operand | None:
    """The operand whose rows are pixels; None if nothing is gathered."""
    a, b = problem.a, problem.b
    if problem.phases:
        return a if problem.phases.pixels == 1 else b
    gathered = [operand for operand in (a, b) if operand.gather]
    moving = [o for o in gathered if o.gather and any(w.outputs > 1 for w in o.gather.windows)]
    return next(iter(moving or gathered), None)


def _suits(problem: GemmProblem, weights: Operand) -> bool:
    """Whether weights can be read where they lie."""
    if problem.phases:
        return False
    if weights.gather:
        return layout.copy_bytes(problem, weights) is not None
    instruction = instructions.INSTRUCTIONS.get((weights.dtype, weights.dtype))
    return weights.strides[2] == 1 or instruction is None or instruction.has_transposes


def _is_flat(windows: Sequence[Window]) -> bool:
    """Whether the places of all windows are one axis of the data."""
    return all(
        outer.element_stride == inner.extent * inner.element_stride
        for outer, inner in itertools.pairwise(windows)
    )


def _batches(problem: GemmProblem, operand: Operand) -> tuple[int, int]:
    """Matrices of an operand along both batch axes."""
    extents, strides = problem.batch_extents, problem.batch_strides(operand)
    outer, inner = (e if s else 1 for e, s in zip(extents, strides, strict=True))
    return outer, inner


def _of_data(problem: GemmProblem, data: Operand, of: Gather, channels: int) -> Copy:
    rows = of.images, of.image_stride
    places = math.prod(w.extent for w in of.windows), of.windows[-1].element_stride
    of_channels = of.channels, of.channel_stride, channels
    return Copy(*_source(problem, data, 0), *rows, *places, *of_channels)


def _packed_data(data: Operand, of: Gather, copy: Copy) -> Operand:
    """The data where they are copied to."""
    outer, inner = copy.copied_strides
    gather = of.packed(copy.padded, copy.padded)
    return Operand(copy.workspace, data.dtype, (inner, 0, 0), gather, outer_stride=outer)


def _of_weights(
    problem: GemmProblem, weights: Operand, data: Gather, columns: int, channels: int, number: int
) -> Copy | None:
    """None where their taps are not one axis."""
    if problem.phases:
        return _of_phases(problem, weights, channels, number)
    _, row_stride, k_stride = weights.strides
    place_stride, channel_stride = data.channels * k_stride, k_stride
    if weights.gather:
        if not _is_flat(weights.gather.windows):
            return None
        row_stride = weights.gather.image_stride
        place_stride = weights.gather.windows[-1].element_stride
        channel_stride = weights.gather.channel_stride
    rows, places = (columns, row_stride), (problem.k // data.channels, place_stride)
    of_channels = data.channels, channel_stride, channels
    return Copy(*_source(problem, weights, number), *rows, *places, *of_channels)


def _of_phases(problem: GemmProblem, weights: Operand, channels: int, number: int) -> Copy:
    """The weights of a transposed convolution, the taps of each phase by themselves."""
    of, of_result = weights.gather, problem.phases
    assert of is not None and of_result is not None
    _, inner_stride = problem.batch_strides(weights)
    source = weights.param, problem.n_params + number, weights.dtype
    batches = (of_result.count, problem.batch_extents[1] if inner_stride else 1), (0, inner_stride)
    rows, places = (of.images, of.image_stride), (math.prod(w.taps for w in of.windows), 0)
    shape = *rows, *places, of.channels, of.channel_stride, channels
    return Copy(*source, *batches, weights.offset, *shape, of.windows, of_result)


def _packed_weights(weights: Operand, copy: Copy) -> Operand:
    """The weights where they are copied to: contiguous along k."""
    k = copy.places * copy.padded
    outer, inner = copy.copied_strides
    return Operand(copy.workspace, weights.dtype, (inner, k, 1), outer_stride=outer)


def launch(of: Packed) -> Launch:
    """The kernel that copies."""
    args = tuple(arg for copy in of.copies for arg in (copy.param, copy.workspace))
    return Launch("pack", (of.blocks, 1, 1, THREADS, 1, 1), 0, args)
