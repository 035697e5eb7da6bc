"""The mma.sync kernels of convolutions: their text run on the CPU, counted and compiled."""

from __future__ import annotations

import functools
import pathlib
import random
from typing import Any

import pytest

from felix import workloads
from felix.builder import task_program
from felix.runner.checking import reference
from felix.templates.gemm.ampere import packing, program, template
from felix.templates.gemm.ampere.decisions import Decisions
from felix.templates.gemm.problem import GemmProblem
from tests.support import share
from tests.support.templates import host_gpu, kernels, recognised
from tests.support.templates.kernels import A100, BIG, SMALL, features


def problem(n_axes: int, *sizes: int, dtype: str = "bfloat16", **options: Any) -> GemmProblem:
    """Of a convolution of `felix.workloads`."""
    made = recognised.problem(recognised.convolution(n_axes, *sizes, dtype=dtype, **options).mod)
    assert template.unsuited(made) is None
    return made


def _arrays(n_axes: int, sizes: tuple[int, ...], options: dict[str, Any]) -> list[Any]:
    """Random parameters; the output is poison, and there is poison behind it."""
    mod = recognised.convolution(n_axes, *sizes, **options).mod
    *inputs, output = reference.inputs(task_program.arguments(mod), 1, positive=False)
    return [*inputs, kernels.poisoned(output.size, output.dtype)]


CASES: dict[str, tuple[int, tuple[int, ...], dict[str, Any], str]] = {
    "plain": (2, (1, 6, 6, 16, 16, 3), {}, ""),
    "padded": (2, (2, 7, 9, 8, 20, 3), {"padding": 1}, "warp_m=32 stages=3"),
    "strided": (
        2,
        (2, 9, 9, 24, 16, 3),
        {"padding": 1, "stride": 2},
        "warps_m=2 warps_n=2 block_k=64 stages=3",
    ),
    "fused": (
        2,
        (1, 7, 7, 16, 24, 3),
        {"padding": 1, "epilogue": ("bias", "gelu", "residual")},
        "warp_n=32 warps_m=4 group_m=2",
    ),
    "eight_bytes": (2, (2, 7, 7, 4, 16, 3), {"padding": 1}, "stages=3"),
    "four_bytes": (2, (2, 7, 7, 6, 16, 3), {"padding": 1}, "block_k=64"),
    "groups": (
        2,
        (2, 7, 7, 16, 24, 3),
        {"padding": 1, "groups": 2, "epilogue": ("bias",)},
        "stages=4",
    ),
    "split": (2, (1, 7, 7, 32, 20, 3), {"padding": 1}, "split_k=4 warps_n=2"),
    "dilated": (2, (1, 11, 9, 8, 16, 3), {"padding": 2, "dilation": 2}, ""),
    "strided_1x1": (2, (2, 8, 8, 16, 16, 1), {"stride": 2}, ""),
    "line": (1, (3, 19, 8, 16, 5), {"padding": 3, "dilation": 2, "stride": 2}, ""),
    "volume": (
        3,
        (1, 4, 5, 6, 8, 16, 3),
        {"padding": 1, "stride": 2, "dtype": "float16"},
        "warps_m=2 stages=3",
    ),
    "two_bytes": (2, (2, 7, 7, 3, 16, 3), {"padding": 1, "stride": 2}, ""),
    "odd_groups": (2, (2, 7, 7, 10, 16, 3), {"padding": 1, "groups": 2}, "stages=3"),
    "first": (
        2,
        (2, 7, 7, 8, 24, 3),
        {"padding": 1, "layout": "NCHW", "epilogue": ("bias", "relu", "residual")},
        "warps_m=2 split_k=2",
    ),
    "first_odd": (2, (1, 9, 7, 5, 12, 3), {"layout": "NCHW", "stride": 2}, ""),
    "first_images_and_groups": (
        2,
        (2, 7, 7, 16, 16, 3),
        {"layout": "NCHW", "groups": 2},
        "stages=3",
    ),
    "first_groups": (2, (1, 7, 7, 16, 16, 3), {"layout": "NCHW", "groups": 2}, ""),
    "tf32": (2, (2, 7, 7, 5, 16, 3), {"padding": 1, "dtype": "float32"}, "block_k=16"),
    "int8": (2, (2, 7, 7, 16, 16, 3), {"padding": 1, "dtype": "int8"}, "block_k=64"),
}


def _checked(
    n_axes: int,
    sizes: tuple[int, ...],
    options: dict[str, Any],
    values: dict[str, int],
    folder: pathlib.Path,
) -> tuple[GemmProblem, host_gpu.Counts]:
    """The problem, computed by the text of its kernels and by numpy; counts of one run."""
    options = {"dtype": "bfloat16"} | options
    p = problem(n_axes, *sizes, **options)
    generated = program.program(p, Decisions.of(values), "sm_80")
    fresh = functools.partial(_arrays, n_axes, sizes, options)
    return p, kernels.check_text(p, generated, folder, arrays=fresh)


@pytest.mark.parametrize("case", share.of(CASES, 4))
def test_text_computes_the_convolution_and_features_count_it(
    case: str, tmp_path: pathlib.Path
) -> None:
    n_axes, sizes, options, text = CASES[case]
    values = kernels.decisions(text, SMALL)
    p, done = _checked(n_axes, sizes, options, values, tmp_path)
    kernels.check_counts(done, features(p, values)["gemm"])


@pytest.mark.parametrize("seed", range(share.rounds(2, 16)))
def test_random_convolutions_and_decisions(seed: int, tmp_path: pathlib.Path) -> None:
    rng = random.Random(seed)
    n_axes, sizes, options = recognised.random_convolution(rng)
    made = template.AmpereGemm(problem(n_axes, *sizes, **options), A100, "sm_80")
    values = kernels.legal(made, rng, kernels.of_few_threads)
    _checked(n_axes, sizes, options, values, tmp_path)


def test_bytes_of_a_gathered_operand() -> None:
    """Padding is not read, and each element of the data counts once in DRAM."""
    p = problem(2, 2, 7, 7, 16, 32, 3, padding=1)
    f = features(p, SMALL)["gemm"]
    pairs = 7 * 3 - 2  # of an output and a tap of one axis, inside
    tiles_m, tiles_n = -(-98 // 16), 2
    assert f["l2_bytes"] == 2 * (2 * pairs**2 * 16 * tiles_n + 32 * 144 * tiles_m)
    assert f["dram_bytes"] == 2 * (2 * 49 * 16 + 32 * 144 + 98 * 32)
    strided = features(problem(2, 2, 7, 7, 16, 32, 1, stride=2), SMALL)["gemm"]
    assert strided["dram_bytes"] == 2 * (2 * 16 * 16 + 32 * 16 + 32 * 32)


@pytest.mark.parametrize("arch", share.of(["sm_80", "sm_86", "sm_89", "sm_90a"], 1))
def test_kernels_compile_without_spills(arch: str) -> None:
    hardware = kernels.machine(arch)
    cases = [
        (problem(2, 8, 56, 56, 64, 64, 3, padding=1, epilogue=("bias", "relu")), BIG),
        (problem(3, 1, 8, 28, 28, 64, 128, 3, padding=1, dtype="float16"), BIG | {"split_k": 2}),
        (problem(2, 8, 14, 14, 3, 64, 7, padding=3, stride=2), BIG),
        (problem(2, 8, 28, 28, 64, 64, 3, padding=1, layout="NCHW", groups=1), BIG),
    ]
    for p, values in cases:
        estimate = Decisions.of(values).registers(packing.packed(p).problem)
        kernels.check_compiles(template.AmpereGemm(p, hardware, arch), values, estimate)


def test_features_of_copies() -> None:
    p = problem(2, 2, 7, 7, 3, 16, 3, padding=1)
    pack = features(p, SMALL)["pack"]
    launches = program.program(p, Decisions.of(SMALL), "sm_80").plan.launches
    assert [launch.kernel for launch in launches] == ["pack", "gemm"]
    assert pack["grid_blocks"] == launches[0].extents[0]
    assert pack["block_threads"] == launches[0].extents[3]
    assert pack["stored_bytes"] == sum(
        program.program(p, Decisions.of(SMALL), "sm_80").plan.workspaces
    )
    assert pack["dram_bytes"] == 2 * (2 * 49 * (3 + 4) + 16 * 9 * (3 + 4))
    assert "pack" not in features(problem(2, 2, 7, 7, 4, 16, 3, padding=1), SMALL)


def test_wide_padded_windows_are_unsuited() -> None:
    task = workloads.conv1d(1, 200, 8, 16, 64, padding=10, dtype="bfloat16", target="llvm")
    assert "more than 63 taps" in str(template.unsuited(recognised.problem(task.mod)))
