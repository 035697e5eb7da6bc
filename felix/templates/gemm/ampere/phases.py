"""C++ of the phases of transposed convolutions: which phase a matrix of the batch is, where its
pixels lie in the result and in what the epilogue reads, and stores of those that are inside.

Notation: `batch` and `row` or `column` are integers in the generated text; `phase0`, ... are the
phases of the dimensions, `image`, `pixel0`, ... a pixel's place.
"""

from __future__ import annotations

from collections.abc import Sequence

from felix.templates.gemm.phases import Phases
from felix.templates.gemm.problem import GemmProblem, Output, Read


def of_batch(phases: Phases, inner_batch: int) -> str:
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


def length(problem: GemmProblem) -> str:
    """A function of the batch: how long the sum is; and whether every length is whole steps."""
    phases, lengths = problem.phases, problem.lengths
    body = "    return K;\n"
    if phases and len(lengths) > 1:
        axes = enumerate(phases.axes)
        taps = [stepped(axis.phase_taps, f"phase{number}") for number, axis in axes]
        product = " * ".join([str(problem.k // phases.most_taps), *taps])
        body = f"{of_batch(phases, problem.batch_extents[1])}    return {product};\n"
    are_steps = " && ".join(f"{each} % BLOCK_K == 0" for each in sorted(lengths))
    return (
        f"constexpr bool LENGTHS_ARE_STEPS = {are_steps};\n"
        f"__device__ __forceinline__ int length_of(int batch) {{\n{body}}}\n"
    )


def pixel(problem: GemmProblem) -> str:
    """Statements that define the pixel; they return where it is beyond the result."""
    phases = problem.phases
    assert phases is not None
    index = ("row", "column")[phases.pixels - 1]
    text = of_batch(phases, problem.batch_extents[1])
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


def offset(tensor: Output | Read, problem: GemmProblem) -> str:
    """What the pixel adds to the index of an element."""
    strides = strides_of(tensor, problem)
    names = ("image", *(f"pixel{number}" for number in range(len(strides) - 1)))
    return "".join(f" + {n} * {s}" for n, s in zip(names, strides, strict=True) if s)
