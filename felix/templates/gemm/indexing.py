"""C++ of where the elements of a matrix of C lie, and of what depends on their place.

Of transposed convolutions: which phase a matrix of the batch is, and where its pixels lie in the
result and in what the epilogue reads.

Notation: `batch`, `row` and `column` are integers in the generated text; `phase0`, ... are the
phases of the dimensions, `image`, `pixel0`, ... a pixel's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from felix.templates.gemm.phases import Phases
from felix.templates.gemm.problem import GemmProblem, Output, Place, Read, Tensor


def constants(values: Mapping[str, Any]) -> str:
    """Definitions of integers by name."""
    return "".join(f"constexpr int {name} = {int(value)};\n" for name, value in values.items())


def offset(
    tensor: Tensor, inner_batch: int | None, column: str = "column", wide: str = "{}"
) -> str:
    """The index of an element in its tensor; axes of stride 0 are left out.

    Args:
        wide: a form that makes a factor as wide as the index has to be.
    """
    terms = _batch_terms(tensor, inner_batch, wide)
    for name, stride in zip(("row", column), tensor.strides[1:], strict=True):
        if stride:
            terms.append(name if stride == 1 else f"{wide.format(name)} * {stride}")
    if tensor.offset:
        terms.append(str(tensor.offset))
    return " + ".join(terms) or "0"


def _batch_terms(tensor: Tensor, inner_batch: int | None, wide: str) -> list[str]:
    """Of the index, what the batch adds."""
    axes = [("batch", tensor.strides[0])]
    if inner_batch is not None:
        axes = [
            (f"(batch % {inner_batch})", tensor.strides[0]),
            (f"(batch / {inner_batch})", tensor.outer_stride),
        ]
    return [
        name if factor == 1 else f"{wide.format(name)} * {factor}"
        for name, factor in axes
        if factor
    ]


def matrix_start(tensor: Tensor, problem: GemmProblem) -> str:
    """The index of the first element of matrix `batch`, a long long."""
    terms = _batch_terms(tensor, problem.inner_batch, "(long long){}")
    return " + ".join([*terms, f"{tensor.offset}ll"])


def place(of: Place, column: str = "column") -> str:
    """The value of a place."""
    index = ("batch", "row", column)[of.axis]
    divided = f"{index} / {of.divisor}" if of.divisor > 1 else index
    return f"int({divided} % {of.extent})"


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


def phase_of_batch(phases: Phases, inner_batch: int) -> str:
    """Statements that define the phase of each dimension for `batch`."""
    text = f"    int phases = int(batch) / {inner_batch};\n"
    for number, axis in reversed(list(enumerate(phases.axes))):
        text += f"    const int phase{number} = phases % {axis.count};\n"
        text += f"    phases /= {axis.count};\n"
    return text


def stepped(values: Sequence[int], name: str) -> str:
    """An expression that is values[name]."""
    text = str(values[-1])
    for number in range(len(values) - 2, -1, -1):
        if values[number] != values[number + 1]:
            text = f"({name} < {number + 1} ? {values[number]} : {text})"
    return text


def tap_counts(phases: Phases) -> list[str]:
    """Expressions of the taps of a phase, of each window; at least 1, for they are divisors."""
    return [
        stepped([max(1, taps) for taps in axis.phase_taps], f"phase{number}")
        for number, axis in enumerate(phases.axes)
    ]


def length_of_batch(problem: GemmProblem) -> str:
    """A function of the batch: how long the sum is; and whether every length is whole steps."""
    phases, lengths = problem.phases, problem.lengths
    body = "    return K;\n"
    if phases and len(lengths) > 1:
        axes = enumerate(phases.axes)
        taps = [stepped(axis.phase_taps, f"phase{number}") for number, axis in axes]
        product = " * ".join([str(problem.k // phases.most_taps), *taps])
        body = f"{phase_of_batch(phases, problem.batch_extents[1])}    return {product};\n"
    are_steps = " && ".join(f"{each} % BLOCK_K == 0" for each in sorted(lengths))
    return (
        f"constexpr bool LENGTHS_ARE_STEPS = {are_steps};\n"
        f"__device__ __forceinline__ int length_of(int batch) {{\n{body}}}\n"
    )


def pixel_of(problem: GemmProblem) -> str:
    """Statements that define the pixel; they return where it is beyond the result."""
    phases = problem.phases
    assert phases is not None
    index = ("row", "column")[phases.pixels - 1]
    text = phase_of_batch(phases, problem.batch_extents[1])
    text += f"    int rest = int({index});\n"
    for number, axis in reversed(list(enumerate(phases.axes))):
        text += (
            f"    const long long pixel{number} = "
            f"rest % {axis.outputs} * {axis.stride} + phase{number};\n"
            f"    rest /= {axis.outputs};\n"
        )
        if axis.outputs * axis.count > axis.extent:
            text += f"    if (pixel{number} >= {axis.extent}) return;\n"
    return f"{text}    const long long image = rest;\n"


def strides_of(tensor: Output | Read, problem: GemmProblem) -> tuple[int, ...]:
    """Of image and pixel."""
    phases = problem.phases
    assert phases is not None
    if isinstance(tensor, Output):
        return phases.output
    return phases.reads[problem.epilogue.reads.index(tensor)]


def pixel_offset(tensor: Output | Read, problem: GemmProblem) -> str:
    """What the pixel adds to the index of an element."""
    strides = strides_of(tensor, problem)
    names = ("image", *(f"pixel{number}" for number in range(len(strides) - 1)))
    return "".join(f" + {n} * {s}" for n, s in zip(names, strides, strict=True) if s)
