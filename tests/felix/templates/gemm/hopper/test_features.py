"""Features against an interpreter of the schedule's loops; constraints, judged plainly."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from felix.autodiff import program, torch_function
from felix.symbolic import expr
from felix.templates import spec
from felix.templates.gemm.hopper import template as templates
from felix.templates.gemm.hopper.template import HopperGemm, SwappedHopperGemm
from felix.templates.gemm.problem import GemmProblem
from tests.support import share
from tests.support.templates import conv_problems, hopper_problems, hopper_walk, kernels
from tests.support.templates.hopper_walk import BYTES, Sum, ceil_div
from tests.support.templates.template_rows import rows_of


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_those_of_a_walk(seed: int) -> None:
    hopper_walk.check_counts(*hopper_problems.drawn(seed))


@pytest.mark.parametrize("seed", range(6))
def test_every_element_is_computed_once(seed: int) -> None:
    template, decisions = hopper_problems.drawn(100 + seed)
    problem = template.problem
    walked = hopper_walk.walk(problem, decisions, template.design(decisions).grid.clusters)
    parts = decisions["split_k"] * decisions["cluster_k"]
    assert set(walked.computed.values()) == {1}
    covered = {place for place in walked.computed if place[2] < problem.m and place[3] < problem.n}
    tiles = -(-problem.m // decisions["block_m"]) * -(-problem.n // decisions["block_n"])
    assert len(covered) == parts * problem.batch * tiles


def test_unique_bytes_of_a_product() -> None:
    problem = hopper_problems.problem(100, 150, 33, batch=3, b_shared=True, epilogue=2, pad=8)
    template = hopper_problems.template(problem)
    row = rows_of(template, hopper_problems.legal(template, random.Random(0), split_k=1))["gemm"]
    operands = 2 * (3 * 100 * 33 + 150 * 33)
    reads = 2 * 100 + 4 * 3 * 100 * 150  # bfloat16 of a row, float32 of an element
    assert row["dram_bytes"] == operands + reads + 2 * 3 * 100 * 150
    assert row["read_bytes"] == (2 + 4) * 3 * 100 * 150
    assert row["workspace_bytes"] == 0
    assert row["problem_ops"] == 2 * 3 * 100 * 150 * 33


def test_a_split_sum_has_a_reduction_and_others_have_a_row_of_zeros() -> None:
    template = hopper_problems.template(hopper_problems.problem(64, 128, 512))
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
    hopper_walk.check_launches(*hopper_problems.drawn(200 + seed))


def test_names_are_those_of_the_table_and_gradients_are_finite() -> None:
    template = hopper_problems.template(hopper_problems.problem(1000, 509, 300))
    rows = template.rows()
    assert set().union(*rows.values()) <= set(spec.NAMES)
    assert list(rows) == ["pack", "gemm", "reduce"]
    names = [p.name for p in template.parameters]
    expressions = [value for row in rows.values() for value in row.values()]
    compiled = program.FormulaProgram.compile(expressions, [expr.variable(name) for name in names])
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
    template = hopper_problems.template(hopper_problems.problem(4096, 4096, 4096))
    changed = "block_n=256 group_m=8 persistent=2 tma_store=2"
    large = kernels.decisions(changed, hopper_problems.PLAIN)
    small = large | dict(block_m=64, block_n=64, consumers=1)
    latency = [rows_of(template, values)["gemm"]["analytic_us"] for values in (large, small)]
    assert latency[0] < 0.7 * latency[1]
    ideal_us = 2 * 4096**3 / (132 * 4096 * 1980)  # at the boost clock
    assert ideal_us < latency[0] < 2 * ideal_us


# ---------------------------------------------------------------- constraints


_PROBLEMS: tuple[GemmProblem, ...] = (
    hopper_problems.problem(1024, 1024, 1024),
    hopper_problems.problem(197, 1021, 509, a_transposed=True, b_transposed=False),
    hopper_problems.problem(4096, 16, 4096, c_transposed=True),
    hopper_problems.problem(128, 512, 256, dtype="int8", out="int32", batch=2),
    conv_problems.problem([conv_problems.Dimension(40, 3, 1, 1, 1)] * 2, 80, 192, groups=2),
    conv_problems.problem([conv_problems.Dimension(600, 5, 2)], 24, 100, weights="ohwi"),
)


def _can_run(problem: GemmProblem, d: Mapping[str, int]) -> bool:
    """Whether the kernel can be built and run on an H200."""
    size = BYTES[problem.a.dtype]
    rows = 64 * max(1, d["consumers"] // d["tiles_at_once"])
    if d["block_m"] % rows or (d["tiles_at_once"] == 2 and d["consumers"] != 2):
        return False
    threads = 128 * (d["consumers"] + 1)
    launch = min(248, 65536 // (threads * d["blocks_per_sm"]) // 8 * 8)
    producer = min(launch, 32 if d["consumers"] == 3 else 40)
    consumer = min(248, (launch * (d["consumers"] + 1) - producer) // d["consumers"] // 8 * 8)
    if d["block_m"] // rows * d["block_n"] // 2 + 32 > consumer or d["block_n"] // 2 + 26 > launch:
        return False
    ring = d["stages"] * (d["block_m"] + d["block_n"]) * d["block_k"] * size
    buffers = 16384 * d["consumers"] if d["tma_store"] == 2 else 0
    shared = ring + buffers + 16 * d["stages"]
    if shared > 232448 or (shared + 1024) * d["blocks_per_sm"] > 233472:
        return False
    strides = problem.output.strides
    can_store = 1 in strides[1:] and max(strides[1:]) * BYTES[problem.output.dtype] % 16 == 0
    if d["tma_store"] == 2 and d["split_k"] == 1 and not can_store:
        return False
    return _cluster_can_run(problem, d, ring)


def _cluster_can_run(problem: GemmProblem, d: Mapping[str, int], ring: int) -> bool:
    is_k_major = problem.b.strides[2] == 1
    if (d["block_n"] if is_k_major else d["block_k"]) % (8 * d["cluster_m"]):
        return False
    if d["cluster_m"] * d["cluster_n"] * d["cluster_k"] > 8:
        return False
    if d["cluster_k"] == 1:
        return True
    others = ("cluster_m", "cluster_n", "split_k", "persistent", "tma_store", "tiles_at_once")
    return all(d[name] == 1 for name in others) and d["block_m"] * d["block_n"] * 4 <= ring


def _has_effect(problem: GemmProblem, d: Mapping[str, int]) -> bool:
    """Whether no block is idle by design and no other decisions make the same kernel."""
    steps = ceil_div(Sum.of(problem).extent, d["block_k"])
    rows = ceil_div(problem.m, d["block_m"] * d["cluster_m"])
    columns = ceil_div(problem.n, d["block_n"] * d["cluster_n"])
    units = rows * columns * problem.batch * d["split_k"]
    if d["split_k"] * d["cluster_k"] > steps or d["group_m"] > rows:
        return False
    if (d["cluster_m"] - 1) * d["block_m"] >= problem.m:
        return False
    if (d["cluster_n"] - 1) * d["block_n"] >= problem.n:
        return False
    if d["tiles_at_once"] == 2 and units == 1:
        return False
    blocks = d["cluster_m"] * d["cluster_n"] * d["cluster_k"]
    per_sm = d["blocks_per_sm"]
    resident = 132 * per_sm // blocks if blocks <= 2 else 8 * (16 * per_sm // blocks)
    return d["persistent"] == 1 or ceil_div(units, d["tiles_at_once"]) > max(1, resident)


@pytest.mark.parametrize("problem", share.of(_PROBLEMS, 3))
def test_constraints_are_a_plain_judgement(problem: GemmProblem) -> None:
    template = hopper_problems.template(problem)
    names = [p.name for p in template.parameters]
    constraints = [value for _, value in template.constraints()]
    compiled = program.FormulaProgram.compile(constraints, [expr.variable(name) for name in names])
    rng = random.Random(0)
    samples = [hopper_problems.sample(template, rng) for _ in range(10_000)]
    values = np.array([[sample[name] for name in names] for sample in samples], dtype=np.float64)
    is_legal = (compiled.exact(values) <= 0).all(axis=1)
    expected = [_can_run(problem, d) and _has_effect(problem, d) for d in samples]
    np.testing.assert_array_equal(is_legal, expected)
    assert 20 < is_legal.sum() < len(samples) / 2


def test_integers_and_expressions_agree() -> None:
    """`generate` checks integers by the same functions that give the search its expressions."""
    template = hopper_problems.template(_PROBLEMS[0])
    rng = random.Random(1)
    symbols = {p.name: expr.variable(p.name) for p in template.parameters}
    pairs = template.constraints()
    for _ in range(30):
        values = hopper_problems.sample(template, rng)
        point = {symbols[name]: value for name, value in values.items()}
        by_expressions = all(value.xreplace(point).doit() <= 0 for _, value in pairs)
        assert by_expressions == hopper_problems.is_legal(template, values)


def test_small_problems_have_small_domains() -> None:
    template = hopper_problems.template(hopper_problems.problem(40, 20, 64))
    domains = {p.name: p.domain for p in template.parameters}
    assert domains["block_m"] == (64,)
    assert domains["block_n"] == (8, 16, 24)
    assert domains["split_k"] == domains["cluster_k"] == (1,)


def test_transposed_operands_need_whole_swizzles() -> None:
    problem = hopper_problems.problem(256, 256, 256, b_transposed=False)
    block_n = hopper_problems.template(problem).parameters[1]
    assert all(n % 16 == 0 for n in block_n.domain)


def test_orders_of_operands() -> None:
    def names(m: int, n: int) -> list[str]:
        problem = hopper_problems.problem(m, n, 512)
        return [t.name for t in templates.templates(problem, hopper_problems.hardware())]

    assert names(1, 4096) == ["gemm-wgmma-swapped"]
    assert names(100, 4096) == ["gemm-wgmma-swapped", "gemm-wgmma"]
    assert names(4096, 16) == names(1024, 1024) == ["gemm-wgmma"]
    assert names(1000, 1000) == ["gemm-wgmma", "gemm-wgmma-swapped"]


def test_keys_tell_problems_and_orders_apart() -> None:
    hardware = hopper_problems.hardware()
    plain = HopperGemm(_PROBLEMS[0], hardware)
    keys = {
        plain.key,
        SwappedHopperGemm(_PROBLEMS[0].swapped, hardware).key,
        HopperGemm(_PROBLEMS[1], hardware).key,
    }
    assert len(keys) == 3
    assert HopperGemm(hopper_problems.problem(1024, 1024, 1024), hardware).key == plain.key


def test_what_is_not_for_the_template() -> None:
    assert templates.unsuited(_PROBLEMS[0]) is None
    double = hopper_problems.problem(64, 64, 64)
    reason = templates.unsuited(hopper_problems.with_operands(double, "float64"))
    assert reason is not None and "no product of float64" in reason
    assert templates.runs_on("sm_90") and not templates.runs_on("sm_100")
