"""C++ of where the elements of a matrix of C lie, and of what depends on their place.

Notation: `batch`, `row` and `column` are integers in the generated text.
"""

from __future__ import annotations

from felix.templates.gemm.problem import GemmProblem, Place, Tensor


def offset(
    tensor: Tensor,
    inner_batch: int | None,
    row: str = "row",
    column: str = "column",
    wide: str = "{}",
) -> str:
    """The index of an element in its tensor; axes of stride 0 are left out.

    Args:
        wide: a form that makes a factor as wide as the index has to be.
    """
    batch, inner = tensor.strides[0], tensor.strides[1:]
    terms = batch_terms(tensor, batch, inner_batch, wide)
    for name, stride in zip((row, column), inner, strict=True):
        if stride:
            terms.append(name if stride == 1 else f"{wide.format(name)} * {stride}")
    if tensor.offset:
        terms.append(str(tensor.offset))
    return " + ".join(terms) or "0"


def batch_terms(tensor: Tensor, stride: int, inner_batch: int | None, wide: str) -> list[str]:
    """Of the index, what the batch adds."""
    if inner_batch is None:
        axes = [("batch", stride)]
    else:
        axes = [
            (f"(batch % {inner_batch})", stride),
            (f"(batch / {inner_batch})", tensor.outer_stride),
        ]
    return [
        name if factor == 1 else f"{wide.format(name)} * {factor}"
        for name, factor in axes
        if factor
    ]


def matrix_start(tensor: Tensor, problem: GemmProblem) -> str:
    """The index of the first element of matrix `batch`, a long long."""
    terms = batch_terms(tensor, tensor.strides[0], problem.inner_batch, "(long long){}")
    return " + ".join([*terms, f"{tensor.offset}ll"])


def place(of: Place, row: str = "row", column: str = "column") -> str:
    """The value of a place."""
    index = ("batch", row, column)[of.axis]
    divided = f"{index} / {of.divisor}" if of.divisor > 1 else index
    return f"int({divided} % {of.extent})"


def are_pairs_aligned(tensor: Tensor, batches: int, m: int, n: int) -> bool:
    """Whether columns 2i and 2i + 1 are a vector in memory, for all rows and batches."""
    return are_aligned(tensor, batches, m, n, 2)


def are_aligned(tensor: Tensor, batches: int, m: int, n: int, count: int) -> bool:
    """Whether `count` columns from a multiple of it are a vector, for all rows and batches."""
    batch, row, column = tensor.strides
    return (
        column == 1
        and n % count == 0
        and tensor.offset % count == 0
        and (row % count == 0 or m == 1)
        and ((batch % count == 0 and tensor.outer_stride % count == 0) or batches == 1)
    )
