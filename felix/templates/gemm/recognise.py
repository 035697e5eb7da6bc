"""Programs as problems of GEMM templates.

Recognised is a program with one sum of products of two tensors, whose result goes through
elementwise stages to the program's one output:

    sum[s] = Σ_k A[f(s, k)] · B[g(s, k)]      output[o] = epilogue(sum[h(o)], tensors at o)

Indices may be any that become linear once iterators are split, so reshapes, transpositions and
broadcasts before and after the product are a matter of strides. Operands may be cast to wider
types. A program that sums in a narrow float is recognised as one that sums in float32, which is
at least as near to the exact result. Convolutions are products with a gathered operand
(`convolution`), transposed ones a convolution for each phase (`transposed`). What is not
recognised is left to trace sketches.

Notation: iterators of the output's store and of the sum are the axes (`axes.Axis`); a tensor is
read where a linear form of them says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tvm

from felix import errors
from felix.templates.gemm import axes, convolution, epilogue, problem, transposed, walk
from felix.templates.gemm.axes import MAX_BATCH_AXES, Axis, Group, Spatial
from felix.templates.gemm.dimensions import Convolution
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.stages import NotPlain, StagedFunction, program_of, require
from felix.tir import grammar
from felix.tir.ranges import Linear

#: Times that an axis may be split.
_MAX_SPLITS = 16

#: Strides of a tensor by axes; of all tensors in the order of `walk.Accesses.tensors`.
AxisStrides: TypeAlias = Mapping[Axis, int]


@dataclasses.dataclass(frozen=True, slots=True)
class NotRecognised:
    """Why a program is no problem of a GEMM template: a sentence about "it", the program."""

    reason: str


def recognise(mod: tvm.IRModule) -> GemmProblem | NotRecognised:
    """The product and epilogue that the PrimFunc "main" of a task computes, or why it has none."""
    try:
        return _problem(program_of(mod["main"]))
    except (NotPlain, epilogue.Unsupported) as error:
        return NotRecognised(str(error))
    except errors.WorkloadError as error:
        return NotRecognised(f"its indices are not understood: {error}")


def _problem(program: StagedFunction) -> GemmProblem:
    """The problem; axes are split until all tensors are read at linear forms of them."""
    made = axes.Axes()
    spatial = {axis.variable: made.new(axis.extent) for axis in program.output.spatial}
    reduced = {axis.variable: made.new(axis.extent) for axis in program.product.reduced}
    for _ in range(_MAX_SPLITS):
        accesses = walk.accesses_of(program, made, spatial, reduced)
        if not any(made.split(form) for form in _forms(accesses)):
            break
    parts = made.all_parts(spatial.values()), made.all_parts(reduced.values())
    phased = transposed.of_accesses(accesses, *parts)
    if phased is not None:
        return _convolution(program, accesses, phased)
    try:
        plain = _product(program, accesses, *parts)
    except NotPlain:
        sliding = convolution.of_accesses(accesses, *parts)
        if sliding is None:
            raise
        return _convolution(program, accesses, sliding)
    has_batch = plain.batch > 1 and not all(
        plain.matrices(operand) == plain.batch for operand in (plain.a, plain.b)
    )
    sliding = _sliding(accesses, *parts) if has_batch else None
    return _convolution(program, accesses, sliding) if sliding else plain


def _forms(accesses: walk.Accesses) -> list[Linear]:
    """What is to be linear in axes: offsets, but not where data are spread by a stride."""
    of_spread = [index for t in accesses.tensors if t.multiples for index in t.plain_indices]
    return [*(t.offset for t in accesses.tensors if not t.multiples), *of_spread]


def _sliding(
    accesses: walk.Accesses, spatial: Sequence[Axis], reduced: Sequence[Axis]
) -> Convolution | None:
    """A convolution that is a product as well: rows apart by a stride; None if it is none."""
    try:
        sliding = convolution.of_accesses(accesses, spatial, reduced)
    except NotPlain:
        return None
    return sliding if sliding and sliding.slides else None


def _product(
    program: StagedFunction,
    accesses: walk.Accesses,
    spatial: Sequence[Axis],
    reduced: Sequence[Axis],
) -> GemmProblem:
    """The product of operands that strides describe."""
    strides = [axes.strides_of(tensor.offset) for tensor in accesses.tensors]
    linear = [each for each in strides if each is not None]
    require(
        len(linear) == len(strides) and not any(each.guards for each in accesses.operands),
        "a tensor is not read or written at a linear form of its iterators",
    )
    groups, k = _spatial_groups(linear, spatial), _sum_group(linear, reduced)
    made = _assembled(program, accesses, groups, k)
    _require_adjacent(made.a, made.m, made.k)
    _require_adjacent(made.b, made.n, made.k)
    return made.swapped if _is_turned(made) else made


def _convolution(
    program: StagedFunction, accesses: walk.Accesses, sliding: Convolution
) -> GemmProblem:
    """The product, of all phases, whose rows are gathered from their tensor's first element on."""
    made = _assembled(program, accesses, sliding.spatial, sliding.k, sliding.data)
    offsets = 0, sliding.weights_offset
    a, b = (
        dataclasses.replace(
            operand, strides=(operand.strides[0], 0, 0), gather=gather, offset=offset
        )
        if gather
        else operand
        for operand, gather, offset in zip((made.a, made.b), sliding.gathers, offsets, strict=True)
    )
    made = dataclasses.replace(made, a=a, b=b, phases=sliding.phases)
    if b.gather is None:
        _require_adjacent(b, made.n, made.k)
    has_phases = sliding.phases is not None
    is_apart = has_phases and made.n > 1 and made.output.strides[2] != 1
    return made.swapped if is_apart or (not has_phases and _is_turned(made)) else made


def _assembled(
    program: StagedFunction,
    accesses: walk.Accesses,
    groups: Spatial,
    k: Group | None,
    first: int = 1,
) -> GemmProblem:
    """The problem of these groups; `first` is the tensor that is A."""
    tensors = accesses.tensors
    dtypes = [grammar.dtype(program.params[tensor.param]) for tensor in tensors]
    outer, inner = (None, *groups.batch)[-2:] if groups.batch else (None, None)

    def lies(tensor: int, *of: Group | None) -> dict[str, Any]:
        """Where a tensor lies: the problem's fields."""
        first, second, third = (g.strides[tensor] if g else 0 for g in (inner, *of))
        return {
            "strides": (first, second, third),
            "outer_stride": outer.strides[tensor] if outer else 0,
            "offset": tensors[tensor].offset.constant,
        }

    i, j = groups.i, groups.j
    a, b = (
        problem.Operand(tensors[number].param, dtypes[number], **lies(number, group, k))
        for number, group in ((first, i), (3 - first, j))
    )
    reads = tuple(
        problem.Read(name, read.param, dtypes[number], **lies(number, i, j))
        for number, (name, read) in enumerate(accesses.reads.items(), start=3)
    )
    epilogue.c_type(dtypes[0])
    return GemmProblem(
        batch=math.prod(group.extent for group in groups.batch),
        m=i.extent if i else 1,
        n=j.extent if j else 1,
        k=k.extent if k else 1,
        a=a,
        b=b,
        accumulator=program.accumulator,
        output=problem.Output(tensors[0].param, dtypes[0], **lies(0, i, j)),
        epilogue=problem.Epilogue(accesses.epilogue, reads, groups.places(accesses.places)),
        n_params=len(program.params),
        inner_batch=inner.extent if inner and outer else None,
    )


def _spatial_groups(strides: Sequence[AxisStrides], spatial: Sequence[Axis]) -> Spatial:
    """Batch, i and j: what both operands have, the first alone, the second alone.

    Of several groups of i or j that do not merge, the largest stays; others are batches of
    products with a shared operand.
    """
    in_a, in_b = ({axis for axis in spatial if axis in s} for s in strides[1:3])
    require(in_a | in_b == set(spatial), "elements of its product are stored more than once")

    def of(members: set[Axis]) -> list[Group]:
        chosen = [axis for axis in spatial if axis in members]
        return axes.merged(axes.groups_of(chosen, strides), 0)

    i, more_i = axes.with_largest_apart(of(in_a - in_b))
    j, more_j = axes.with_largest_apart(of(in_b - in_a))
    batch = axes.merged([*of(in_a & in_b), *more_i, *more_j], 0)
    several = f"{len(batch)} axes of its batch are not two by the tensors' strides"
    require(len(batch) <= MAX_BATCH_AXES, several)
    return Spatial(tuple(batch), i, j)


def _sum_group(strides: Sequence[AxisStrides], reduced: Sequence[Axis]) -> Group | None:
    """k: what the sum runs over."""
    for axis in reduced:
        in_both = all(axis in s for s in strides[1:3])
        require(in_both, "its sum runs over an axis that one of its operands does not have")
    groups = axes.merged(axes.groups_of(reduced, strides), 1)
    require(len(groups) <= 1, "several axes of its sum are not one by the operands' strides")
    return groups[0] if groups else None


def _require_adjacent(operand: problem.Operand, rows: int, k: int) -> None:
    """Elements of the operand are adjacent along one of its axes."""
    _, row, inner = operand.strides
    strides = [s for s, extent in ((row, rows), (inner, k)) if extent > 1]
    require(not strides or 1 in strides, "an operand has no axis along which it is contiguous")


def _is_turned(made: GemmProblem) -> bool:
    """Whether elements of the result are adjacent along i rather than along j."""
    _, i, j = made.output.strides
    return made.m > 1 and i == 1 and (made.n == 1 or j != 1)
