"""Features against an interpreter that walks the schedule's loops, and what a plan says."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from felix.autodiff import program, torch_function
from felix.symbolic import expr
from felix.templates import spec
from felix.templates.gemm.hopper.template import HopperGemm
from tests.support.templates import hopper_problems, hopper_walk
from tests.support.templates.template_rows import rows_of


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_those_of_a_walk(seed: int) -> None:
    rng = random.Random(seed)
    template = HopperGemm(hopper_problems.random_problem(rng), hopper_problems.hardware())
    decisions = hopper_problems.legal(template, rng)
    problem = template.problem
    design = template.design(decisions)
    walked = hopper_walk.walk(problem, decisions, design.grid.clusters)
    row = rows_of(template, decisions)["gemm"]
    assert row["grid_blocks"] == walked.blocks
    assert row["tensor_instructions"] == walked.instructions
    assert row["copy_instructions"] == walked.copies
    assert row["copied_bytes"] == walked.copied_bytes
    assert row["shared_traffic"] == walked.copied_bytes + walked.read_by_tensor_cores
    assert row["l2_bytes"] == walked.l2_bytes
    assert row["steps"] == walked.steps
    assert row["tiles_per_block"] == walked.tiles


@pytest.mark.parametrize("seed", range(6))
def test_every_element_is_computed_once(seed: int) -> None:
    rng = random.Random(100 + seed)
    template = HopperGemm(hopper_problems.random_problem(rng), hopper_problems.hardware())
    decisions = hopper_problems.legal(template, rng)
    problem = template.problem
    walked = hopper_walk.walk(problem, decisions, template.design(decisions).grid.clusters)
    parts = decisions["split_k"] * decisions["cluster_k"]
    assert set(walked.computed.values()) == {1}
    covered = {place for place in walked.computed if place[2] < problem.m and place[3] < problem.n}
    tiles = -(-problem.m // decisions["block_m"]) * -(-problem.n // decisions["block_n"])
    assert len(covered) == parts * problem.batch * tiles


def test_unique_bytes_of_a_product() -> None:
    problem = hopper_problems.problem(100, 150, 33, batch=3, b_shared=True, epilogue=2, pad=8)
    template = HopperGemm(problem, hopper_problems.hardware())
    row = rows_of(template, hopper_problems.legal(template, random.Random(0), split_k=1))["gemm"]
    operands = 2 * (3 * 100 * 33 + 150 * 33)
    reads = 2 * 100 + 4 * 3 * 100 * 150  # bfloat16 of a row, float32 of an element
    assert row["dram_bytes"] == operands + reads + 2 * 3 * 100 * 150
    assert row["read_bytes"] == (2 + 4) * 3 * 100 * 150
    assert row["workspace_bytes"] == 0
    assert row["problem_ops"] == 2 * 3 * 100 * 150 * 33


def test_a_split_sum_has_a_reduction_and_others_have_a_row_of_zeros() -> None:
    template = HopperGemm(hopper_problems.problem(64, 128, 512), hopper_problems.hardware())
    rng = random.Random(0)
    whole = rows_of(template, hopper_problems.legal(template, rng, split_k=1))
    assert set(whole["reduce"].values()) == {0.0}
    split = rows_of(template, hopper_problems.legal(template, rng, split_k=4))
    sums = 4 * 4 * 64 * 128
    assert split["gemm"]["stored_bytes"] == split["gemm"]["workspace_bytes"] == sums
    assert split["reduce"]["workspace_bytes"] == sums
    assert split["reduce"]["dram_bytes"] == sums + 2 * 64 * 128
    assert split["reduce"]["analytic_us"] > 0


@pytest.mark.parametrize("seed", range(8))
def test_a_launch_has_the_blocks_and_bytes_of_its_row(seed: int) -> None:
    rng = random.Random(200 + seed)
    template = HopperGemm(hopper_problems.random_problem(rng), hopper_problems.hardware())
    decisions = hopper_problems.legal(template, rng)
    rows = rows_of(template, decisions)
    plan = template.generate(decisions).plan
    launched = [name for name, row in rows.items() if row["grid_blocks"] > 0]
    assert [launch.kernel for launch in plan.launches] == launched
    for launch in plan.launches:
        row = rows[launch.kernel]
        assert launch.extents == (row["grid_blocks"], 1, 1, row["block_threads"], 1, 1)
        assert launch.shared_bytes == row.get("shared_bytes", 0)
        assert launch.cluster == (row["cluster_blocks"], 1, 1)


def test_names_are_those_of_the_table_and_gradients_are_finite() -> None:
    template = HopperGemm(hopper_problems.problem(1000, 509, 300), hopper_problems.hardware())
    rows = template.rows()
    assert set().union(*rows.values()) <= set(spec.NAMES)
    assert list(rows) == ["pack", "gemm", "reduce"]
    names = [p.name for p in template.parameters]
    expressions = [value for row in rows.values() for value in row.values()]
    compiled = program.Program.compile(expressions, [expr.variable(name) for name in names])
    rng = random.Random(0)
    points = [hopper_problems.legal(template, rng) for _ in range(4)]
    values = np.array([[point[name] for name in names] for point in points], dtype=np.float64)
    exact = compiled.exact(values)
    assert np.isfinite(exact).all() and (exact >= 0).all()
    points = torch.tensor(values, requires_grad=True)
    smooth = torch_function.smooth(compiled, points, temperature=0.3)
    smooth.sum().backward()
    assert torch.isfinite(smooth).all() and points.grad is not None
    assert torch.isfinite(points.grad).all() and (points.grad != 0).any()


def test_the_model_prefers_large_tiles_for_large_products() -> None:
    template = HopperGemm(hopper_problems.problem(4096, 4096, 4096), hopper_problems.hardware())
    large = dict(
        block_m=128,
        block_n=256,
        block_k=64,
        stages=4,
        consumers=2,
        tiles_at_once=1,
        blocks_per_sm=1,
        cluster_m=1,
        cluster_n=1,
        cluster_k=1,
        split_k=1,
        group_m=8,
        persistent=2,
        tma_store=2,
    )
    small = large | dict(block_m=64, block_n=64, consumers=1)
    latency = [rows_of(template, values)["gemm"]["analytic_us"] for values in (large, small)]
    assert latency[0] < 0.7 * latency[1]
    ideal_us = 2 * 4096**3 / (132 * 4096 * 1980)  # at the boost clock
    assert ideal_us < latency[0] < 2 * ideal_us
