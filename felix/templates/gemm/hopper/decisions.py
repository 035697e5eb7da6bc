"""The parameters of the template, and what follows from them: tiles, threads, units of work.

Notation
    tile    block_m x block_n of C that a block, or one of its warpgroups, computes at a time
    unit    the tiles that a cluster computes at a time
    part    of the sum over k: split_k · cluster_k parts; each block sums one
    step    block_k of k: what one stage of the ring holds
"""

from __future__ import annotations

import dataclasses
from typing import Any

from felix.symbolic import expr
from felix.templates import template
from felix.templates.gemm.hopper.convolution import axes
from felix.templates.gemm.problem import GemmProblem

#: An integer, or a sympy expression of one.
Value = Any


def more(value: Value) -> Value:
    """Whether a value is more than 1; a flag is set."""
    return expr.Less(1, value)


#: Rows of one wgmma instruction, and threads of the warpgroup that executes it.
WGMMA_ROWS = 64
WARPGROUP = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Decisions(template.Decisions):
    """Values of the parameters; `template.parameters` has their meaning. Flags: 1 no, 2 yes."""

    block_m: Value
    block_n: Value
    block_k: Value
    stages: Value
    consumers: Value
    tiles_at_once: Value
    blocks_per_sm: Value
    cluster_m: Value
    cluster_n: Value
    cluster_k: Value
    split_k: Value
    group_m: Value
    persistent: Value
    tma_store: Value

    @property
    def warpgroups_per_tile(self) -> Value:
        """Consumer warpgroups that share a tile's rows."""
        return expr.Maximum(1, expr.FloorDiv(self.consumers, self.tiles_at_once))

    @property
    def subtiles(self) -> Value:
        """wgmma tiles of 64 rows that a warpgroup accumulates."""
        rows = WGMMA_ROWS * self.warpgroups_per_tile
        return expr.Maximum(1, expr.FloorDiv(self.block_m, rows))

    @property
    def accumulators(self) -> Value:
        """Registers of a thread that hold sums."""
        return expr.FloorDiv(self.subtiles * self.block_n, 2)

    @property
    def threads(self) -> Value:
        """Of a block: the producer's warpgroup and the consumers."""
        return WARPGROUP * (self.consumers + 1)

    @property
    def cluster_blocks(self) -> Value:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def parts(self) -> Value:
        """Into how many parts the sum over k is divided."""
        return self.split_k * self.cluster_k


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """The work of a launch.

    Attributes:
        tiles_m, tiles_n: tiles that cover C, whole clusters counted.
        units: of work, all batches and parts of split-K counted.
        clusters: that are launched.
        steps: of the whole sum over k.
    """

    tiles_m: Value
    tiles_n: Value
    units: Value
    clusters: Value
    steps: Value


def grid(problem: GemmProblem, d: Decisions, sms: int) -> Grid:
    """The work of a problem on a GPU of `sms` multiprocessors."""
    units_m = expr.CeilDiv(problem.m, d.block_m * d.cluster_m)
    units_n = expr.CeilDiv(problem.n, d.block_n * d.cluster_n)
    units = units_m * units_n * problem.batch * d.split_k
    resident = resident_clusters(d.cluster_blocks, d.blocks_per_sm, sms)
    per_cluster = expr.CeilDiv(units, d.tiles_at_once)
    launched = expr.Select(more(d.persistent), expr.Minimum(per_cluster, resident), per_cluster)
    steps = expr.CeilDiv(axes.extent_of_k(problem), d.block_k)
    return Grid(units_m * d.cluster_m, units_n * d.cluster_n, units, launched, steps)


#: SMs of a part of the chip (GPC) that a cluster lies within: this many or a few more.
_GPC_SMS = 16


def resident_clusters(cluster_blocks: Value, blocks_per_sm: Value, sms: int) -> Value:
    """Clusters that run at the same time, on SMs of so many blocks; 1 at least.

    Larger ones leave SMs of a GPC over. More would not be wrong, but the last would run alone.
    """
    in_pairs = expr.FloorDiv(sms * blocks_per_sm, cluster_blocks)
    in_gpc = expr.FloorDiv(_GPC_SMS * blocks_per_sm, cluster_blocks)
    larger = max(1, sms // _GPC_SMS) * in_gpc
    return expr.Maximum(1, expr.Select(expr.Less(2, cluster_blocks), larger, in_pairs))


@dataclasses.dataclass(frozen=True, slots=True)
class Registers:
    """Registers of a thread: at the launch, and of each role after `setmaxnreg`."""

    launch: Value
    producer: Value
    consumer: Value


#: Registers of a producer thread; what a consumer needs beside its accumulators.
PRODUCER_REGISTERS = 40
OVERHEAD_REGISTERS = 32
_REGISTER_UNIT = 8


def registers(d: Decisions, registers_per_sm: int) -> Registers:
    """How the registers of a block are divided.

    A block gets an equal share at its launch; the producer then gives up what it does not need.
    What all threads have after it is not more than what the block had, or it would hang.
    """
    share = expr.FloorDiv(registers_per_sm, d.threads * d.blocks_per_sm * _REGISTER_UNIT)
    launch = expr.Minimum(_REGISTER_UNIT * share, 248)
    producer = expr.Minimum(launch, expr.Select(expr.Less(2, d.consumers), 32, PRODUCER_REGISTERS))
    pool = launch * (d.consumers + 1) - producer
    each = _REGISTER_UNIT * expr.FloorDiv(pool, _REGISTER_UNIT * d.consumers)
    return Registers(launch, producer, expr.Minimum(each, 248))


@dataclasses.dataclass(frozen=True, slots=True)
class Shared:
    """Bytes of shared memory of a block, in their order."""

    a_stage: Value
    b_stage: Value
    ring: Value
    store: Value
    total: Value


#: Buffers of a warpgroup for stores by TMA, and the bytes of a row of one.
STORE_BUFFERS = 2
STORE_ROW_BYTES = 128


def shared(problem: GemmProblem, d: Decisions) -> Shared:
    """What a block holds: the ring's stages, buffers of stores, two barriers a stage."""
    size = problem.a.element_bytes
    a_stage, b_stage = d.block_m * d.block_k * size, d.block_n * d.block_k * size
    ring = d.stages * (a_stage + b_stage)
    buffers = STORE_BUFFERS * WGMMA_ROWS * STORE_ROW_BYTES * d.consumers
    store = expr.Select(more(d.tma_store), buffers, 0)
    return Shared(a_stage, b_stage, ring, store, ring + store + 16 * d.stages)
