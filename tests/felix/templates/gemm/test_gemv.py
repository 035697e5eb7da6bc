"""Products of few rows: the kernels' text run on the CPU, compiled for architectures, limits."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import random
from typing import Any

import pytest

import felix
from felix import target, workloads
from felix.runner.checking import reference
from felix.templates import registry, spec
from felix.templates.gemm.gemv import decisions, template
from felix.templates.gemm.gemv.decisions import Decisions
from felix.templates.gemm.problem import GemmProblem, Place
from tests.support import share
from tests.support.templates import gemm_problems, kernels, template_rows

H200 = kernels.machine("sm_90")
SMALL = kernels.decisions("lanes=4 columns=1 warps_n=1 warps_k=1 unroll=1")


def problem(*args: Any, a_along: str = "k", fused: bool = False, **options: Any) -> GemmProblem:
    """A product of compact tensors; `fused`: with a bias, a residual and the column's number."""
    if fused:
        options |= {
            "fused": "(x + read0) * 0.5f + read1 + place0",
            "places": (Place("place0", 2, 2, 3),),
        }
    return gemm_problems.dense(*args, layouts=f"{a_along}k", **options)


CASES: dict[str, tuple[GemmProblem, str]] = {
    "plain": (problem(1, 64, 256), ""),
    "wide": (problem(1, 96, 512, "float32"), "lanes=32 warps_k=4 unroll=2"),
    "rows": (
        problem(5, 37, 200, "float16", fused=True, batch=2),
        "lanes=8 columns=4 warps_n=2 warps_k=2 unroll=2",
    ),
    "odd": (problem(2, 19, 35, "float16", fused=True), "columns=2 warps_k=2"),
    "across": (
        problem(3, 33, 72, a_along="m", out="float32", shared=True, batch=3),
        "lanes=16 columns=8",
    ),
    "int8": (problem(8, 40, 208, "int8"), "columns=2 warps_n=2 unroll=4"),
}


@pytest.mark.parametrize("case", share.of(CASES, 4))
def test_text_computes_the_problem(case: str, tmp_path: pathlib.Path) -> None:
    p, text = CASES[case]
    _check(p, kernels.decisions(text, SMALL), tmp_path)


def test_text_computes_problems_of_random_decisions(tmp_path: pathlib.Path) -> None:
    rng = random.Random(3)
    for number in range(share.rounds(2, 8)):
        p = problem(
            rng.choice((1, 2, 3, 8)),
            rng.choice((17, 64, 70)),
            rng.choice((48, 100, 264)),
            rng.choice(("bfloat16", "float16", "float32")),
            batch=rng.choice((1, 2)),
            fused=rng.random() < 0.5,
        )
        folder = tmp_path / str(number)
        folder.mkdir()
        _check(p, kernels.legal(template.Gemv(p, H200, "sm_90"), rng), folder)


def _check(p: GemmProblem, values: dict[str, int], folder: pathlib.Path) -> None:
    generated = template.program(p, Decisions.of(values), "sm_80")
    kernels.check_text(p, generated, folder, kind="gemv")


def test_features_of_launches_and_times() -> None:
    p = problem(1, 4096, 4096, fused=True)
    made = template.Gemv(p, H200, "sm_90")
    values = {"lanes": 32, "columns": 2, "warps_n": 1, "warps_k": 8, "unroll": 2}
    (f,) = template_rows.rows_of(made, values).values()
    (launch,) = made.generate(values).plan.launches
    assert set(f) <= set(spec.NAMES)
    assert all(value >= 0 for value in f.values())
    assert f["grid_blocks"] == launch.extents[0] == 2048
    assert f["block_threads"] == launch.extents[3] == 256
    assert f["shared_bytes"] == launch.shared_bytes == 4 * 2 * 8
    # the matrix, the vector, bias and residual, and what is stored
    assert f["dram_bytes"] == 2 * (4096 * 4096 + 4 * 4096)
    # a long product of one row is bound by the memory
    assert 1 < (f["analytic_us"] - f["launch_us"]) / f["dram_us"] < 1.5


@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_a_walk(case: str) -> None:
    """Of what the kernel's loops load and store: lines of A and B once in a block."""
    p, text = CASES[case]
    values = kernels.decisions(text, SMALL)
    (f,) = template_rows.rows_of(template.Gemv(p, H200, "sm_90"), values).values()
    walked = _walk(p, values)
    assert {name: float(f[name]) for name in walked} == walked


def _walk(p: GemmProblem, values: dict[str, int]) -> dict[str, int]:
    """The kernel's loops in plain Python, thread by thread."""
    d = Decisions.of(values)
    vector, stride = decisions.chunk_elements(p.b, p.k), d.lanes * d.warps_k
    bytes_of = {t.param: reference.np_dtype(t.dtype).itemsize for t in (p.a, p.b, p.output)}
    blocks = steps = loaded = stored = 0
    for _, first in itertools.product(range(p.batch), range(0, p.n, d.block_columns)):
        a: set[tuple[int, int]] = set()
        b: set[tuple[int, int]] = set()
        for warp_k, warp_n, thread in itertools.product(
            range(d.warps_k), range(d.warps_n), range(32)
        ):
            column = first + warp_n * d.warp_columns + thread // d.lanes * d.columns
            begins = range(warp_k * d.lanes + thread % d.lanes, p.k // vector, stride * d.unroll)
            steps = max(steps, len(begins))
            for begin, u, i in itertools.product(begins, range(d.unroll), range(vector)):
                k = (begin + u * stride) * vector + i
                if k < p.k:
                    a |= {(row, k) for row in range(p.m)}
                    b |= {(c, k) for c in range(column, min(column + d.columns, p.n))}
        blocks += 1
        loaded += len(a) * bytes_of[p.a.param] + len(b) * bytes_of[p.b.param]
        stored += p.m * min(d.block_columns, p.n - first) * bytes_of[p.output.param]
    counts = {"grid_blocks": blocks, "steps": steps, "l2_bytes": loaded, "stored_bytes": stored}
    return {name: int(count) for name, count in counts.items()}  # some are sympy's


@pytest.mark.parametrize(
    "arch, p, values",
    [
        ("sm_80", problem(1, 4096, 4096), {"lanes": 32, "columns": 4, "unroll": 4}),
        ("sm_86", problem(4, 1000, 999, "float16", fused=True, batch=2), {"columns": 4}),
        ("sm_89", problem(2, 256, 256, "float8_e4m3fn", out="bfloat16"), {"unroll": 2}),
        ("sm_90a", problem(8, 4096, 1024, "float32"), {"columns": 4, "unroll": 2, "warps_k": 4}),
        ("sm_90a", problem(8, 256, 2048, "int8"), {"columns": 2, "warps_k": 16}),
    ],
    ids=["row", "guards", "float8", "float32", "int8"],
)
def test_kernels_compile_without_spills(arch: str, p: GemmProblem, values: dict[str, int]) -> None:
    estimate = decisions.registers(p, Decisions.of(SMALL | values))
    made = template.Gemv(p, kernels.machine(arch), arch)
    kernels.check_compiles(made, SMALL | values, estimate)


def test_constraints_hold_where_a_block_fits() -> None:
    def fitting(values: dict[str, int]) -> tuple[int, int, int] | None:
        d = Decisions.of(values)
        registers = 8 * d.columns + 4 * d.columns * d.unroll + 2 * 4 + 32
        shared = 4 * 8 * (32 // d.lanes) * d.columns * d.warps_n * d.warps_k
        fits = (
            registers <= 255
            and d.threads <= 1024
            and registers * d.threads <= 65536
            and shared <= H200.shared_bytes_per_block
        )
        return (-(-300 // d.block_columns), d.threads, shared) if fits else None

    made = template.Gemv(problem(8, 300, 1000, "float32"), H200, "sm_90")
    kernels.check_limits(made, 300, fitting)


@pytest.mark.parametrize(
    "text, names",
    [
        ("gemm:1,4096,4096,transpose_b=true", ["gemm-simt", "gemv"]),
        ("gemm:1,768,3072,transpose_b=true,dtype=bfloat16", ["gemm-wgmma-swapped", "gemv"]),
        ("gemm:768,2,3072,transpose_b=true,dtype=float16", ["gemm-wgmma", "gemv"]),
        ("gemm:9,4096,4096,transpose_b=true", []),
        ("gemm:1,4096,4096", []),
    ],
)
def test_few_rows_are_searched_beside_tensor_cores(text: str, names: list[str]) -> None:
    task = workloads.parse(text, target.parse("cuda -arch sm_90"))
    matching = registry.templates_of(task.mod, task.target, target.hardware(task.target))
    assert {made.name for made in matching.templates} >= set(names)
    assert ("gemv" in {made.name for made in matching.templates}) == ("gemv" in names)


def test_sketches_have_legal_samples() -> None:
    task = workloads.parse("gemm:1,768,3072,transpose_b=true", target.parse("cuda -arch sm_90"))
    (sketch,) = [s for s in felix.sketches(task) if s.variant == "gemv"]
    batch = sketch.sample(16, seed=0)
    assert len(batch) == 16
    assert sketch.formulas.exact(batch).shape[:2] == (16, 1)
    for row in batch:
        sketch.program(row)


@pytest.mark.parametrize(
    "p, reason",
    [
        (problem(1, 64, 64), None),
        (problem(64, 64, 64), "more than 8 rows"),
        (problem(1, 64, 64, out="float64"), "not converted"),
        (dataclasses.replace(problem(1, 64, 64, "int8"), accumulator="float32"), "not summed"),
    ],
)
def test_unsuited_problems_say_why(p: GemmProblem, reason: str | None) -> None:
    said = template.unsuited(p)
    assert (said is None) if reason is None else (said is not None and reason in said)
