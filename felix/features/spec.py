"""The table of features: name, unit, transform and meaning, in the order of the feature vector.

One vector describes one row: a store of the program. Kernel features are repeated in every row
of the kernel. `formulas.raw` gives the values as stated here; `formulas.exact` and `.smooth`
give log2(1 + value) where `log` is set. Values are >= 0.

Notation
    loops       of the program after TVM's postprocessors, with one exception. A CPU nest is
                described before TVM fuses its outer loops into the parallel and its inner loops
                into the vectorized one; these loops then share `parallel_extent` and
                `vector_extent`. (A nest that TVM fuses as a whole and splits into a parallel and
                a vectorized loop is described after that.) A thread axis bound twice around a
                store is one loop, at its inner place.
    trip        iterations of the store over the whole launch, counting those a boundary guard
                (`T.where`) then skips.
    origin      the iteration where every loop variable is 0.
    footprint   of a buffer while some loops run and the others stay at 0: the box of its index
                ranges, per dimension 1 + greatest - least index, the widest over its accesses;
                iterations that a guard skips do not count, if_then_else is taken both ways.
    address     row-major, in elements of the buffer as compacted; of several accesses of one
                store to a buffer, that of the first (the store's own, for the destination).

Sources: [A] Ansor's per-store features as in TVM's PerStoreFeature, [F] Felix (ASPLOS'24) section
3.3, [M] the multi-level roofline of this project, [U] the rule of TVM's UnrollLoop pass.
`tests/support/oracle/features.py` counts every one of them on TVM's program by enumeration.
"""

from __future__ import annotations

import dataclasses

#: Increased whenever a name, an order or a meaning changes; checkpoints carry it.
FEATURES_VERSION = 3

#: Buffers described per store: the destination, then operands in program order.
SLOTS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """One column. `log`: whether `exact` and `smooth` give log2(1 + value)."""

    name: str
    unit: str
    log: bool
    meaning: str
    source: str


def _row() -> list[Feature]:
    def count(name: str, meaning: str) -> Feature:
        return Feature(name, "operations", True, f"trip x {meaning} in the stored value", "[A]")

    return [
        count("float_add", "float additions and subtractions"),
        count("float_mul", "float multiplications"),
        count("float_div", "float divisions and remainders"),
        count("float_cmp", "float min and max"),
        count("float_math", "float math-function calls (exp, sqrt, ...)"),
        count("select_ops", "selections (Select, if_then_else)"),
        count("bool_ops", "and, or, not"),
        count("int_ops", "comparisons and integer operations outside of buffer indices; + - * // "
              "% of iterators and constants alone count as an index"),
        count("cast_ops", "conversions between data types"),
        Feature("float_ops", "operations", True, "sum of the float_* counts", "[A]"),
        Feature("trip_count", "iterations", True, "product of the loop extents", "[A] outer_prod"),
        Feature("active_trips", "iterations", True, "trip that pass the boundary guards", "[M]"),
        Feature("serial_trips", "iterations", True,
                "iterations one CPU task or one GPU thread executes in sequence; vector lanes and "
                "virtual threads included", "[M]"),
        Feature("reduce_trips", "iterations", True,
                "product of extents of unbound loops that feed a reduction iterator", "[A]"),
        Feature("thread_reduce", "threads", True,
                "product of extents of thread loops that feed a reduction iterator", "[M]"),
        Feature("parallel_extent", "iterations", True, "extent of the parallel loop", "[A]"),
        Feature("vector_extent", "lanes", True, "extent of the vectorized loop", "[A]"),
        Feature("innermost_extent", "iterations", True,
                "extent of the innermost loop with more than one iteration", "[A]"),
        Feature("unroll_step", "statements", True,
                "auto_unroll_max_step of the enclosing nest; 0 where absent", "[A]"),
        Feature("code_copies", "copies", True,
                "how often the store stands in the code: product of the extents of the virtual "
                "threads it depends on and of the serial loops that are unrolled, which are those "
                "inside of which all stores together have at most unroll_step copies, the loop's "
                "own iterations counted; before software pipelining", "[U]"),
        Feature("simd_lanes", "lanes", True,
                "CPU: lanes of a machine vector in use: vector_extent over the machine vectors it "
                "fills; without a vectorized loop min(innermost_extent, the machine's) where the "
                "destination's stride is 1 and no operand's is greater, else 1. 1 on a GPU",
                "[M]"),
        Feature("independent_updates", "operations", True,
                "reductions: operations of a machine vector (GPU: of a thread) between two "
                "updates of one element, buf0.reuse_trips / vector_extent x machine vectors; 0 "
                "for other stores", "[M]"),
        Feature("alloc_bytes", "bytes", True,
                "size of the destination buffer: the index ranges touched inside one allocation; "
                "of the whole tensor for a parameter", "[A]"),
        Feature("alloc_trips", "times", True, "how often that buffer is allocated", "[A]"),
        Feature("element_bytes", "bytes", True, "size of an element that is stored", "[M]"),
        Feature("loaded_bytes", "bytes", True,
                "size of the smallest element that is loaded; 0 if none is", "[M]"),
        Feature("pipeline_stages", "stages", True,
                "stages of the software pipeline around the store, 0 outside of any", "[M]"),
        Feature("async_bytes", "bytes", True,
                "trip x element size of a copy from global to shared memory in an asynchronous "
                "stage of a software pipeline, if vector_extent x element size is 4, 8 or 16 and "
                "vector lanes load neighbours, or under if_then_else if the element size is; else "
                "0", "[M]"),
        Feature("is_init", "0/1", False, "the store initialises a reduction", "[M]"),
        Feature("is_reduction", "0/1", False, "the store updates a reduction", "[M]"),
    ]  # fmt: skip


def _slot(i: int) -> list[Feature]:
    p = f"buf{i}."
    return [
        Feature(p + "read", "0/1", False, "the store reads the buffer", "[A]"),
        Feature(p + "write", "0/1", False, "the store writes the buffer", "[A]"),
        Feature(p + "global", "0/1", False, "global memory", "[M]"),
        Feature(p + "shared", "0/1", False, "GPU shared memory", "[M]"),
        Feature(p + "bytes", "bytes", True, "trip x element size", "[A]"),
        Feature(p + "unique_bytes", "bytes", True,
                "distinct elements touched over the launch x element size; boundary guards and "
                "if_then_else conditions respected, conditions on loaded data taken both ways; a "
                "gather touches min(table, visits) of those its other indices leave, an upper "
                "bound", "[A]"),
        Feature(p + "task_bytes", "bytes", True,
                "footprint while all loops but the parallel one (CPU) or blockIdx (GPU) run",
                "[M]"),
        Feature(p + "stride", "elements", True,
                "address step from the origin of the innermost loop with more than one iteration "
                "that passes the guards; an index that is loaded from a buffer is half its "
                "dimension from its neighbours", "[A]"),
        Feature(p + "vector_stride", "elements", True,
                "the same if that loop is vectorized, else 0", "[M]"),
        Feature(p + "reuse", "times", True,
                "extent of the innermost loop with more than one iteration that passes the guards "
                "and leaves the address at the origin where it is; 0 if there is none", "[A]"),
        Feature(p + "reuse_trips", "iterations", True, "iterations between two such uses", "[A]"),
        Feature(p + "reuse_bytes", "bytes", True,
                "footprint of all buffers of the store while the loops inside of that one run",
                "[A]"),
        Feature(p + "l1_bytes", "bytes", True,
                "CPU: footprint, rows rounded up to cache lines, at the outermost loop inside of "
                "which all buffers of the store fit the L1 cache, x the iterations outside; the "
                "loop lies inside of the parallel one and around the vectorized one; at the "
                "innermost iteration if none does. 0 on a GPU", "[M]"),
        Feature(p + "l2_bytes", "bytes", True, "the same for the L2 cache", "[M]"),
        Feature(p + "l3_bytes", "bytes", True, "the same for the L3 cache", "[M]"),
        Feature(p + "warp_sectors", "sectors", True,
                "GPU, global memory: 32-byte sectors of one warp access; 2 to the number of lanes "
                "among 1, 2, 4, 8, 16 that pass the guards and lie 32 bytes or more from lane 0",
                "[M]"),
        Feature(p + "bank_ways", "ways", True,
                "GPU, shared memory: bank conflict degree of one warp access; 2 to the number of "
                "these lanes that lie a positive multiple of 128 bytes from lane 0", "[M]"),
    ]  # fmt: skip


def _kernel() -> list[Feature]:
    return [
        Feature("grid_blocks", "blocks", True, "product of the blockIdx extents; 1 on a CPU",
                "[A]"),
        Feature("block_threads", "threads", True, "product of the threadIdx extents", "[A]"),
        Feature("vthreads", "threads", True, "product of the virtual thread extents", "[A]"),
        Feature("shared_bytes", "bytes", True,
                "shared memory of one block, all versions a software pipeline keeps", "[F]"),
        Feature("local_bytes", "bytes", True,
                "buffers of one thread, all virtual threads; without what the lowering of a "
                "cross-thread reduction adds", "[F]"),
        Feature("unroll_body", "statements", True,
                "sum of serial_trips over the stores of the kernel", "[M]"),
        Feature("code_statements", "statements", True,
                "sum of code_copies over the stores of the kernel, each for as many machine "
                "vectors as its vectorized loop fills", "[U]"),
        Feature("blocks_per_core", "blocks", True, "resident blocks of one SM by its limits; the "
                "1 KiB of shared memory that CUDA reserves a block is not counted", "[M]"),
        Feature("occupancy", "fraction", False, "resident threads over the SM's limit", "[M]"),
        Feature("waves", "waves", True, "ceil(grid blocks / resident blocks of the chip)", "[M]"),
        Feature("tail", "fraction", False, "filled share of all waves; CPU: of all task slots",
                "[M]"),
        Feature("kernels", "kernels", True, "kernels (GPU) or parallel regions (CPU) in all",
                "[M]"),
        Feature("analytic.compute_us", "us", True, "float operations at the usable peak rate",
                "[M]"),
        Feature("analytic.l1_us", "us", True, "bytes into L1 (GPU: shared memory) at its rate",
                "[M]"),
        Feature("analytic.l2_us", "us", True, "bytes into L2 at its rate", "[M]"),
        Feature("analytic.dram_us", "us", True, "bytes from DRAM at its bandwidth", "[M]"),
        Feature("analytic.issue_us", "us", True, "iterations of all loops at one a cycle", "[M]"),
        Feature("analytic.latency_us", "us", True,
                "iterations of reductions, where the updates in flight do not hide the latency of "
                "one", "[M]"),
        Feature("analytic.launch_us", "us", True, "kernel launches or fork-joins", "[M]"),
        Feature("roofline_us", "us", True,
                "launch + max(compute, l1, l2, dram, issue, latency) of the whole program", "[M]"),
    ]  # fmt: skip


FEATURES: tuple[Feature, ...] = tuple(
    _row() + [feature for i in range(SLOTS) for feature in _slot(i)] + _kernel()
)
NAMES: tuple[str, ...] = tuple(f.name for f in FEATURES)
LOG: tuple[bool, ...] = tuple(f.log for f in FEATURES)
SLOT_NAMES: tuple[str, ...] = tuple(f.name.removeprefix("buf0.") for f in _slot(0))


def table() -> str:
    """The feature table as Markdown, for the documentation."""
    lines = ["| feature | unit | meaning and source |", "|---|---|---|"]
    for f in FEATURES:
        if f.name.startswith("buf") and not f.name.startswith("buf0."):
            continue
        name = f.name.replace("buf0.", "buf*i*.")
        unit = f.unit if f.log else f"{f.unit}, linear"
        lines.append(f"| `{name}` | {unit} | {f.meaning} {f.source} |")
    return "\n".join(lines)
