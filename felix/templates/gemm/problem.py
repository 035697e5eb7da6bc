"""The problem of a GEMM template: C[b, i, j] = epilogue(Σ_k A[b, i, k] · B[b, k, j]).

Every tensor is addressed by strides in elements of the three axes its index has, so layouts,
transpositions, shared operands (stride 0) and swapped operands are all the same form. An operand
of a convolution is gathered instead: rows are output pixels, k is (taps, channel).
"""

from __future__ import annotations

import dataclasses
import math

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
    """

    param: int
    dtype: str
    strides: Strides
    gather: Gather | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """A tensor that the epilogue reads, an element for each of C; strides of batch, i and j."""

    name: str
    param: int
    dtype: str
    strides: Strides


@dataclasses.dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of a sum before it is stored.

    `expression` is C++ of `x`, the sum in the accumulator's type, and of the names of `reads`,
    each converted to float32 (int32 for integers). Its value is converted to the output's dtype.
    Names are identifiers that C++ and the templates leave free (`read0`, ...), and are to be
    variables, for the expression may be the call of a lambda that captures them. It may name
    functions of C's math library for float32 (`expf`, `fmaxf`), and `min` and `max` of integers.
    """

    expression: str = "x"
    reads: tuple[Read, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """C: its parameter, dtype and strides of batch, i and j."""

    param: int
    dtype: str
    strides: Strides


@dataclasses.dataclass(frozen=True, slots=True)
class GemmProblem:
    """A product with its epilogue; `accumulator` is the dtype of sums, float32 or int32."""

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

    @property
    def swapped(self) -> GemmProblem:
        """The same function as Cᵀ = Bᵀ · Aᵀ: few rows become few columns."""

        def turned(strides: Strides) -> Strides:
            return strides[0], strides[2], strides[1]

        reads = tuple(
            dataclasses.replace(read, strides=turned(read.strides)) for read in self.epilogue.reads
        )
        return dataclasses.replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b,
            b=self.a,
            output=dataclasses.replace(self.output, strides=turned(self.output.strides)),
            epilogue=dataclasses.replace(self.epilogue, reads=reads),
        )
