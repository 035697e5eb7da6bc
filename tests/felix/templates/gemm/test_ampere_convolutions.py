"""The mma.sync kernels of convolutions: their text run on the CPU, counted and compiled."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import sympy

from felix import errors, target, workloads
from felix.measure import task_program
from felix.measure.checking import reference
from felix.measure.cuda.building import nvrtc
from felix.templates.gemm.ampere import decisions, packing, program, template
from felix.templates.gemm.ampere.decisions import Decisions
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from felix.templates.generated import GeneratedProgram
from tests.support import share
from tests.support.templates import cubin, gemm_problems, host_gpu

A100 = target.hardware(target.parse("cuda -arch sm_80"))
SMALL = {
    "warp_m": 16,
    "warp_n": 16,
    "warps_m": 1,
    "warps_n": 1,
    "block_k": 32,
    "stages": 2,
    "split_k": 1,
    "group_m": 1,
    "blocks_per_sm": 1,
}
BIG = {
    "warp_m": 64,
    "warp_n": 32,
    "warps_m": 2,
    "warps_n": 4,
    "block_k": 32,
    "stages": 4,
    "split_k": 1,
    "group_m": 8,
    "blocks_per_sm": 1,
}
CONV = {1: workloads.conv1d, 2: workloads.conv2d, 3: workloads.conv3d}


def problem(n_axes: int, *sizes: int, dtype: str = "bfloat16", **options: Any) -> GemmProblem:
    """Of a convolution of `felix.workloads`."""
    task = CONV[n_axes](*sizes, dtype=dtype, target="llvm", **options)
    made = recognise(task.mod)
    assert isinstance(made, GemmProblem), made
    assert template.unsuited(made) is None
    return made


def _arrays(n_axes: int, sizes: tuple[int, ...], options: dict[str, Any]) -> list[Any]:
    """Random parameters; the output is poison, and there is poison behind it."""
    mod = CONV[n_axes](*sizes, target="llvm", **options).mod
    *inputs, output = reference.inputs(task_program.arguments(mod), 1, positive=False)
    behind = np.zeros(output.size + 64, output.dtype)
    behind.view(np.uint8).fill(0x5A)
    return [*inputs, behind]


CASES: dict[str, tuple[int, tuple[int, ...], dict[str, Any], dict[str, int]]] = {
    "plain": (2, (1, 6, 6, 16, 16, 3), {}, SMALL),
    "padded": (2, (2, 7, 9, 8, 20, 3), {"padding": 1}, SMALL | {"warp_m": 32, "stages": 3}),
    "strided": (
        2,
        (2, 9, 9, 24, 16, 3),
        {"padding": 1, "stride": 2},
        SMALL | {"warps_m": 2, "warps_n": 2, "block_k": 64, "stages": 3},
    ),
    "fused": (
        2,
        (1, 7, 7, 16, 24, 3),
        {"padding": 1, "epilogue": ("bias", "gelu", "residual")},
        SMALL | {"warp_n": 32, "warps_m": 4, "group_m": 2},
    ),
    "eight_bytes": (2, (2, 7, 7, 4, 16, 3), {"padding": 1}, SMALL | {"stages": 3}),
    "four_bytes": (2, (2, 7, 7, 6, 16, 3), {"padding": 1}, SMALL | {"block_k": 64}),
    "groups": (
        2,
        (2, 7, 7, 16, 24, 3),
        {"padding": 1, "groups": 2, "epilogue": ("bias",)},
        SMALL | {"stages": 4},
    ),
    "split": (2, (1, 7, 7, 32, 20, 3), {"padding": 1}, SMALL | {"split_k": 4, "warps_n": 2}),
    "dilated": (2, (1, 11, 9, 8, 16, 3), {"padding": 2, "dilation": 2}, SMALL),
    "strided_1x1": (2, (2, 8, 8, 16, 16, 1), {"stride": 2}, SMALL),
    "line": (1, (3, 19, 8, 16, 5), {"padding": 3, "dilation": 2, "stride": 2}, SMALL),
    "volume": (
        3,
        (1, 4, 5, 6, 8, 16, 3),
        {"padding": 1, "stride": 2, "dtype": "float16"},
        SMALL | {"warps_m": 2, "stages": 3},
    ),
    "two_bytes": (2, (2, 7, 7, 3, 16, 3), {"padding": 1, "stride": 2}, SMALL),
    "odd_groups": (2, (2, 7, 7, 10, 16, 3), {"padding": 1, "groups": 2}, SMALL | {"stages": 3}),
    "first": (
        2,
        (2, 7, 7, 8, 24, 3),
        {"padding": 1, "layout": "NCHW", "epilogue": ("bias", "relu", "residual")},
        SMALL | {"warps_m": 2, "split_k": 2},
    ),
    "first_odd": (2, (1, 9, 7, 5, 12, 3), {"layout": "NCHW", "stride": 2}, SMALL),
    "first_images_and_groups": (
        2,
        (2, 7, 7, 16, 16, 3),
        {"layout": "NCHW", "groups": 2},
        SMALL | {"stages": 3},
    ),
    "first_groups": (2, (1, 7, 7, 16, 16, 3), {"layout": "NCHW", "groups": 2}, SMALL),
    "tf32": (2, (2, 7, 7, 5, 16, 3), {"padding": 1, "dtype": "float32"}, SMALL | {"block_k": 16}),
    "int8": (2, (2, 7, 7, 16, 16, 3), {"padding": 1, "dtype": "int8"}, SMALL | {"block_k": 64}),
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
    library = host_gpu.build(generated, p, folder)
    (epilogue,) = gemm_problems.compile_epilogues([p], folder)
    for late in (True, False):
        arrays = _arrays(n_axes, sizes, options)
        before = host_gpu.counts(library)
        assert host_gpu.run(library, generated, arrays, late=late) == 0
        actual = arrays[-1]
        _, expected = gemm_problems.evaluate(p, [*arrays[:-1], actual[:-64]], epilogue)
        assert reference.mismatch(actual[:-64], expected, 1e-2) is None
        assert (actual[-64:].view(np.uint8) == 0x5A).all()
    after = dataclasses.astuple(host_gpu.counts(library))
    pairs = zip(after, dataclasses.astuple(before), strict=True)
    return p, host_gpu.Counts(*(a - b for a, b in pairs))


@pytest.mark.parametrize("case", share.of(CASES, 7))
def test_text_computes_the_convolution_and_features_count_it(
    case: str, tmp_path: pathlib.Path
) -> None:
    n_axes, sizes, options, values = CASES[case]
    p, done = _checked(n_axes, sizes, options, values, tmp_path)
    f = _features(p, values)["gemm"]
    assert f["tensor_instructions"] == done.mma
    assert f["copied_bytes"] == done.copied_bytes
    assert f["shared_traffic"] == done.copied_bytes + done.loaded_bytes
    assert f["copy_instructions"] == done.copies


def _features(p: GemmProblem, values: dict[str, int]) -> dict[str, dict[str, float]]:
    """Features at these decisions, by kernel and name."""
    symbols = dataclasses.astuple(Decisions.symbols())
    numbers = dataclasses.astuple(Decisions.of(values))
    made = template.AmpereGemm(p, A100, "sm_80")
    return {
        kernel: {
            name: float(sympy.lambdify(symbols, value, modules=[_PYTHON])(*numbers))
            for name, value in row.items()
        }
        for kernel, row in made.rows().items()
    }


_PYTHON = {
    "FloorDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Maximum": max,
    "Minimum": min,
    "Less": lambda a, b: int(a < b),
    "Select": lambda condition, a, b: a if condition else b,
}


@pytest.mark.parametrize("seed", range(share.rounds(4, 16)))
def test_random_convolutions_and_decisions(seed: int, tmp_path: pathlib.Path) -> None:
    rng = random.Random(seed)
    n_axes, sizes, options = _random_convolution(rng)
    made = template.AmpereGemm(problem(n_axes, *sizes, **options), A100, "sm_80")
    _checked(n_axes, sizes, options, _random_decisions(rng, made), tmp_path)


def _random_convolution(rng: random.Random) -> tuple[int, tuple[int, ...], dict[str, Any]]:
    """With kernel extents, strides, padding and dilation of its own on each axis."""
    n_axes = rng.choice([1, 2, 2, 3])
    groups = rng.choice([1, 1, 2, 3])
    channels = groups * rng.choice([2, 3, 4, 6, 8, 10, 16, 24])
    columns = groups * rng.choice([2, 5, 8, 16])
    kernel = (*(rng.choice([1, 2, 3]) for _ in range(n_axes - 1)), rng.choice([2, 3, 4]))
    options = {
        "padding": tuple(rng.randint(0, k) for k in kernel),
        "stride": tuple(rng.choice([1, 1, 2, 3]) for _ in kernel),
        "dilation": tuple(rng.choice([1, 1, 2]) for _ in kernel),
        "groups": groups,
        "dtype": rng.choice(["bfloat16", "float16"]),
        "epilogue": rng.choice([(), ("bias",), ("bias", "relu", "residual")]),
    }
    if rng.random() < 0.3:
        options["layout"] = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[n_axes]
    extents = tuple(rng.randint(7, 9) if n_axes < 3 else rng.randint(4, 7) for _ in kernel)
    if n_axes == 3:
        options["dilation"] = (1, 1, 1)
    sizes: tuple[Any, ...] = (rng.choice([1, 2]), *extents, channels, columns, kernel)
    return n_axes, sizes, options


def _random_decisions(rng: random.Random, made: template.AmpereGemm) -> dict[str, int]:
    """Legal ones of few threads, which the CPU runs quickly."""
    while True:
        values = {p.name: rng.choice(p.domain) for p in made.parameters}
        if values["warps_m"] * values["warps_n"] > 4 or values["warp_m"] * values["warp_n"] > 2048:
            continue
        try:
            made.generate(values)
        except errors.DecisionError:
            continue
        return values


def test_bytes_of_a_gathered_operand() -> None:
    """Padding is not read, and each element of the data counts once in DRAM."""
    p = problem(2, 2, 7, 7, 16, 32, 3, padding=1)
    f = _features(p, SMALL)["gemm"]
    pairs = 7 * 3 - 2  # of an output and a tap of one axis, inside
    tiles_m, tiles_n = -(-98 // 16), 2
    assert f["l2_bytes"] == 2 * (2 * pairs**2 * 16 * tiles_n + 32 * 144 * tiles_m)
    assert f["dram_bytes"] == 2 * (2 * 49 * 16 + 32 * 144 + 98 * 32)
    strided = _features(problem(2, 2, 7, 7, 16, 32, 1, stride=2), SMALL)["gemm"]
    assert strided["dram_bytes"] == 2 * (2 * 16 * 16 + 32 * 16 + 32 * 32)


def _generated(p: GemmProblem, arch: str, values: dict[str, int]) -> GeneratedProgram:
    hardware = target.hardware(target.parse(f"cuda -arch {arch}"))
    return template.AmpereGemm(p, hardware, arch).generate(values)


@pytest.mark.parametrize("arch", share.of(["sm_80", "sm_86", "sm_89", "sm_90a"], 2))
def test_kernels_compile_without_spills(arch: str) -> None:
    cases = [
        (problem(2, 8, 56, 56, 64, 64, 3, padding=1, epilogue=("bias", "relu")), BIG),
        (problem(3, 1, 8, 28, 28, 64, 128, 3, padding=1, dtype="float16"), BIG | {"split_k": 2}),
        (problem(2, 8, 14, 14, 3, 64, 7, padding=3, stride=2), BIG),
        (problem(2, 8, 28, 28, 64, 64, 3, padding=1, layout="NCHW", groups=1), BIG),
    ]
    for p, values in cases:
        generated = _generated(p, arch, values)
        binary = nvrtc.compile_cubin(generated.source, arch)
        cubin.check(binary, generated.plan.launches)
        computed = packing.packed(p).problem
        estimate = decisions.registers(computed, Decisions.of(values))
        assert cubin.registers(binary, "gemm") <= 1.25 * estimate


def test_features_of_copies() -> None:
    p = problem(2, 2, 7, 7, 3, 16, 3, padding=1)
    pack = _features(p, SMALL)["pack"]
    launches = program.plan(p, Decisions.of(SMALL)).launches
    assert [launch.kernel for launch in launches] == ["pack", "gemm"]
    assert pack["grid_blocks"] == launches[0].extents[0]
    assert pack["block_threads"] == launches[0].extents[3]
    assert pack["stored_bytes"] == sum(program.plan(p, Decisions.of(SMALL)).workspaces)
    assert pack["dram_bytes"] == 2 * (2 * 49 * (3 + 4) + 16 * 9 * (3 + 4))
    assert "pack" not in _features(problem(2, 2, 7, 7, 4, 16, 3, padding=1), SMALL)


def test_wide_padded_windows_are_unsuited() -> None:
    task = workloads.conv1d(1, 200, 8, 16, 64, padding=10, dtype="bfloat16", target="llvm")
    made = recognise(task.mod)
    assert isinstance(made, GemmProblem)
    assert "more than 63 taps" in str(template.unsuited(made))
