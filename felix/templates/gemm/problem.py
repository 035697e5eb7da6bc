"""The problem of a GEMM template: C[b, i, j] = epilogue(Σ_k A[b, i, k] · B[b, k, j]).

Every tensor is addressed by strides in elements of the three axes its index has, so layouts,
transpositions, shared operands (stride 0) and swapped operands are all the same form. An operand
of a convolution is gathered instead: rows are output pixels, k is (taps, channel).

The batch may be two axes that are not one by the tensors' strides, like images and heads. Then b
counts both, matrix b is number b // inner_batch of the outer and b % inner_batch of the inner
axis, and a tensor has a stride for each: `outer_stride` and the first of `strides`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from felix.templates.gemm.phases import Phases
from felix.tir import grammar

Strides = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A spatial dimension of a gathered operand.

    Output `o` and tap `t` read place `o * stride + t * dilation - before` of the dimension;
    what lies outside [0, extent) is 0.

    Attributes:
        element_stride: elements between neighbours of the dimension.
    """

    outputs: int
    taps: int
    stride: int
    dilation: int
    before: int
    extent: int
    element_stride: int

    @property
    def is_inside(self) -> bool:
        """Whether no tap of any output lies outside."""
        last = (self.outputs - 1) * self.stride + (self.taps - 1) * self.dilation - self.before
        return self.before <= 0 and last < self.extent


@dataclasses.dataclass(frozen=True, slots=True)
class Gather:
    """Where the elements of a gathered operand lie.

    A row is (image, output of each window), a value of k is (tap of each window, channel); the
    last of each changes fastest.

    Attributes:
        images, image_stride: their number, and elements from one to the next.
        windows: 1 to 3, the outermost first.
        channels: of a group.
        channel_stride: elements from one channel to the next: 1 where channels are last.
    """

    images: int
    image_stride: int
    windows: tuple[Window, ...]
    channels: int
    channel_stride: int = 1

    @property
    def rows(self) -> int:
        """Output pixels of all images."""
        return self.images * math.prod(window.outputs for window in self.windows)

    @property
    def k(self) -> int:
        """Length of the sum: taps and channels."""
        return self.channels * math.prod(window.taps for window in self.windows)

    def packed(self, channels: int, step: int) -> Gather:
        """The same where all channels of a place are adjacent, `step` elements a place."""
        windows: list[Window] = []
        for window in reversed(self.windows):
            windows.insert(0, dataclasses.replace(window, element_stride=step))
            step *= window.extent
        return Gather(self.images, step, tuple(windows), channels)


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """A or B.

    Attributes:
        param: its number among the program's parameters.
        dtype: TVM's name.
        strides: of batch, row (of A) or column (of B), and k. One of the last two is 1 where its
            extent is more than 1; the batch's is 0 where one matrix serves all. Of a gathered
            operand the last two are 0.
        gather: of an operand of a convolution.
        outer_stride: of the outer batch axis, where there are two.
        offset: elements before the first, in its tensor.
    """

    param: int
    dtype: str
    strides: Strides
    gather: Gather | None = None
    outer_stride: int = 0
    offset: int = 0

    @property
    def element_bytes(self) -> int:
        return grammar.element_bytes(self.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """A tensor that the epilogue reads, an element for each of C; strides of batch, i and j.

    `outer_stride` and `offset` are as in `Operand`.
    """

    name: str
    param: int
    dtype: str
    strides: Strides
    outer_stride: int = 0
    offset: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """An integer that says where in C an element lies: `index // divisor % extent`.

    Attributes:
        axis: whose index: 0 is the batch, 1 is i, 2 is j.
    """

    name: str
    axis: int
    divisor: int
    extent: int


@dataclasses.dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of a sum before it is stored.

    `expression` is C++ of `x`, the sum in the accumulator's type, of the names of `reads`, each
    converted to float32 (int32 for integers), and of those of `places`, which are of type int.
    Its value is converted to the output's dtype.
    Names are identifiers that C++ and the templates leave free (`read0`, ...), and are to be
    variables, for the expression may be the call of a lambda that captures them. It may name
    functions of C's math library for float32 (`expf`, `fmaxf`), `min` and `max` of integers, and
    what `epilogue.in_device_code` defines.
    """

    expression: str = "x"
    reads: tuple[Read, ...] = ()
    places: tuple[Place, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """C: its parameter, dtype and strides of batch, i and j; the rest is as in `Operand`."""

    param: int
    dtype: str
    strides: Strides
    outer_stride: int = 0
    offset: int = 0

    @property
    def is_row_major(self) -> bool:
        """Whether columns are neighbours in memory; else rows are, or nothing is."""
        return self.strides[2] == 1


#: What lies in a parameter.
Tensor = Operand | Read | Output


@dataclasses.dataclass(frozen=True, slots=True)
class GemmProblem:
    """A product with its epilogue.

    Attributes:
        batch: matrices of C, of both batch axes together.
        accumulator: the dtype of sums, float32 or int32.
        inner_batch: extent of the inner of two batch axes; None where there is one.
        phases: of a transposed convolution; the inner batch axis is the group.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    accumulator: str
    output: Output
    epilogue: Epilogue
    n_params: int
    inner_batch: int | None = None
    phases: Phases | None = dataclasses.field(default=None, repr=False)

    @property
    def identity(self) -> str:
        """The problem as text, the same in every process."""
        return repr(self) if self.phases is None else f"{self!r}|{self.phases!r}"

    @property
    def lengths(self) -> Counter[int]:
        """Of the sums; how many matrices of C have which."""
        if self.phases is None:
            return Counter({self.k: self.batch})
        groups = self.batch_extents[1]
        of_phases = self.phases.lengths(self.k).items()
        return Counter({length: count * groups for length, count in of_phases})

    @property
    def stored_elements(self) -> int:
        """Of the result."""
        if self.phases is None:
            return self.batch * self.m * self.n
        others = self.n if self.phases.pixels == 1 else self.m
        return self.batch_extents[1] * others * math.prod(self.phases.extents)

    @property
    def output_bytes(self) -> int:
        """Of the result."""
        return grammar.element_bytes(self.output.dtype) * self.stored_elements

    @property
    def read_bytes(self) -> int:
        """Of the epilogue's reads, an element for each of C."""
        sizes = (grammar.element_bytes(read.dtype) for read in self.epilogue.reads)
        return self.stored_elements * sum(sizes)

    @property
    def unique_read_bytes(self) -> int:
        """Of the epilogue's reads, each element once."""
        return sum(
            grammar.element_bytes(read.dtype) * self.distinct_elements(read)
            for read in self.epilogue.reads
        )

    @property
    def products(self) -> int:
        """Of two elements that the result is the sum of; those with padding are counted."""
        if self.phases is None:
            return self.batch * self.m * self.n * self.k
        data, others = (self.a, self.n) if self.phases.pixels == 1 else (self.b, self.m)
        assert data.gather is not None
        pairs = math.prod(axis.pairs for axis in self.phases.axes)
        of_column = self.phases.images * data.gather.channels * pairs
        return self.batch_extents[1] * others * of_column

    @property
    def batch_extents(self) -> tuple[int, int]:
        """Of the outer and the inner batch axis; the outer one has 1 where there is one axis."""
        inner = self.inner_batch or self.batch
        return self.batch // inner, inner

    def batch_strides(self, tensor: Tensor) -> tuple[int, int]:
        """Of the outer and the inner batch axis; 0 where the axis has one matrix."""
        outer, inner = self.batch_extents
        return tensor.outer_stride if outer > 1 else 0, tensor.strides[0] if inner > 1 else 0

    def matrices(self, tensor: Tensor) -> int:
        """Matrices of a tensor that differ: batch axes of stride 0 do not count."""
        extents, strides = self.batch_extents, self.batch_strides(tensor)
        return math.prod(e for e, stride in zip(extents, strides, strict=True) if stride)

    def distinct_elements(self, read: Read) -> int:
        """Elements of a read that differ."""
        _, row, column = read.strides
        if self.phases is not None:
            number = self.epilogue.reads.index(read)
            pixels = zip(self.phases.extents, self.phases.reads[number], strict=True)
            others = (self.n if column else 1) if self.phases.pixels == 1 else self.m if row else 1
            return self.matrices(read) * others * math.prod(e for e, s in pixels if s)
        return self.matrices(read) * (self.m if row else 1) * (self.n if column else 1)

    @property
    def swapped(self) -> GemmProblem:
        """The same function as Cᵀ = Bᵀ · Aᵀ: few rows become few columns."""

        def turned(strides: Strides) -> Strides:
            return strides[0], strides[2], strides[1]

        reads = tuple(
            dataclasses.replace(read, strides=turned(read.strides)) for read in self.epilogue.reads
        )
        places = tuple(
            dataclasses.replace(place, axis=(0, 2, 1)[place.axis])
            for place in self.epilogue.places
        )
        return dataclasses.replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b,
            b=self.a,
            output=dataclasses.replace(self.output, strides=turned(self.output.strides)),
            epilogue=dataclasses.replace(self.epilogue, reads=reads, places=places),
            phases=self.phases and dataclasses.replace(self.phases, pixels=3 - self.phases.pixels),
        )
