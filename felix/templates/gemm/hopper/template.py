"""The template: parameters of a problem, which decisions are legal, formulas, programs.

Decisions are legal if a kernel can be made of them that no others make. Each constraint is legal
where its expression is <= 0. Conditions are 0 or 1, so a condition that must not hold is a
constraint itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence

import sympy

from felix.launch_plan import Argument, Launch, LaunchPlan
from felix.symbolic import expr
from felix.target import Hardware
from felix.templates.gemm.ampere.decisions import SYSTEM_BYTES
from felix.templates.gemm.ampere.template import ProductTemplate
from felix.templates.gemm.hopper import (
    decisions,
    design,
    features,
    helpers,
    instructions,
    kernel,
    layout,
)
from felix.templates.gemm.hopper import design as designs
from felix.templates.gemm.hopper.convolution import axes, operands
from felix.templates.gemm.hopper.decisions import Decisions, more
from felix.templates.gemm.problem import GemmProblem
from felix.templates.generated import GeneratedProgram
from felix.templates.template import Parameter
from felix.tir import grammar

ARCH = "sm_90a"

_BLOCK_M = (64, 128, 192, 256)
#: Of int8 products multiples of 16 above 32, of the others any multiple of 8.
_BLOCK_N = (*range(8, 128, 8), *range(128, 257, 16))
_GROUPS = (1, 2, 4, 8, 16, 32)
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)


class HopperGemm(ProductTemplate[Decisions]):
    """C = epilogue(A · B) on the tensor cores of an sm_90a GPU."""

    name = "gemm-wgmma"
    version = 3
    decisions = Decisions

    def __init__(self, problem: GemmProblem, hardware: Hardware) -> None:
        """The template of a problem that suits it, on a GPU of these limits."""
        super().__init__(problem, hardware, ARCH)

    @property
    def key(self) -> str:
        fields = dataclasses.asdict(self.problem)
        del fields["phases"]  # which no problem of the template has
        content = [self.version, self.name, fields]
        content.append([self.hardware.cores, self.hardware.shared_bytes_per_block])
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    @property
    def parameters(self) -> Sequence[Parameter]:
        return _parameters(self.problem)

    def rows(self) -> Mapping[str, Mapping[str, sympy.Expr]]:
        return features.rows(self.problem, Decisions.symbols(), self.hardware)

    def design(self, decisions: Mapping[str, int]) -> designs.Design:
        """The facts of these decisions in integers."""
        return designs.Design(self.problem, self.hardware, Decisions.of(decisions))

    def _constraints(self, d: Decisions) -> Sequence[tuple[str, sympy.Expr]]:
        return constraints(self.problem, d, self.hardware)

    def _program(self, d: Decisions) -> GeneratedProgram:
        return _generate(designs.Design(self.problem, self.hardware, d))


class SwappedHopperGemm(HopperGemm):
    """The same of a problem whose operands are not in the order of the task."""

    name = "gemm-wgmma-swapped"


def _generate(design: designs.Design) -> GeneratedProgram:
    """The program of a design: packing where TMA needs it, the product, the reduction if split."""
    packs = designs.packed(design.problem)[0]
    parts = [instructions.PRELUDE, instructions.CONVERSIONS]
    launches = []
    if packs:
        parts.append(helpers.pack_source(packs))
        launches.append(helpers.pack_launch(packs))
    parts += ["namespace product {\n", kernel.source(design), "}\n"]
    launches.append(_product_launch(design))
    workspaces = [layout.packed_bytes(pack.copy) for pack in packs]
    if design.is_split:
        parts.append(helpers.reduce_source(design))
        launches.append(helpers.reduce_launch(design))
        partial = design.partial.output
        size_bytes = grammar.element_bytes(partial.dtype)
        workspaces.append(design.partial.batches * partial.strides[0] * size_bytes)
    plan = LaunchPlan(design.problem.n_params, tuple(workspaces), tuple(launches))
    return GeneratedProgram("".join(parts), ARCH, plan)


def _product_launch(design: designs.Design) -> Launch:
    """How the product's kernel is launched."""
    d, problem, sink = design.d, design.problem, design.sink
    output: Argument = sink.output.param
    if d.tma_store > 1:
        output = designs.store_tile(sink, d.block_n).tensor_map(problem.m, problem.n)
    reads = tuple(read.param for read in sink.epilogue.reads)
    args = (design.a.tensor_map(), design.b.tensor_map(), output, *reads)
    cluster = int(d.cluster_blocks)
    blocks = design.grid.clusters * cluster
    extents = (blocks, 1, 1, int(d.threads), 1, 1)
    return Launch(kernel.NAME, extents, design.shared.total, args, (cluster, 1, 1))


def runs_on(arch: str) -> bool:
    """Whether a GPU of an architecture, like "sm_90", runs the template's programs."""
    return arch in ("sm_90", "sm_90a")


def templates(
    problem: GemmProblem, hardware: Hardware, arch: str = ARCH
) -> tuple[HopperGemm, ...]:
    """The template for a problem, in both orders of its operands where either may be faster.

    An instruction has 64 rows, but as few as 8 columns: a problem of few rows is one of few
    columns, swapped. Where both are many, the order matters little. None if `arch` runs neither.
    """
    if not runs_on(arch):
        return ()
    plain = HopperGemm(problem, hardware)
    swapped = SwappedHopperGemm(problem.swapped, hardware)
    if problem.m <= _FEW_ROWS < problem.n:
        return (swapped, plain) if problem.m > _FEWEST_ROWS else (swapped,)
    if problem.n <= _FEW_ROWS < problem.m:
        return (plain,)
    return (plain, swapped) if problem.m % 64 else (plain,)


_FEWEST_ROWS, _FEW_ROWS = 32, 256


def unsuited(problem: GemmProblem) -> str | None:
    """Why a problem is not for this template; None if it is."""
    a, b = problem.a.dtype, problem.b.dtype
    if a != b or (a, problem.accumulator) not in instructions.PRODUCTS:
        return f"tensor cores have no product of {a} and {b} summed in {problem.accumulator}"
    if problem.phases is not None:
        return "the copy engine does not gather transposed convolutions"
    if reason := operands.unsuited(problem):
        return reason
    others = [problem.output.dtype, *(read.dtype for read in problem.epilogue.reads)]
    for dtype in others:
        if dtype not in instructions.STORAGE:
            return f"the epilogue reads or stores {dtype}"
    return None


def _parameters(problem: GemmProblem) -> tuple[Parameter, ...]:
    panel = layout.PANEL_BYTES // problem.a.element_bytes
    _, b = designs.sources(problem)
    k = axes.extent_of_k(problem)
    narrowest = 8 if b.is_k_major else 16
    if problem.a.dtype == "int8":
        narrowest = 16
    block_n = tuple(n for n in _BLOCK_N if n % narrowest == 0)
    steps, rows_of_tiles = -(-k // panel), -(-problem.m // _BLOCK_M[0])
    can_store = designs.is_copied_by_tma(problem) or steps > 1
    cluster_k, split_k, group_m = (
        tuple(value for value in values if value <= most)
        for values, most in (((1, 2, 4, 8), steps), (_SPLITS, steps), (_GROUPS, rows_of_tiles))
    )
    tma_store = (1, 2) if can_store else (1,)
    return (
        Parameter("block_m", _up_to(_BLOCK_M, problem.m), True, "rows of a tile"),
        Parameter("block_n", _up_to(block_n, problem.n), True, "columns of a tile"),
        Parameter("block_k", (panel, 2 * panel), True, "elements of the sum of a stage"),
        Parameter("stages", (2, 3, 4, 5, 6, 7, 8, 10, 12), True, "stages of the ring"),
        Parameter("consumers", (1, 2, 3), False, "warpgroups that multiply"),
        Parameter("tiles_at_once", (1, 2), False, "2: two warpgroups have a tile each"),
        Parameter("blocks_per_sm", (1, 2, 3), False, "blocks that share an SM"),
        Parameter("cluster_m", (1, 2), False, "blocks that share columns of B"),
        Parameter("cluster_n", (1, 2), False, "blocks that share rows of A"),
        Parameter("cluster_k", cluster_k, True, "blocks of a cluster that divide the sum"),
        Parameter("split_k", split_k, True, "parts of the sum that a second kernel adds"),
        Parameter("group_m", group_m, True, "rows of tiles of a group"),
        Parameter("persistent", (1, 2), False, "2: blocks stay for several tiles"),
        Parameter("tma_store", tma_store, False, "2: stored through shared memory"),
    )


def _up_to(sizes: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """The sizes up to the first that covers an extent."""
    covering = [size for size in sizes if size >= extent]
    return tuple(size for size in sizes if size <= (covering or sizes[-1:])[0])


#: Registers of a thread that one wgmma needs beside its sums, or ptxas refuses the kernel.
_WGMMA_REGISTERS = 26
#: Blocks of a cluster that every GPU with clusters can run.
_LARGEST_CLUSTER = 8

Constraint = tuple[str, sympy.Expr]


def constraints(problem: GemmProblem, d: Decisions, hardware: Hardware) -> list[Constraint]:
    """All constraints of a problem's decisions."""
    return [
        *_constraints_of_tiles(problem, d),
        *_resources(problem, d, hardware),
        *_clusters(problem, d),
        *_without_effect(problem, d, hardware),
    ]


def _constraints_of_tiles(problem: GemmProblem, d: Decisions) -> list[Constraint]:
    subtile = decisions.WGMMA_ROWS * d.warpgroups_per_tile
    are_alone = expr.And(more(d.tiles_at_once), expr.Not(expr.Equal(d.consumers, 2)))
    result = [
        ("rows of a tile per warpgroup", expr.FloorMod(d.block_m, subtile)),
        ("warpgroups of two tiles", are_alone),
    ]
    if not design.is_copied_by_tma(problem):
        is_final = expr.Equal(d.split_k, 1)
        result.append(("output that TMA can store", expr.And(more(d.tma_store), is_final)))
    return result


def _resources(problem: GemmProblem, d: Decisions, hardware: Hardware) -> list[Constraint]:
    registers = decisions.registers(d, hardware.registers_per_core)
    consumer = d.accumulators + decisions.OVERHEAD_REGISTERS
    instruction = expr.FloorDiv(d.block_n, 2) + _WGMMA_REGISTERS
    total = decisions.shared(problem, d).total
    on_sm = (total + SYSTEM_BYTES) * d.blocks_per_sm
    return [
        ("registers of sums", consumer - registers.consumer),
        ("registers of an instruction", instruction - registers.launch),
        ("shared memory of a block", total - hardware.shared_bytes_per_block),
        ("shared memory of an SM", on_sm - hardware.shared_bytes_per_core),
    ]


def _clusters(problem: GemmProblem, d: Decisions) -> list[Constraint]:
    a, b = design.sources(problem)
    result = [("blocks of a cluster", d.cluster_blocks - _LARGEST_CLUSTER)]
    # A share of a tile is a whole number of the swizzle's atoms.
    rows_a = d.block_m if a.is_k_major else d.block_k
    rows_b = d.block_n if b.is_k_major else d.block_k
    result += [
        ("shares of a tile of A", expr.FloorMod(rows_a, 8 * d.cluster_n)),
        ("shares of a tile of B", expr.FloorMod(rows_b, 8 * d.cluster_m)),
    ]
    for name in ("cluster_m", "cluster_n", "split_k", "persistent", "tma_store", "tiles_at_once"):
        both = expr.And(more(d.cluster_k), more(getattr(d, name)))
        result.append((f"cluster_k with {name}", both))
    size = grammar.element_bytes(problem.accumulator)
    missing = d.block_m * d.block_n * size - decisions.shared(problem, d).ring
    result.append(("sums of a block in its ring", expr.Select(more(d.cluster_k), missing, 0)))
    return result


def _without_effect(problem: GemmProblem, d: Decisions, hardware: Hardware) -> list[Constraint]:
    """Against kernels that are the same as others, or idle by design."""
    one_tile_each = dataclasses.replace(d, persistent=1)
    most = decisions.grid(problem, one_tile_each, hardware.cores)
    launched = decisions.grid(problem, d, hardware.cores)
    units_m = expr.FloorDiv(most.tiles_m, d.cluster_m)
    stay = expr.And(more(d.persistent), expr.Equal(launched.clusters, most.clusters))
    return [
        ("parts of the sum", d.parts - most.steps),
        ("blocks that stay", stay),
        ("rows of tiles in a group", d.group_m - units_m),
        ("rows of a cluster", (d.cluster_m - 1) * d.block_m - problem.m + 1),
        ("columns of a cluster", (d.cluster_n - 1) * d.block_n - problem.n + 1),
        ("two tiles of a block", expr.And(more(d.tiles_at_once), expr.Equal(most.units, 1))),
    ]
