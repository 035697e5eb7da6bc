"""The problem of a GEMM template: C[b, i, j] = epilogue(Σ_k A[b, i, k] · B[b, k, j]).

Every tensor is addressed by strides in elements of the three axes its index has, so layouts,
transpositions, shared operands (stride 0) and swapped operands are all the same form.
"""

from __future__ import annotations

import dataclasses

Strides = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """A or B.

    Attributes:
        param: its number among the program's parameters.
        dtype: TVM's name.
        strides: of batch, row (of A) or column (of B), and k. One of the last two is 1 where its
            extent is more than 1; the batch's is 0 where one matrix serves all.
    """

    param: int
    dtype: str
    strides: Strides


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
