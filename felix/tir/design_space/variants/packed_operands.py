"""Products with an operand packed in panels that its vectors are read from, on CPUs.

C[i, j] = sum of A[i, k] B[k, j] reads B by vectors along j. Where j is not the last axis of B, a
vector is gathered; where rows are long, each row of a tile is in another page. Here B is copied
first, in parallel, to [j / panel, k, panel], which tiles then read in the order of memory
(`reindex`), and j becomes two iterators of the product (`transform_block_layout`), so that no
index needs a division. What the copy costs is what the cost model and measuring decide by.

The sums have an index for each iterator, too. A tile of both parts of j is no box of C[i, j], and
TVM would place a consumer at the tile for the box around it, elements of other tiles included.
The block that copies the sums to C has the iterators of the product, and what is elementwise
behind C is computed in it (`reverse_compute_inline`).

The operand is indexed by iterators alone, among them an axis of the result (the `axis`) and every
axis of the sum, and lacks some spatial iterator, so that its elements are used again. The axis is
the last of the result, if it can be. A convolution whose channels are not last has windows along
that one (C[n, c, x, y] is a sum of A[n, k, x + u, y + v] B[c, k, u, v]): there the weights are
packed along c, and vectors are of channels. So they are where the last extent is no multiple of a
vector. A panel is two vectors wide, or one.

A product has a packed operand if

    axis is the last of the result: it is not the last index of the operand, or the operand's rows
        have at least MIN_ROW_BYTES
    axis is another one: the last of the result is in windows, or no multiple of a vector, and no
        other operand has the axis, whose vectors it would gather (as in a depthwise convolution)
    uses of each element                    >= MIN_USES
    iterations                              >= split_reductions.MIN_ITERATIONS
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tvm
from tvm import sym, tirx
from tvm.s_tir import stmt as s_stmt
from tvm.s_tir.schedule import SBlockRV

from felix.tir import grammar
from felix.tir.design_space import blocks
from felix.tir.design_space.variants import split_reductions
from felix.tir.design_space.variants.variant import Machine, Prefix, Variant

#: Rows of an operand that shorter tiles of are read well enough without a copy.
MIN_ROW_BYTES = 4096
#: Uses of each element of the operand that pay for its copy.
MIN_USES = 16
#: Vectors of a panel, the better number first.
VECTORS = (2, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """What is packed.

    Attributes:
        number: among the buffers that the block reads.
        axis: number of the block's iterator that panels are cut of.
        is_gathered: vectors along the axis are not contiguous.
        row_bytes: of what its last index ranges over.
    """

    number: int
    axis: int
    is_gathered: bool
    row_bytes: int


def prefixes(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """The program with a packed operand; none where there is nothing to gain."""
    largest = None if machine.is_gpu else split_reductions.large_product(mod["main"])
    if largest is None:
        return []
    block = blocks.realize_of(mod["main"], largest.name).block
    operands = [each for each in _operands(block) if _reads_badly(each, block, machine)]
    for operand in sorted(operands, key=lambda each: each.axis, reverse=True):
        panel = panel_of(largest.extents[operand.axis], machine)
        if panel is not None:
            return [_prefix(largest.name, operand, panel)]
    return []


def panel_of(extent: int, machine: Machine) -> int | None:
    """Elements of the axis in a panel, of which there are several."""
    widths = (vectors * machine.vector_lanes for vectors in VECTORS)
    return next((w for w in widths if extent % w == 0 and extent > w), None)


def _prefix(name: str, operand: Operand, panel: int) -> Prefix:
    def apply(schedule: tvm.s_tir.Schedule) -> None:
        block = schedule.get_sblock(name, func_name="main")

        def split(*iters: tirx.Var) -> list[tirx.Expr]:
            parts = list(iters)
            parts[operand.axis] = iters[operand.axis] // panel
            return [*parts, iters[operand.axis] % panel]

        n_iters = len(schedule.get(block).iter_vars)
        schedule.transform_block_layout(block, tirx.IndexMap.from_func(split, ndim=n_iters))
        schedule.reindex(block, ("read", operand.number))
        _inline_consumers(schedule, schedule.reindex(block, ("write", 0)))

    parameters = (("operand", operand.number), ("panel", panel))
    return Prefix(Variant("packed_operand", parameters), apply, is_at_root=True)


def _inline_consumers(schedule: tvm.s_tir.Schedule, copy: SBlockRV) -> None:
    """Compute what is elementwise behind a copy in it, as far as TVM can."""
    consumers = schedule.get_consumers(copy)
    while len(consumers) == 1:
        (consumer,) = consumers
        consumers = schedule.get_consumers(consumer)
        try:
            schedule.reverse_compute_inline(consumer)
        except tvm.s_tir.ScheduleError:
            return


# ---------------------------------------------------------------- reading the program


def _operands(block: s_stmt.SBlock) -> list[Operand]:
    """The operands that can be packed, each along the last axis of the result that it has."""
    iters = {each.var: number for number, each in enumerate(block.iter_vars)}
    axes = [each.min for each in block.writes[0].region if each.min in iters]
    found = []
    for number, region in enumerate(block.reads):
        indices = [each.min for each in region.region]
        used = {index for index in indices if isinstance(index, tirx.Var)}
        own = [axis for axis in axes if axis in used]
        if not own or not all(isinstance(i, tirx.Var | tirx.IntImm) for i in indices):
            continue
        if _is_reused(block, used):
            row = int(region.source.shape[-1]) * tvm.DataType(region.source.dtype).itemsize
            found.append(Operand(number, iters[own[-1]], indices[-1] != own[-1], row))
    return found


def _reads_badly(operand: Operand, block: s_stmt.SBlock, machine: Machine) -> bool:
    """Whether vectors of the product are better read from panels."""
    last, axis = block.writes[0].region[-1].min, block.iter_vars[operand.axis].var
    if axis == last:
        return operand.is_gathered or operand.row_bytes >= MIN_ROW_BYTES
    others = [region for number, region in enumerate(block.reads) if number != operand.number]
    if any(axis in tirx.analysis.undefined_vars(e.min) for each in others for e in each.region):
        return False
    extent = next((int(each.dom.extent) for each in block.iter_vars if each.var == last), 1)
    return bool(extent % machine.vector_lanes) or _has_windows(block, last)


def _has_windows(block: s_stmt.SBlock, axis: tirx.Var) -> bool:
    """Whether an operand is read at sums of this iterator and others, or at multiples of it."""
    analyzer = sym.Analyzer()
    for each in block.iter_vars:
        if int(each.dom.extent) == 1:
            analyzer.bind(each.var, each.dom.min)
    indices = [analyzer.simplify(each.min) for region in block.reads for each in region.region]
    return any(
        not isinstance(index, tirx.Var) and axis in tirx.analysis.undefined_vars(index)
        for index in indices
    )


def _is_reused(block: s_stmt.SBlock, used: set[tirx.Var]) -> bool:
    """Whether every axis of the sum is used, and elements are used by enough results."""
    others = [each for each in block.iter_vars if each.var not in used]
    is_whole = all(
        each.iter_type == grammar.SPATIAL or int(each.dom.extent) == 1 for each in others
    )
    return is_whole and math.prod(int(each.dom.extent) for each in others) >= MIN_USES
