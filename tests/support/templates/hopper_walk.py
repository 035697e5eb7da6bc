"""A plain interpreter of the sm_90a GEMM's schedule: its loops in Python, counting as they go.

It is written from what the kernel does (who copies and multiplies what, step by step), not from
the formulas.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

from felix import launch_plan
from felix.templates.gemm.hopper.template import HopperGemm
from felix.templates.gemm.problem import Gather, GemmProblem, Operand
from tests.support.templates.template_rows import rows_of

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "int32": 4, "float8_e4m3fn": 1}


@dataclasses.dataclass
class Counts:
    """Of a launch; `steps` and `tiles` are the most of any block and part."""

    instructions: int = 0
    copies: int = 0
    copied_bytes: int = 0
    l2_bytes: float = 0
    read_by_tensor_cores: int = 0
    steps: int = 0
    tiles: int = 0
    blocks: int = 0
    #: (batch, part, row, column) of tiles, and how often each is computed.
    computed: collections.Counter[tuple[int, int, int, int]] = dataclasses.field(
        default_factory=collections.Counter
    )


@dataclasses.dataclass(frozen=True)
class _Tile:
    batch: int
    part: int
    row: int
    column: int
    rank: int


def check_counts(template: HopperGemm, decisions: Mapping[str, int]) -> None:
    """The features of a kernel are what a walk of its schedule counts."""
    walked = walk(template.problem, decisions, template.design(decisions).grid.clusters)
    row = rows_of(template, decisions)["gemm"]
    assert row["grid_blocks"] == walked.blocks
    assert row["tensor_instructions"] == walked.instructions
    assert row["copy_instructions"] == walked.copies
    assert row["copied_bytes"] == walked.copied_bytes
    assert row["shared_traffic"] == walked.copied_bytes + walked.read_by_tensor_cores
    assert row["l2_bytes"] == walked.l2_bytes
    assert row["steps"] == walked.steps
    assert row["tiles_per_block"] == walked.tiles


def check_launches(template: HopperGemm, decisions: Mapping[str, int]) -> None:
    """A launch has the blocks, threads and bytes of its row; the plan is read as it is written."""
    rows = rows_of(template, decisions)
    plan = template.generate(decisions).plan
    assert launch_plan.LaunchPlan.from_json(plan.to_json()) == plan
    launched = [name for name, row in rows.items() if row["grid_blocks"] > 0]
    assert [launch.kernel for launch in plan.launches] == launched
    for launch in plan.launches:
        row = rows[launch.kernel]
        assert launch.extents == (row["grid_blocks"], 1, 1, row["block_threads"], 1, 1)
        assert launch.shared_bytes == row.get("shared_bytes", 0)
        assert launch.cluster == (row["cluster_blocks"], 1, 1)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def tiles_of_cluster(
    problem: GemmProblem, d: Mapping[str, int], cluster: int, clusters: int
) -> Iterator[_Tile]:
    """What the blocks of a cluster compute, unit after unit."""
    rows = ceil_div(ceil_div(problem.m, d["block_m"]), d["cluster_m"])
    columns = ceil_div(ceil_div(problem.n, d["block_n"]), d["cluster_n"])
    order = [
        (row, column)
        for first in range(0, rows, d["group_m"])
        for column in range(columns)
        for row in range(first, min(first + d["group_m"], rows))
    ]
    units = list(itertools.product(range(d["split_k"]), range(problem.batch), order))
    for part, batch, (row, column) in units[cluster::clusters]:
        ranks = itertools.product(
            range(d["cluster_k"]), range(d["cluster_n"]), range(d["cluster_m"])
        )
        for rank, (rank_k, rank_n, rank_m) in enumerate(ranks):
            yield _Tile(
                batch,
                part if d["cluster_k"] == 1 else rank_k,
                (row * d["cluster_m"] + rank_m) * d["block_m"],
                (column * d["cluster_n"] + rank_n) * d["block_n"],
                rank,
            )


def walk(problem: GemmProblem, d: Mapping[str, int], clusters: int) -> Counts:
    """All steps of all blocks of a launch of `clusters`."""
    counts = Counts(blocks=clusters * d["cluster_m"] * d["cluster_n"] * d["cluster_k"])
    parts = d["split_k"] * d["cluster_k"]
    all_steps = ceil_div(Sum.of(problem).extent, d["block_k"])
    for cluster in range(clusters):
        of_block: collections.Counter[int] = collections.Counter()
        for tile in tiles_of_cluster(problem, d, cluster, clusters):
            of_block[tile.rank] += 1
            counts.computed[tile.batch, tile.part, tile.row, tile.column] += 1
            steps = range(tile.part * all_steps // parts, (tile.part + 1) * all_steps // parts)
            counts.steps = max(counts.steps, len(steps))
            for step in steps:
                _step(problem, d, tile, step, counts)
        counts.tiles = max(counts.tiles, *of_block.values())
    return counts


@dataclasses.dataclass(frozen=True)
class Sum:
    """Elements of k in the order of steps; a plain k is the channels of one tap."""

    taps: int
    channels: int
    block: int
    is_gathered: bool

    @classmethod
    def of(cls, problem: GemmProblem) -> Sum:
        gather = problem.a.gather or problem.b.gather
        if gather is None:
            return cls(1, problem.k, problem.k, False)
        taps = math.prod(window.taps for window in gather.windows)
        size = BYTES[problem.a.dtype]
        widths = (128 // size, 64 // size, 32 // size)
        fewest = min(ceil_div(gather.channels, width) * width for width in widths)
        block = max(w for w in widths if ceil_div(gather.channels, w) * w == fewest)
        return cls(taps, gather.channels, block, True)

    @property
    def extent(self) -> int:
        return self.taps * ceil_div(self.channels, self.block) * self.block

    def place(self, k: int) -> tuple[int, int] | None:
        """Tap and channel; None where there is a zero."""
        tap, channel = divmod(k, ceil_div(self.channels, self.block) * self.block)
        return (tap, channel) if tap < self.taps and channel < self.channels else None


def _step(
    problem: GemmProblem, d: Mapping[str, int], tile: _Tile, step: int, counts: Counts
) -> None:
    """One block copies its shares of a step's tiles and multiplies them."""
    size, whole = BYTES[problem.a.dtype], Sum.of(problem)
    ks = range(step * d["block_k"], (step + 1) * d["block_k"])
    places = [place for place in map(whole.place, ks) if place is not None]
    sides = (
        (problem.a, tile.row, d["block_m"], problem.m, d["cluster_n"]),
        (problem.b, tile.column, d["block_n"], problem.n, d["cluster_m"]),
    )
    for operand, first, lines, extent, sharers in sides:
        counts.copied_bytes += lines * d["block_k"] * size
        counts.copies += _copies(operand, whole, lines, extent, sharers, d["block_k"], size)
        in_bounds = range(first, min(first + lines, extent))
        elements = len(in_bounds) * len(places)
        if operand.gather is not None:
            taps = collections.Counter(tap for tap, _ in places)
            elements = sum(
                count
                for tap, count in taps.items()
                for line in in_bounds
                if _is_inside(operand.gather, line, tap)
            )
        # Blocks that share a tile copy equal shares: together it is read once.
        counts.l2_bytes += elements * size / sharers
    for _ in range(d["block_m"] // 64):
        for _ in range(d["block_k"] * size // 32):
            counts.instructions += 1
            counts.read_by_tensor_cores += (64 + d["block_n"]) * 32


def _is_inside(gather: Gather, pixel: int, tap: int) -> bool:
    """Whether a tap of an output pixel reads a place that there is."""
    for window in reversed(gather.windows):
        pixel, output = divmod(pixel, window.outputs)
        tap, at = divmod(tap, window.taps)
        place = output * window.stride + at * window.dilation - window.before
        if not 0 <= place < window.extent:
            return False
    return True


def _copies(
    operand: Operand, whole: Sum, lines: int, extent: int, sharers: int, block_k: int, size: int
) -> int:
    """Copies of a block's share of a tile; of a convolution each has one tap's channels."""
    if not whole.is_gathered:
        return _panels(operand.strides, lines, extent, block_k, whole.extent, size)
    if operand.gather is not None or operand.strides[2] == 1 or size != 2:
        return block_k // whole.block
    width = max(width for width in (128, 64, 32) if lines * size % width == 0)
    share = block_k // sharers
    return lines * size // width * len({k // whole.block for k in range(share)})


def _panels(
    strides: tuple[int, ...], lines: int, extent: int, block_k: int, k: int, size: int
) -> int:
    """Copies that write a tile: one for each run of 128 bytes (or 64, or 32) of its rows."""
    is_k_major = strides[2] == 1 and not (k == 1 and strides[1] == 1 and extent > 1)
    if is_k_major or (k == 1 and not (strides[1] == 1 and extent > 1)):
        return ceil_div(block_k * size, 128)
    width = max(width for width in (128, 64, 32) if lines * size % width == 0)
    return lines * size // width
