"""RewriteParallelVectorizeUnroll on the symbolic program.

Two uses of the same rules. With `rewrite` (a concrete program, all extents ints) the loops are
rewritten exactly as TVM does, unit loops included. Without it, loops are not fused into the
parallel and the vectorized loop but marked with the condition that they end up there
(`Loop.parallel`, `Loop.vector`), also where the condition is a constant, so that one program is
described in one way.
"""

from __future__ import annotations

import dataclasses

import sympy

from felix.symbolic import expr, ir, regions, scalar, usage
from felix.symbolic.instructions import loop_transforms
from felix.symbolic.ir import Affine, Block, Loop, Scalar, SymbolicProgram

PARALLEL = "meta_schedule.parallel"
VECTORIZE = "meta_schedule.vectorize"
UNROLL_EXPLICIT = "meta_schedule.unroll_explicit"
UNROLL_IMPLICIT = "meta_schedule.unroll_implicit"
PRAGMA_STEP = "pragma_auto_unroll_max_step"
PRAGMA_EXPLICIT = "pragma_unroll_explicit"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Annotations of the root block; None where absent."""

    parallel: int | None
    vector: int | None
    unroll: Scalar | None
    explicit: bool


def parallel_vectorize_unroll(program: SymbolicProgram, rewrite: bool) -> None:
    """RewriteParallelVectorizeUnroll on every block, in program order."""
    notes = program.root_annotations
    explicit = UNROLL_EXPLICIT in notes
    limits = Limits(
        notes.pop(PARALLEL, None),
        notes.pop(VECTORIZE, None),
        notes.pop(UNROLL_EXPLICIT, None) if explicit else notes.pop(UNROLL_IMPLICIT, None),
        explicit,
    )
    if limits == Limits(None, None, None, False):
        return
    for _, block in list(program.walk()):
        loops = program.loops_of(block)
        if not loops:
            continue
        first = _parallelize(program, block, loops, limits, rewrite)
        is_off = isinstance(limits.unroll, int) and limits.unroll <= 0
        if limits.unroll is not None and block.is_reduction and not is_off:
            first.annotations[PRAGMA_STEP] = limits.unroll
            first.annotations[PRAGMA_EXPLICIT] = int(limits.explicit)


def _parallelize(
    program: SymbolicProgram, block: Block, loops: list[Loop], limits: Limits, rewrite: bool
) -> Loop:
    """Mark or rewrite the loops; returns the block's outermost loop."""
    if limits.parallel is None or limits.vector is None:
        return loops[0]
    chains = [_contiguity(block, access, loops) for access in _regions(block)]
    vector = _vector_conditions(loops, chains, limits.vector)
    everything = _all_fusible(loops, chains)
    if everything:
        return _fuse_split(program, loops, limits.vector)
    parallel = _parallel_conditions(loops, vector, limits.parallel)
    if rewrite:
        return _rewrite(loops, sum(parallel), sum(vector))
    for loop, p, v in zip(loops, parallel, vector, strict=True):
        loop.parallel = p if scalar.is_static(loop.parallel, 0) else loop.parallel
        loop.vector = v if scalar.is_static(loop.vector, 0) else loop.vector
    return loops[0]


def _rewrite(loops: list[Loop], n_parallel: int, n_vector: int) -> Loop:
    if n_parallel:
        fused = loop_transforms.fuse(loops[:n_parallel])
        fused.kind, fused.parallel = "parallel", 1
    if n_vector:
        fused = loop_transforms.fuse(loops[-n_vector:])
        fused.kind, fused.vector = "vectorized", 1
    return loops[0]


def _fuse_split(program: SymbolicProgram, loops: list[Loop], lanes: int) -> Loop:
    fused = loop_transforms.fuse(loops)
    outer, inner = loop_transforms.split(program, fused, [None, lanes])
    outer.kind, outer.parallel = "parallel", 1
    inner.kind, inner.vector = "vectorized", 1
    return outer


def _annotated(loop: Loop) -> bool:
    """Whether TVM leaves the loop alone: bound to a thread, or carrying any annotation.

    A pragma whose step may be 0 for some decisions (then absent) does not change what follows:
    the loop that carries it is parallel already.
    """
    return loop.thread is not None or bool(loop.annotations)


def _regions(block: Block) -> list[ir.Access]:
    """Accesses of block.reads and block.writes as TVM holds them before decomposition."""
    reads: dict[int, list[ir.Access]] = {}
    for access in block.reads:
        if not (block.inits and block.stores_to(access.buffer)):
            reads.setdefault(id(access.buffer), []).append(access)
    return [_least(accesses) for accesses in reads.values()] + block.writes


def _least(accesses: list[ir.Access]) -> ir.Access:
    """The minimum of the region of several accesses; 0 where TVM holds it as an open `min`."""
    if len(accesses) == 1:
        return accesses[0]
    indices = []
    for same in zip(*(a.indices for a in accesses), strict=True):
        shifts = [expr.expanded(index - same[0]) for index in same]
        known = all(s.is_Integer for s in shifts)
        least = min(range(len(same)), key=lambda i: int(shifts[i])) if known else 0
        indices.append(same[least] if known else sympy.Integer(0))
    return ir.Access(accesses[0].buffer, tuple(indices))


def _contiguity(block: Block, access: ir.Access, loops: list[Loop]) -> list[Scalar]:
    """chain[k]: condition that the k + 1 innermost loops can be fused for this access."""
    chain: list[Scalar] = []
    ok: Scalar = 1
    #: elements that the loops so far cover, and whether one of them moves the access
    covered: Scalar = 1
    moves: Scalar = 0
    indices = [_visible(index, block) for index in access.indices]
    for k, loop in enumerate(reversed(loops)):
        stride, still = _stride(indices, access.buffer.shape, loop)
        if not scalar.is_static(still, 1):
            expected = scalar.select(moves, covered, 1 if k else stride)
            ok = scalar.both(ok, scalar.either(still, _equal(stride, expected)))
            covered = scalar.select(still, covered, stride * loop.extent)
            moves = scalar.select(still, moves, 1)
        chain.append(ok)
    return chain


def _equal(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    return 1 if expr.expanded(a - b) == 0 else scalar.equal(a, b)


def _visible(index: sympy.Expr, block: Block) -> tuple[Affine, Scalar]:
    """An index as TVM's StrideExtractor sees it, sums and products by constants; and the condition
    that it sees nothing.

    It looks past other terms of a sum (// and %, say), and sees nothing under a minus sign: TVM
    writes a negative term as a subtraction.
    """
    total = Affine({}, 0)
    for term in sympy.Add.make_args(index):
        affine = regions.index_affine(term, block)
        if affine is not None:
            total = total.plus(affine)
        elif term.as_coeff_Mul()[0] < 0:
            return total, 1
    if any(map(scalar.is_negative, total.terms.values())):
        return total, 1
    return total, _is_negative(total.constant)


def _is_negative(constant: Scalar) -> Scalar:
    """Condition that a constant is negative: where a region begins may depend on decisions."""
    if scalar.is_negative(constant):
        return 1
    return 0 if isinstance(constant, int | sympy.Integer) else scalar.less(constant, 0)


def _stride(
    indices: list[tuple[Affine, Scalar]], shape: tuple[Scalar, ...], loop: Loop
) -> tuple[Scalar, Scalar]:
    """Elements between neighbouring iterations of `loop`, of an access to a buffer of `shape`; and
    the condition that TVM sees none."""
    stride: Scalar = 0
    still: Scalar = 1
    for axis, (affine, is_hidden) in enumerate(indices):
        coefficient = _coefficient(affine, loop)
        if not scalar.is_static(coefficient, 0):
            apart = coefficient * ir.product(shape[axis + 1 :])
            stride = scalar.select(is_hidden, stride, apart)
            still = scalar.select(is_hidden, still, 0)
    return stride, still


def _coefficient(affine: Affine, loop: Loop) -> Scalar:
    """Coefficient of a loop variable in an index."""
    terms = [
        (i, affine.terms[comp]) for i, comp in enumerate(loop.components) if comp in affine.terms
    ]
    if not terms:
        return 0
    if len(loop.components) == 1:
        coefficient = terms[0][1]
        component = loop.components[0]
        if isinstance(component.extent, int) and not affine.mentions(component):
            return 0
        return coefficient
    return _fused_coefficient(terms, loop)


def _fused_coefficient(terms: list[tuple[int, Scalar]], loop: Loop) -> Scalar:
    """Coefficient of a fused variable: plain only if the index uses its lowest components whole.

    Args:
        terms: (position in the loop, coefficient) of its components in the index.
    """
    live = [(i, c) for i, c in terms if not scalar.is_static(loop.components[i].extent, 1)]
    if not live:
        return 0
    base = dict(live).get(len(loop.components) - 1)
    if base is None:
        return 0
    for i, coefficient in live:
        inner = ir.product(comp.extent for comp in loop.components[i + 1 :])
        if coefficient != base * inner:
            return 0
    whole = ir.product(loop.components[i].extent for i, _ in live)
    return base if scalar.is_static(whole - loop.extent, 0) else 0


def _all_fusible(loops: list[Loop], chains: list[list[Scalar]]) -> bool:
    """Whether the whole nest is one contiguous data-parallel range for every access."""
    for loop in loops:
        if _annotated(loop) or len(loop.body) != 1:
            return False
        if not scalar.is_static(usage.is_data_parallel(loop), 1):
            return False
    if scalar.is_static(ir.product(lp.extent for lp in loops), 1):
        return False
    full = [chain[-1] for chain in chains]
    return all(scalar.is_static(c, 1) for c in full)


def _vector_conditions(loops: list[Loop], chains: list[list[Scalar]], limit: int) -> list[Scalar]:
    """Per loop: is it fused into the vectorized loop?"""
    ok: Scalar = 1
    size: Scalar = 1
    conditions: list[Scalar] = []
    for k, loop in enumerate(reversed(loops)):
        if _annotated(loop) or len(loop.body) != 1:
            ok = 0
        ok = scalar.both(ok, usage.is_data_parallel(loop))
        for chain in chains:
            ok = scalar.both(ok, chain[k])
        attempted = ok
        grown = size * loop.extent
        ok = scalar.both(ok, scalar.less_equal(grown, limit))
        size = scalar.select(attempted, grown, size)
        conditions.insert(0, ok)
    some = scalar.negated(scalar.equal(size, 1))
    return [scalar.both(c, some) for c in conditions]


def _parallel_conditions(loops: list[Loop], vector: list[Scalar], limit: int) -> list[Scalar]:
    """Per loop: is it fused into the parallel loop?"""
    ok: Scalar = 1
    size: Scalar = 1
    conditions: list[Scalar] = []
    for loop in loops:
        if _annotated(loop):
            ok = 0
        ok = scalar.both(ok, usage.is_data_parallel(loop))
        conditions.append(ok)
        size = scalar.select(ok, size * loop.extent, size)
        ok = scalar.both(ok, scalar.less_equal(size, limit))
        if len(loop.body) != 1:
            ok = 0
    some = scalar.negated(scalar.equal(size, 1))
    n_vector = sum(vector, start=0)
    room = [
        scalar.either(scalar.equal(n_vector, 0), scalar.less(i, len(loops) - n_vector))
        for i in range(len(loops))
    ]
    return [scalar.both(scalar.both(c, some), r) for c, r in zip(conditions, room, strict=True)]
