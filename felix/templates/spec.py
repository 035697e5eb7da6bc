"""The table of features of generated kernels: name, unit, transform and meaning.

A template describes each kernel that it launches by one row; a row that is not launched for some
decisions is all zero. Values are >= 0 and exact at integer decisions, except where the meaning
says that it is an estimate. What a template does not state is 0.

Notation
    tile    what a block, or some of its warps, computes at a time
    step    the part of a sum that one stage of the ring of shared memory holds
    unique  counted once, however often it is moved
"""

from __future__ import annotations

import dataclasses

#: Increased whenever a name, an order or a meaning changes; checkpoints carry it.
VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Feature:
    """One column. `is_log`: whether `exact` and `smooth` give log2(1 + value)."""

    name: str
    unit: str
    is_log: bool
    meaning: str


FEATURES: tuple[Feature, ...] = (
    # The launch.
    Feature("grid_blocks", "blocks", True, "blocks of the launch"),
    Feature("block_threads", "threads", True, "threads of a block"),
    Feature("cluster_blocks", "blocks", True, "blocks of a cluster"),
    Feature("shared_bytes", "bytes", True, "shared memory of a block"),
    Feature("registers", "registers", True, "of a thread at the launch; an estimate"),
    Feature("blocks_per_sm", "blocks", True, "resident blocks of an SM by its limits"),
    Feature("waves", "waves", True, "ceil(blocks / resident blocks of the chip)"),
    Feature("tail", "fraction", False, "filled share of all waves"),
    Feature("tiles_per_block", "tiles", True, "tiles of the block that has most"),
    # Products on tensor cores.
    Feature("tensor_instructions", "instructions", True, "of the launch, of warpgroups or warps"),
    Feature("tensor_ops", "operations", True, "of these, padding included; a multiply-add is two"),
    Feature("problem_ops", "operations", True, "of the product itself"),
    Feature("instruction_columns", "columns", True, "of C in one instruction"),
    Feature("tile_rows", "rows", True, "of C in a tile"),
    Feature("tile_columns", "columns", True, "of C in a tile"),
    Feature("sums_per_thread", "registers", True, "that hold sums"),
    Feature("multiplying_warps", "warps", True, "of a block"),
    Feature("tiles_at_once", "tiles", True, "that warps of a block compute side by side"),
    # The ring.
    Feature("steps", "steps", True, "of a tile, of the part of the sum that has most"),
    Feature("stages", "stages", True, "of the ring"),
    Feature("stage_bytes", "bytes", True, "of one stage"),
    Feature("in_flight_bytes", "bytes", True, "that the rings of an SM's resident blocks hold"),
    Feature("copy_instructions", "instructions", True, "of the launch, into shared memory"),
    # Bytes of the launch.
    Feature("copied_bytes", "bytes", True, "copied into shared memory, padding included"),
    Feature("shared_traffic", "bytes", True, "copied, and read there to multiply"),
    Feature("l2_bytes", "bytes", True, "of operands within their bounds; a multicast counts once"),
    Feature("dram_bytes", "bytes", True, "unique bytes of operands, reads and what is stored"),
    Feature("read_bytes", "bytes", True, "of the epilogue's reads, an element for each of C"),
    Feature("stored_bytes", "bytes", True, "stored to the output or a workspace"),
    Feature("workspace_bytes", "bytes", True, "of workspaces that the kernel writes or reads"),
    # Decisions that no count shows.
    Feature("parts", "parts", True, "of the sum of an element of C"),
    Feature("cluster_parts", "parts", True, "of these, that a cluster adds by itself"),
    Feature("group_rows", "tiles", True, "rows of tiles that are computed before the next column"),
    Feature("is_persistent", "0/1", False, "blocks stay for several tiles"),
    Feature("is_tma_store", "0/1", False, "the output is stored through shared memory"),
    Feature("is_row_major", "0/1", False, "neighbours of a row of C are neighbours in memory"),
    # Times: estimates in the closed form that `analytic_us` combines.
    Feature("tensor_us", "us", True, "tensor_ops at the rate of the chip"),
    Feature("shared_us", "us", True, "shared_traffic at the rate of the chip"),
    Feature("l2_us", "us", True, "l2_bytes and stored_bytes at the rate of the chip"),
    Feature("dram_us", "us", True, "dram_bytes at the bandwidth"),
    Feature("step_us", "us", True, "of a step on a busy SM: its slowest resource or its latency"),
    Feature("mainloop_us", "us", True, "steps of the busiest block, one after the other"),
    Feature("store_us", "us", True, "stores that the next tile's steps do not hide"),
    Feature("launch_us", "us", True, "until the first step: launch, barriers, first copies"),
    Feature("analytic_us", "us", True, "the kernel's estimated latency"),
)

NAMES: tuple[str, ...] = tuple(feature.name for feature in FEATURES)
LOG: tuple[bool, ...] = tuple(feature.is_log for feature in FEATURES)


def table() -> str:
    """The feature table as Markdown, for the documentation."""
    lines = ["| feature | unit | scale | meaning |", "|---|---|---|---|"]
    for f in FEATURES:
        scale = "log2(1+v)" if f.is_log else "v"
        lines.append(f"| `{f.name}` | {f.unit} | {scale} | {f.meaning} |")
    return "\n".join(lines)
