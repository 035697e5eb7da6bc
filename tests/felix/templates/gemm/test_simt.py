"""Products by threads: their text run on the CPU, compiled for four architectures, and limits."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import random

import pytest

from felix.templates.gemm.ampere import decisions, simt, simt_program, template
from felix.templates.gemm.ampere.simt import Decisions
from felix.templates.gemm.problem import Epilogue, GemmProblem, Place
from tests.support import share
from tests.support.templates import gemm_problems, kernels, template_rows

SMALL = kernels.decisions(
    "thread_m=4 thread_n=4 lanes_m=4 warps_m=1 warps_n=1 block_k=8 stages=2 split_k=1 group_m=1"
    " blocks_per_sm=1"
)
BIG = kernels.decisions(
    "thread_m=8 thread_n=8 warps_m=4 warps_n=2 stages=4 group_m=8 blocks_per_sm=2", SMALL
)
MASK = "place1 <= place0 ? x : -1.0f"
problem = functools.partial(gemm_problems.dense, dtype="float32")
H100 = kernels.machine("sm_90")


CASES: dict[str, tuple[GemmProblem, str]] = {
    "plain": (problem(32, 32, 96), ""),
    "along_rows": (problem(64, 96, 40, layouts="mn"), "thread_n=12 warps_m=2 lanes_m=8 stages=4"),
    "warps": (
        problem(128, 128, 64, layouts="kn", fused=True),
        "thread_m=8 thread_n=8 lanes_m=8 warps_m=2 warps_n=4 block_k=16 stages=3",
    ),
    "guards": (
        problem(37, 45, 71, batch=2, fused=True),
        "thread_m=8 warps_n=2 stages=3 group_m=2 block_k=32",
    ),
    "odd": (problem(19, 21, 35, layouts="mn"), "thread_n=8 stages=3"),
    "eight_bytes": (problem(38, 42, 50, layouts="mn", fused=True), "thread_m=12 block_k=16"),
    "one_row": (
        problem(1, 300, 90, layouts="kn", fused=True),
        "thread_m=1 lanes_m=1 warps_n=2 block_k=32 split_k=2",
    ),
    "five_rows": (problem(5, 70, 64), "thread_m=2 lanes_m=2 warps_m=2 block_k=16"),
    "columns": (problem(70, 9, 64, layouts="mk"), "lanes_m=16 thread_m=8 block_k=16"),
    "split": (problem(17, 33, 200, batch=2, fused=True), "split_k=4 warps_n=2 stages=4"),
    "split_whole": (problem(24, 40, 100, layouts="mn"), "split_k=3 block_k=16"),
    "narrow": (problem(24, 40, 30, out="float16", fused=True), "thread_m=16"),
    "shared": (problem(20, 24, 32, layouts="mk", batch=3, shared=True), ""),
    "offset": (problem(20, 24, 32, layouts="mn", offset=2), "block_k=32"),
    "masked": (
        dataclasses.replace(
            problem(24, 40, 16),
            epilogue=Epilogue(MASK, (), (Place("place0", 1, 1, 24), Place("place1", 2, 2, 20))),
        ),
        "",
    ),
}


@pytest.mark.parametrize("case", share.of(CASES, 4))
def test_text_computes_the_problem(case: str, tmp_path: pathlib.Path) -> None:
    p, text = CASES[case]
    _check(p, kernels.decisions(text, SMALL), tmp_path)


@pytest.mark.parametrize("seed", range(share.rounds(2, 12)))
def test_random_decisions_compute_random_problems(seed: int, tmp_path: pathlib.Path) -> None:
    rng = random.Random(seed)
    p = problem(
        rng.choice((1, 3, 16, 40, 97)),
        rng.choice((3, 8, 50, 132)),
        rng.choice((7, 32, 100, 130)),
        batch=rng.choice((1, 2)),
        layouts=rng.choice(("kk", "kn", "mk", "mn")),
        fused=rng.random() < 0.5,
    )
    made = template.SimtGemm(p, H100, "sm_90")
    _check(p, kernels.legal(made, rng), tmp_path)


def _check(p: GemmProblem, values: dict[str, int], folder: pathlib.Path) -> None:
    """The text computes the problem, with what the features count."""
    generated = simt_program.program(p, Decisions.of(values), "sm_80")
    tolerance = 1e-4 if p.output.dtype == "float32" else 1e-2
    done = kernels.check_text(p, generated, folder, kind="simt", tolerance=tolerance)
    f = _features(p, values)["gemm"]
    d = Decisions.of(values)
    assert done.mma == decisions.grid(p, d).tile_steps * d.block_k * d.block_m * d.block_n
    assert done.copied_bytes == f["copied_bytes"]
    assert done.copied_bytes + done.loaded_bytes == f["shared_traffic"]
    assert done.copies == f["copy_instructions"]


def _features(p: GemmProblem, values: dict[str, int]) -> dict[str, dict[str, float]]:
    return template_rows.rows_of(template.SimtGemm(p, H100, "sm_90"), values)


def test_features_of_launches_and_times() -> None:
    p = problem(300, 200, 1000, fused=True)
    values = BIG | {"split_k": 4}
    whole = _features(p, BIG)
    launches = simt_program.program(p, Decisions.of(values), "sm_80").plan.launches
    kernels.check_split_features(whole, _features(p, values), launches, 4)
    assert not any(name.startswith(("tensor_", "instruction_")) for name in whole["gemm"])


def test_a_long_product_approaches_the_rate_of_the_chip() -> None:
    big = _features(problem(8192, 8192, 8192), BIG)["gemm"]
    least_us = 2 * 8192**3 / (1000 * H100.peak_fp32_gflops)
    assert 1 < big["analytic_us"] / least_us < 1.5


def test_a_wave_that_is_nearly_empty_costs_a_tile_of_one_block() -> None:
    def mainloop_us(m: int) -> float:
        return _features(problem(m, 64, 1024), BIG)["gemm"]["mainloop_us"]

    at_once = 2 * H100.cores
    full, one_more = mainloop_us(at_once * 128), mainloop_us((at_once + 1) * 128)
    assert full < one_more < 1.9 * full


def test_elements_that_a_warp_transposes_lie_in_different_banks() -> None:
    a, _ = simt.tiles(problem(64, 64, 64))
    assert a.is_transposed
    for rows in range(4, 260, 4):
        pitch = a.pitch(rows)
        banks = {(k * pitch + row) % 32 for k in range(8) for row in range(4)}
        assert len(banks) == 32 and pitch % 4 == 0 and rows <= pitch <= rows + 4


@pytest.mark.parametrize(
    "arch, p, values",
    [
        ("sm_80", problem(1024, 1024, 1024, layouts="kn"), BIG),
        ("sm_86", problem(333, 1000, 999, layouts="mn", fused=True, batch=2), BIG),
        ("sm_89", problem(256, 256, 256), BIG | {"thread_n": 16, "blocks_per_sm": 1}),
        ("sm_90a", problem(128, 256, 2048, fused=True), BIG | {"block_k": 16, "split_k": 4}),
        (
            "sm_90a",
            problem(1, 4096, 4096, layouts="kn"),
            BIG | {"thread_m": 1, "lanes_m": 1, "warps_m": 1, "block_k": 16, "blocks_per_sm": 1},
        ),
    ],
    ids=["plain", "guards", "wide", "split", "row"],
)
def test_kernels_compile_without_spills(arch: str, p: GemmProblem, values: dict[str, int]) -> None:
    made = template.SimtGemm(p, kernels.machine(arch), arch)
    kernels.check_compiles(made, values, Decisions.of(values).registers(p))


def test_constraints_hold_where_a_block_fits() -> None:
    def fitting(values: dict[str, int]) -> tuple[int, int, int] | None:
        d = Decisions.of(values)
        stage = 4 * d.block_k * (4 * (d.block_m // 4 // 2 * 2 + 1) + int(d.block_n))
        copies = -(-d.block_m * d.block_k // d.threads) + -(
            -d.block_n * d.block_k // 4 // d.threads
        )
        registers = max(72, d.sums + 2 * (d.thread_m + d.thread_n) + 32)
        fits = (
            d.sums <= 128
            and d.stages * stage <= H100.shared_bytes_per_block
            and d.blocks_per_sm * (d.stages * stage + 1024) <= H100.shared_bytes_per_core
            and registers <= 255
            and registers * d.threads * d.blocks_per_sm <= 65536
            and d.threads <= 1024
            and d.threads * d.blocks_per_sm <= H100.max_threads_per_core
            and copies <= 72
            and d.split_k <= -(-1000 // d.block_k)
        )
        tiles = -(-300 // d.block_m) * -(-200 // d.block_n)
        return (tiles * d.split_k, d.threads, d.stages * stage) if fits else None

    p = problem(300, 200, 1000, layouts="kn")
    kernels.check_limits(template.SimtGemm(p, H100, "sm_90"), 300, fitting)


def test_rows_of_threads_follow_the_problem() -> None:
    def domain(m: int, n: int, name: str) -> tuple[int, ...]:
        return next(q.domain for q in simt.parameters(problem(m, n, 64)) if q.name == name)

    assert domain(1, 64, "thread_m") == (1,) and domain(1, 64, "lanes_m") == (1,)
    assert domain(3, 64, "thread_m") == (1, 2, 4)
    assert domain(500, 64, "thread_m") == (4, 8, 12, 16)
    assert domain(500, 64, "lanes_m") == (4, 8) and domain(500, 8, "lanes_m") == (4, 8, 16)


def test_templates_by_architecture_and_problem() -> None:
    p = problem(64, 64, 64)
    float8 = dataclasses.replace(p, output=dataclasses.replace(p.output, dtype="float8_e4m3fn"))
    assert [made.name for made in template.thread_templates(p, H100, "sm_80")] == ["gemm-simt"]
    assert [template.runs_on(arch) for arch in ("sm_75", "sm_80", "sm_90a")] == [False, True, True]
    assert template.thread_templates(float8, H100, "sm_86") == ()
    assert len(template.thread_templates(float8, H100, "sm_89")) == 1
    keys = {
        template.SimtGemm(q, H100, arch).key for q in (p, float8) for arch in ("sm_80", "sm_89")
    }
    assert len(keys) == 4


def test_unsuited_problems_say_why() -> None:
    p = problem(64, 64, 64)
    half = dataclasses.replace(p, a=dataclasses.replace(p.a, dtype="float16"))
    double = dataclasses.replace(p, output=dataclasses.replace(p.output, dtype="float64"))
    assert template.unsuited_threads(p) is None
    assert "no template" in (template.unsuited_threads(half) or "")
    assert "not converted" in (template.unsuited_threads(double) or "")
