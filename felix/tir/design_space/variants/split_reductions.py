"""Reductions split over thread blocks of a GPU: partial results first, then their reduction.

A product of few rows, or a long sum with few results, has too little parallelism in its spatial
loops. The largest reduction of a program is cut in `parts` along one of its loops (split and
rfactor): the partial results are a program with one more spatial axis, and a second block combines
the parts. Partial results of a product are tiled by MetaSchedule's rules, the parts like any other
axis; those of other reductions are spread over threads, many parts likewise (`over_threads`).
Sums are reordered: results differ from the unsplit sum's by rounding, no more than those of
MetaSchedule's own reductions over threads.

The number of parts is the largest divisor of a reduction loop with

    results x parts <= max_results x cores     results of all blocks of the grid
    terms / parts   >= min_terms               terms that a part combines
    parts           <= max_parts

A prime number of terms has none: parts of two lengths need a guard that joins the part with its
terms, and TVM cannot spread those over threads.

The limits differ for products, whose operands are reused in tiles, and for other reductions, each
result of which takes a block. A product with enough results is still split if its sums are long:
blocks with large tiles are few for the number of multiprocessors, some of which have one block
more than others. A small reduction is not worth a second kernel. On a CPU MetaSchedule splits
reductions by itself (AddRFactor), with the number of parts a decision.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.s_tir import stmt as s_stmt
from tvm.s_tir.schedule import SBlockRV

from felix.tir import grammar
from felix.tir.design_space import blocks
from felix.tir.design_space.variants.variant import Machine, Prefix, Rule, Variant
from felix.tir.grammar import REDUCE, SPATIAL

#: The reduction that is split has more than this share of the iterations of all reductions.
MIN_SHARE = 0.5
#: Iterations and terms of the smallest reduction that is split.
MIN_ITERATIONS, MIN_TERMS = 2**19, 256


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Of the number of parts; `max_results` is for one core."""

    max_results: int
    min_terms: int
    max_parts: int

    def most(self, results: int, terms: int, cores: int) -> int:
        """The largest number of parts; it may be less than 1."""
        of_cores = self.max_results * cores // results
        return min(self.max_parts, of_cores, terms // self.min_terms)


#: 1024 threads a multiprocessor with 12 results each; combining 32 parts costs little. With long
#: sums, four times as many.
PRODUCT = (
    Limits(max_results=12 * 1024, min_terms=64, max_parts=32),
    Limits(max_results=48 * 1024, min_terms=1024, max_parts=32),
)
#: 16 blocks a multiprocessor, each thread of which combines a few values.
PLAIN = (Limits(max_results=16, min_terms=1024, max_parts=4096),)
#: Parts that one thread combines; more are combined by all threads of a block.
MAX_SERIAL_PARTS = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction block whose first `n_spatial` iterators are spatial and the others reduce.

    Attributes:
        extents: of its iterators, each of which is a loop.
        is_product: elements of its operands are reused.
        has_plain_indices: every index is an iterator or a constant (no windows).
        n_columns: last spatial iterators, those of the innermost dimensions of a tensor of which
            each element is read once; 0 where its innermost dimension is reduced.
    """

    name: str
    extents: tuple[int, ...]
    n_spatial: int
    is_product: bool
    has_plain_indices: bool
    n_columns: int

    @property
    def goes_along_columns(self) -> bool:
        """Whether the terms of a result lie apart in memory, beside those of other results."""
        return self.n_columns > 0

    @property
    def is_large(self) -> bool:
        """Whether a second kernel may be worth it."""
        return self.terms >= MIN_TERMS and self.results * self.terms >= MIN_ITERATIONS

    @property
    def results(self) -> int:
        """Elements of the result."""
        return math.prod(self.extents[: self.n_spatial])

    @property
    def terms(self) -> int:
        """Values that are combined in an element of the result."""
        return math.prod(self.extents[self.n_spatial :])


def prefixes(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """The split reductions of a program; none where there is enough parallelism without."""
    largest = largest_reduction(mod["main"]) if machine.is_gpu else None
    if largest is None or not largest.is_large:
        return []
    limits = PRODUCT if largest.is_product else PLAIN
    most = max(each.most(largest.results, largest.terms, machine.cores) for each in limits)
    choices = [
        (parts, axis)
        for axis in range(largest.n_spatial, len(largest.extents))
        for parts in range(2, most + 1)
        if largest.extents[axis] % parts == 0
    ]
    if not choices:
        return []
    parts, axis = max(choices, key=lambda choice: (choice[0], -choice[1]))
    return [_prefix(largest, axis, parts)]


def _prefix(largest: Reduction, axis: int, parts: int) -> Prefix:
    def apply(schedule: tvm.s_tir.Schedule) -> None:
        block = schedule.get_sblock(largest.name, func_name="main")
        loops = schedule.get_loops(block)
        outer, _ = schedule.split(loops[axis], factors=[parts, None])
        before = loops[largest.n_spatial : axis]
        if before:
            schedule.reorder(outer, *before)
        partial = schedule.rfactor(outer, factor_axis=0)
        # MetaSchedule's rules expect the loops in the order of the block's iterators.
        *spatial, part = schedule.get_loops(partial)[: largest.n_spatial + 1]
        if spatial:
            schedule.reorder(part, *spatial)

    # Threads that share a sum along columns read elements far apart: `split_columns` is better.
    is_replaced = largest.goes_along_columns and not largest.is_product
    parameters = (("parts", parts), ("loop", axis))
    variant = Variant("split_reduction", parameters, is_replaced=is_replaced)
    rule: Rule = blocks.join_consumer
    if not largest.is_product:
        rule = functools.partial(_over_threads, parts=parts)
    return Prefix(variant, apply, before_finishing=rule, only=largest.name)


def _over_threads(
    schedule: tvm.s_tir.Schedule, block: SBlockRV, parts: int
) -> list[tvm.s_tir.Schedule]:
    """The partial results spread over threads, and their reduction if there are many parts."""
    (partial,) = schedule.get_producers(block)
    blocks.over_threads(schedule, partial)
    if parts > MAX_SERIAL_PARTS:
        return blocks.over_threads(schedule, block)
    return blocks.join_consumer(schedule, block)


# ---------------------------------------------------------------- reading the program


def large_product(func: tirx.PrimFunc) -> Reduction | None:
    """The largest reduction, if it is a product of `MIN_ITERATIONS` or more."""
    largest = largest_reduction(func)
    if largest is None or not largest.is_product:
        return None
    return largest if math.prod(largest.extents) >= MIN_ITERATIONS else None


def largest_reduction(func: tirx.PrimFunc) -> Reduction | None:
    """The reduction with most iterations, if it has most of those of all and a plain form."""
    realizes = [realize for realize in blocks.realizes(func) if realize.block.init is not None]
    sizes = [grammar.extent(realize.block) for realize in realizes]
    if not sizes or max(sizes) <= MIN_SHARE * sum(sizes):
        return None
    return _reduction(realizes[sizes.index(max(sizes))])


def _reduction(realize: s_stmt.SBlockRealize) -> Reduction | None:
    """The block if it is one store that begins with a number, with a loop for each iterator."""
    block = realize.block
    kinds = [int(each.iter_type) for each in block.iter_vars]
    n_spatial = kinds.count(SPATIAL)
    ordered = [SPATIAL] * n_spatial + [REDUCE] * (len(kinds) - n_spatial)
    plain = all(isinstance(value, tirx.Var) for value in realize.iter_values)
    if not all(isinstance(store, tirx.BufferStore) for store in (block.body, block.init)):
        return None
    if not isinstance(block.init.value, tirx.IntImm | tirx.FloatImm):
        return None
    if kinds != ordered or n_spatial == len(kinds) or not plain:
        return None
    return Reduction(
        name=str(block.name_hint),
        extents=tuple(int(each.dom.extent) for each in block.iter_vars),
        n_spatial=n_spatial,
        is_product=is_product(block),
        has_plain_indices=_has_plain_indices(block),
        n_columns=_n_columns(block),
    )


def is_product(block: s_stmt.SBlock) -> bool:
    """Whether a tensor that is read lacks a spatial iterator, so that its elements are reused."""
    spatial = {
        each.var
        for each in block.iter_vars
        if each.iter_type == SPATIAL and int(each.dom.extent) > 1
    }
    for region in block.reads:
        indices = [tirx.analysis.undefined_vars(each.min) for each in region.region]
        if spatial - {var for used in indices for var in used}:
            return True
    return False


def _has_plain_indices(block: s_stmt.SBlock) -> bool:
    ranges = [each for region in (*block.reads, *block.writes) for each in region.region]
    return all(isinstance(each.min, tirx.Var | tirx.IntImm) for each in ranges)


def _n_columns(block: s_stmt.SBlock) -> int:
    """See `Reduction`."""
    iterators = block.iter_vars
    used = [n for n, each in enumerate(iterators) if int(each.dom.extent) > 1]
    n_spatial: int = sum(int(each.iter_type) == SPATIAL for each in iterators)
    for region in block.reads:
        order = [n for n in _iterators_of(region, block) if n in used]
        inner = [*itertools.takewhile(lambda n: n < n_spatial, reversed(order))][::-1]
        last = [n for n in used if n < n_spatial][-len(inner) :]
        if sorted(order) == used and inner and inner == last:
            return n_spatial - inner[0]
    return 0


def _iterators_of(region: tirx.BufferRegion, block: s_stmt.SBlock) -> list[int]:
    """Numbers of the iterators that are indices, in the order of the dimensions."""
    numbers = {each.var: number for number, each in enumerate(block.iter_vars)}
    return [numbers[each.min] for each in region.region if each.min in numbers]
