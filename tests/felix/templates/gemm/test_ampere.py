"""The mma.sync kernels: their text run on the CPU, compiled for four architectures, and limits."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import pytest

from felix.runner.cuda import nvrtc
from felix.templates.gemm import epilogue as gemm_epilogue
from felix.templates.gemm.ampere import layout, packing, program, template
from felix.templates.gemm.ampere.decisions import Decisions
from felix.templates.gemm.problem import Epilogue, GemmProblem
from tests.support import share
from tests.support.templates import kernels
from tests.support.templates.gemm_problems import dense as problem
from tests.support.templates.kernels import A100, BIG, SMALL, features

CASES: dict[str, tuple[GemmProblem, str]] = {
    "plain": (problem(32, 32, 96), ""),
    "warps": (
        problem(64, 96, 128, "float16", fused=True),
        "warp_m=32 warp_n=48 warps_m=2 warps_n=2 stages=4",
    ),
    "guards": (
        problem(37, 45, 72, batch=2, fused=True),
        "warp_m=16 warp_n=32 warps_m=2 stages=3 group_m=2",
    ),
    "odd": (problem(19, 21, 35, "float16"), "warp_n=32 stages=3"),
    "four_bytes": (problem(19, 21, 38, "float16"), "stages=3 block_k=64"),
    "transposed": (
        problem(40, 56, 50, layouts="mn", out="float32"),
        "warp_m=48 warp_n=32 warps_n=2 stages=3",
    ),
    "mixed": (
        problem(64, 48, 80, "float16", layouts="mk", batch=2, shared=True),
        "warp_m=64 warp_n=16 warps_n=4 block_k=64",
    ),
    "split": (problem(17, 33, 200, batch=2, fused=True), "split_k=4 warps_n=2 stages=4"),
    "int8": (problem(48, 40, 208, "int8"), "block_k=64 warp_m=32 warps_n=2 stages=3 split_k=2"),
    "tf32": (problem(16, 24, 72, "float32"), "block_k=16 warp_n=32"),
    "int8_transposed": (
        problem(48, 40, 205, "int8", layouts="mn", batch=2, shared=True),
        "block_k=64 warp_m=32 warps_n=2 stages=3 split_k=2",
    ),
    "tf32_transposed": (
        problem(19, 24, 71, "float32", layouts="kn", fused=True),
        "block_k=16 warp_n=32",
    ),
}


@pytest.mark.parametrize("case", share.of(CASES, 4))
def test_text_computes_the_problem_and_features_count_it(
    case: str, tmp_path: pathlib.Path
) -> None:
    p, text = CASES[case]
    values = kernels.decisions(text, SMALL)
    done = kernels.check_text(p, program.program(p, Decisions.of(values), "sm_80"), tmp_path)
    if case != "odd":  # its elements are loaded and stored one by one, which nothing counts
        kernels.check_counts(done, features(p, values)["gemm"])


def test_features_of_launches_and_times() -> None:
    p = problem(300, 200, 1000, fused=True)
    values = BIG | {"split_k": 4}
    launches = program.program(p, Decisions.of(values), "sm_80").plan.launches
    kernels.check_split_features(features(p, BIG), features(p, values), launches, 2)
    # A long product approaches the rate of the tensor cores.
    big = features(problem(8192, 8192, 8192), BIG)["gemm"]
    assert 1 < big["analytic_us"] / big["tensor_us"] < 2


def test_copies_of_matrices() -> None:
    """What lies along k is read where it lies; lines of copies fill 16 bytes."""
    p = problem(48, 40, 205, "int8", layouts="mk", batch=2)
    (copy,) = packing.packed(p).copies
    assert (copy.param, copy.bytes, copy.read_bytes) == (0, 2 * 48 * 208, 2 * 48 * 205)
    rows = features(p, SMALL | {"block_k": 64})
    assert rows["pack"]["stored_bytes"] == 2 * 48 * 208
    assert rows["pack"]["grid_blocks"] == -(-2 * 48 * 208 // (16 * 256))
    plan = program.program(p, Decisions.of(SMALL | {"block_k": 64}), "sm_80").plan
    assert [launch.kernel for launch in plan.launches] == ["pack", "gemm"]
    assert plan.workspaces == (2 * 48 * 208,)
    for p in (problem(48, 40, 205, layouts="mn"), problem(48, 40, 1, "int8", layouts="mn")):
        assert packing.packed(p) == packing.Packed(p)


def test_eight_lines_of_a_chunk_lie_in_different_banks() -> None:
    for chunks in (2, 4, 6, 8, 12, 16, 24, 32):
        matrix, _ = layout.matrices(problem(64, 64, 8 * chunks))
        group = matrix.swizzle_group(64, 8 * chunks)
        # As `Operand::position` of the text.
        position = {
            (line, chunk): line * chunks + (chunk ^ (line // (8 // group) % group))
            for line in range(64)
            for chunk in range(chunks)
        }
        for line in range(0, 64, 8):
            for chunk in range(chunks):
                assert len({position[line + i, chunk] % 8 for i in range(8)}) == 8
        assert set(position.values()) == set(range(64 * chunks))


COMPILED: dict[str, tuple[str, GemmProblem, str]] = {
    "plain": ("sm_80", problem(1024, 1024, 1024), ""),
    "guards": ("sm_86", problem(333, 1000, 999, "float16", layouts="mn", fused=True, batch=2), ""),
    "float8": ("sm_89", problem(256, 256, 256, "float8_e4m3fn", out="bfloat16"), "block_k=64"),
    "int8": ("sm_90", problem(128, 256, 2048, "int8"), "block_k=128 split_k=4"),
    "packed int8": ("sm_80", problem(256, 333, 511, "int8", layouts="mn"), "block_k=64"),
    "packed tf32": (
        "sm_86",
        problem(256, 256, 255, "float32", layouts="mn", batch=2),
        "block_k=16",
    ),
    "packed float8": (
        "sm_89",
        problem(256, 250, 250, "float8_e4m3fn", layouts="kn", out="bfloat16"),
        "block_k=64",
    ),
}


@pytest.mark.parametrize("case", share.of(COMPILED, 4))
def test_kernels_compile_without_spills(case: str) -> None:
    arch, p, text = COMPILED[case]
    values = kernels.decisions(text, BIG)
    made = template.AmpereGemm(p, kernels.machine(arch), arch)
    kernels.check_compiles(made, values, Decisions.of(values).registers(p))


def test_every_function_of_epilogues_compiles() -> None:
    """What `epilogue.text` may write is known to NVRTC without headers."""
    calls = [form.format("x", "x") for form in gemm_epilogue.FUNCTIONS.values()]
    calls += ["(1.0f / 0.0f)", "(0.0f / 0.0f)", "fminf(x, 0.0f)", "(float)(min((int)(x), 3))"]
    p = dataclasses.replace(problem(64, 64, 64), epilogue=Epilogue(" + ".join(calls)))
    generated = program.program(p, Decisions.of(SMALL), "sm_80")
    assert len(nvrtc.compile_cubin(generated.source, "sm_80")) > 0


def test_constraints_hold_where_a_block_fits() -> None:
    def fitting(values: dict[str, int]) -> tuple[int, int, int] | None:
        d = Decisions.of(values)
        stage = (d.block_m + d.block_n) * d.block_k * 2
        shared = max(d.stages * stage, d.threads // 32 * 16 * (d.warp_n + 8) * 4)
        copies = -(-stage // 16 // d.threads)
        registers = d.warp_m * d.warp_n // 32 + 3 * (d.warp_m + d.warp_n) // 8 + 6 * copies + 24
        fits = (
            shared <= A100.shared_bytes_per_block
            and d.blocks_per_sm * (shared + 1024) <= A100.shared_bytes_per_core
            and registers <= 255
            and registers * d.threads * d.blocks_per_sm <= 65536
            and d.threads <= 1024
            and d.threads * d.blocks_per_sm <= A100.max_threads_per_core
            and stage <= 16 * 16 * d.threads
            and d.split_k <= -(-1000 // d.block_k)
        )
        tiles = -(-300 // d.block_m) * -(-200 // d.block_n)
        return (tiles * d.split_k, d.threads, shared) if fits else None

    kernels.check_limits(template.AmpereGemm(problem(300, 200, 1000), A100, "sm_80"), 400, fitting)


def test_templates_by_architecture_and_problem() -> None:
    plain, float8 = problem(64, 64, 64), problem(64, 64, 64, "float8_e4m3fn", out="bfloat16")
    assert [made.name for made in template.templates(plain, A100, "sm_80")] == ["gemm-mma"]
    assert [template.runs_on(arch) for arch in ("sm_75", "sm_80", "sm_90a")] == [False, True, True]
    assert template.templates(float8, A100, "sm_86") == ()
    assert len(template.templates(float8, A100, "sm_89")) == 1
    keys = {
        template.AmpereGemm(p, A100, arch).key
        for p, arch in itertools.product((plain, float8), ("sm_80", "sm_86"))
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    "p, reason",
    [
        (problem(64, 64, 64), None),
        (problem(64, 64, 64, "float64"), "mma.sync does not"),
        (problem(64, 64, 64, "int8", layouts="mk"), None),
        (problem(64, 64, 64, out="float64"), "not converted"),
        (dataclasses.replace(problem(64, 64, 64, "int8"), accumulator="float32"), "not summed"),
    ],
)
def test_unsuited_problems_say_why(p: GemmProblem, reason: str | None) -> None:
    said = template.unsuited(p)
    assert (said is None) if reason is None else (said is not None and reason in said)
