"""Transposed convolutions as products: recognised, run on the CPU, counted, compiled.

What TVM builds of the program is the reference.
"""

from __future__ import annotations

import copy
import dataclasses
import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import te, tirx

import felix
from felix import target, workloads
from felix.builder import task_program
from felix.runner.checking import reference
from felix.templates import registry
from felix.templates.gemm.ampere import packing, program, template
from felix.templates.gemm.ampere.decisions import Decisions
from felix.templates.gemm.problem import GemmProblem
from tests.support import share
from tests.support.templates import host_gpu, kernels, recognised, transposed_programs
from tests.support.templates.kernels import A100, BIG, SMALL, features
from tests.support.templates.transposed_programs import Dimension


def _workload(*sizes: int, **options: Any) -> tvm.IRModule:
    options = {"dtype": "bfloat16"} | options
    return workloads.conv_transpose2d(*sizes, target="llvm", **options).mod


def _made(*args: Any, **options: Any) -> tvm.IRModule:
    return transposed_programs.program(*args, **options)


CASES: dict[str, tuple[Callable[[], tvm.IRModule], str]] = {
    "four_taps": (lambda: _workload(2, 4, 5, 16, 16), ""),
    "three_taps": (
        lambda: _workload(
            1, 4, 5, 16, 20, 3, output_padding=1, epilogue=("bias", "gelu", "residual")
        ),
        "warps_m=2 stages=3",
    ),
    "odd_result": (lambda: _workload(2, 4, 5, 24, 16, 3, dtype="float16"), "split_k=3"),
    "few_taps": (lambda: _workload(1, 4, 3, 8, 16, 2, stride=3, padding=0), ""),
    "one_axis": (lambda: _workload(1, 4, 5, 8, 16, 3, stride=(1, 2)), "warps_n=2"),
    "dense": (lambda: _workload(1, 6, 5, 8, 16, 3, stride=1), ""),
    "odd_channels": (lambda: _workload(2, 4, 5, 3, 7), ""),
    "tf32": (lambda: _workload(1, 4, 5, 6, 16, dtype="float32"), "block_k=16"),
    "first": (
        lambda: _workload(2, 4, 5, 16, 24, layout="NCHW", epilogue=("bias", "relu", "residual")),
        "warps_m=2 split_k=2",
    ),
    "first_1x1_data": (
        lambda: _workload(2, 1, 1, 20, 16, stride=1, padding=0, layout="NCHW", dtype="float16"),
        "",
    ),
    "first_odd_result": (
        lambda: _workload(1, 4, 5, 8, 16, 3, stride=3, padding=2, layout="NCHW"),
        "warp_n=32",
    ),
    "line": (lambda: _made([Dimension(9, 5, 3)], 8, 16, images=3), "warp_m=32"),
    "volume": (lambda: _made([Dimension(3, 3)] * 3, 8, 16, epilogue=True), "warps_m=2"),
    "groups": (
        lambda: _made([Dimension(4), Dimension(5, 3)], 8, 12, groups=2, images=2, epilogue=True),
        "stages=3",
    ),
    "first_groups": (
        lambda: _made(
            [Dimension(4), Dimension(5)], 6, 8, groups=2, images=2, first=True, epilogue=True
        ),
        "",
    ),
    "dilated": (lambda: _made([Dimension(5, 3, 3, 2), Dimension(4, 3, 2, 3)], 8, 16), ""),
    "backwards": (
        lambda: _made([Dimension(5, 4, 2), Dimension(4, 3, 3, 2)], 8, 16, flipped=False),
        "",
    ),
    "flipped_weights": (lambda: _made([Dimension(9, 2, 1, before=0)], 8, 16), ""),
    "backwards_of_stride_1": (
        lambda: _made([Dimension(5, 3, 1, 2)], 8, 16, first=True, flipped=False),
        "",
    ),
    "groups_of_as_many_columns_as_the_stride": (
        lambda: _made([Dimension(4), Dimension(5, 3)], 16, 2, groups=2),
        "",
    ),
    "one_cell_of_larger_stride": (
        lambda: _made([Dimension(1, 2, 3, before=0), Dimension(4)], 8, 16),
        "",
    ),
    "result_below_stride": (lambda: _made([Dimension(1, 3, 4, 1, 0)], 8, 16), ""),
    **{name: (make, "") for name, make in transposed_programs.TOPI.items()},
}


def _problem(mod: tvm.IRModule) -> GemmProblem:
    made = recognised.problem(mod)
    assert made.phases is not None and template.unsuited(made) is None
    return made


def _checked(
    mod: tvm.IRModule, values: dict[str, int], folder: pathlib.Path
) -> tuple[GemmProblem, host_gpu.Counts]:
    """The problem, computed by the text of its kernels as by the program; counts of one run."""
    p = _problem(mod)
    args = task_program.arguments(mod)
    number = p.output.param
    expected = task_program.on_cpu(mod, tvm.target.Target("llvm"), args)(1, False)[number]

    def fresh() -> list[np.ndarray]:
        arrays = reference.inputs(args, 1, positive=False)
        arrays[number] = kernels.poisoned(expected.size, expected.dtype)
        return arrays

    generated = program.program(p, Decisions.of(values), "sm_80")
    return p, kernels.check_text(p, generated, folder, arrays=fresh, expected=expected)


@pytest.mark.parametrize("case", share.of(CASES, 5))
def test_text_computes_the_program_and_features_count_it(
    case: str, tmp_path: pathlib.Path
) -> None:
    make, text = CASES[case]
    values = kernels.decisions(text, SMALL)
    p, done = _checked(make(), values, tmp_path)
    kernels.check_counts(done, features(p, values)["gemm"])


@pytest.mark.parametrize("seed", range(share.rounds(2, 24)))
def test_random_programs_and_decisions(seed: int, tmp_path: pathlib.Path) -> None:
    rng = random.Random(seed)
    while not _has_phases(mod := transposed_programs.random_program(rng)):
        pass
    made = template.AmpereGemm(_problem(mod), A100, "sm_80")
    _checked(mod, kernels.legal(made, rng, kernels.of_few_threads), tmp_path)


def _has_phases(mod: tvm.IRModule) -> bool:
    """Not where data are neither spread nor flipped, as of one tap."""
    return recognised.problem(mod).phases is not None


def test_phases_of_four_taps() -> None:
    """Taps 1 and 3 meet data in even pixels, 0 and 2 in odd ones; none is multiplied by zeros."""
    p = _problem(_workload(2, 4, 5, 16, 24, dtype="float16"))
    assert (p.batch, p.m, p.n, p.k) == (4, 2 * 4 * 5, 24, 2 * 2 * 16)
    assert p.phases is not None and p.phases.extents == (2, 8, 10)
    assert p.products == 2 * 8 * 10 * 24 * 4 * 16
    assert p.stored_elements == 2 * 8 * 10 * 24
    turned = _problem(_workload(2, 4, 5, 16, 24, layout="NCHW")).phases
    assert turned is not None and turned.pixels == 2


def test_one_cell_meets_one_tap_in_each_pixel() -> None:
    p = _problem(_workload(8, 1, 1, 100, 64, stride=1, padding=0, layout="NCHW"))
    assert (p.batch, p.k, p.products) == (16, 100, 8 * 16 * 64 * 100)
    uneven = _problem(_workload(8, 1, 6, 16, 64, 3, stride=1))
    assert (uneven.batch, uneven.k) == (1, 9 * 16)


def test_phases_have_sums_of_their_taps() -> None:
    """Of three taps, phases of stride 2 have one and two."""
    p = _problem(_workload(1, 4, 4, 16, 24, 3, output_padding=1))
    assert p.products == 8 * 8 * 24 * 16 * 9 // 4
    assert p.lengths == {16: 1, 32: 2, 64: 1} and p.k == 64
    steps = {"block_k": 32, "split_k": 2}
    f = features(p, SMALL | steps)["gemm"]
    assert f["tensor_instructions"] == 1 * 2 * (2 * 2) * (1 + 1 + 1 + 2)


def test_bytes() -> None:
    """The data once for all phases, weights once for each."""
    p = _problem(_workload(2, 4, 5, 16, 24, epilogue=("bias", "residual")))
    rows = features(p, SMALL)
    result = 2 * (2 * 8 * 10 * 24)
    weights = 2 * (16 * 16 * 24)
    data = 2 * (2 * 4 * 5 * 16)
    assert rows["gemm"]["dram_bytes"] == data + weights + 2 * result + 2 * 24
    assert rows["gemm"]["stored_bytes"] == result
    assert rows["pack"]["dram_bytes"] == 2 * weights
    launches = program.program(p, Decisions.of(SMALL), "sm_80").plan.launches
    assert [launch.kernel for launch in launches] == ["pack", "gemm"]
    assert rows["pack"]["grid_blocks"] == launches[0].extents[0]
    assert rows["gemm"]["grid_blocks"] == launches[1].extents[0]
    # of a dimension, both phases read 2 * 4 - 1 and 2 * 5 - 1 cells of the data by their taps
    inside = (2 * 7) * (2 * 9)
    tiles_m, tiles_n = -(-40 // 16), -(-24 // 16)
    assert rows["gemm"]["l2_bytes"] == 2 * 2 * inside * 16 * tiles_n + weights * tiles_m


def test_other_problems_have_the_keys_that_they_had() -> None:
    task = workloads.conv2d(1, 6, 6, 16, 16, 3, dtype="bfloat16", target="llvm")
    made = recognised.problem(task.mod)
    assert made.phases is None
    assert made.identity == repr(made) and "phases" not in made.identity
    p = _problem(_workload(1, 4, 4, 8, 8))
    other = dataclasses.replace(p, phases=dataclasses.replace(p.phases, images=2))  # type: ignore[type-var]
    keys = {template.AmpereGemm(each, A100, "sm_80").key for each in (p, other)}
    assert len(keys) == 2


@pytest.mark.parametrize("arch", share.of(["sm_80", "sm_86", "sm_89", "sm_90a"], 1))
def test_kernels_compile_without_spills(arch: str) -> None:
    programs = [
        (_workload(8, 8, 8, 512, 256, epilogue=("bias", "relu")), BIG),
        (_workload(8, 16, 16, 256, 128, layout="NCHW", dtype="float16"), BIG),
        (_workload(2, 28, 28, 64, 64, 3, output_padding=1), BIG | {"split_k": 2}),
        (_workload(64, 1, 1, 100, 512, stride=1, padding=0, layout="NCHW"), BIG),
        (_made([Dimension(8, 3)] * 3, 64, 64, groups=2, epilogue=True), BIG),
    ]
    for mod, values in programs:
        p = _problem(mod)
        hardware = kernels.machine(arch)
        estimate = Decisions.of(values).registers(packing.packed(p).problem)
        kernels.check_compiles(template.AmpereGemm(p, hardware, arch), values, estimate)


def _upsampled() -> tvm.IRModule:
    """A convolution of data that are repeated, with no zeros between."""
    x, w = te.placeholder((8, 4), "float16", "x"), te.placeholder((3, 4, 5), "float16", "w")
    zero = tirx.const(0.0, "float16")
    cell = te.compute(
        (18, 4),
        lambda i, c: tirx.if_then_else(
            tirx.all(i >= 1, i < 17), x[tirx.floordiv(i - 1, 2), c], zero
        ),
    )
    r, c = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 4), "c")
    y = te.compute(
        (16, 5),
        lambda i, j: te.sum(
            cell[i + r, c].astype("float32") * w[r, c, j].astype("float32"), [r, c]
        ),
    )
    return transposed_programs.module(x, w, y)


@pytest.mark.parametrize(
    "mod, reason",
    [
        (_made([Dimension(5, 3, 2, 2)], 8, 8), "have a common divisor"),
        (_made([Dimension(5), Dimension(5)], 1, 1, groups=8), "mostly multiply zeros"),
        (_upsampled(), "has an axis"),
    ],
    ids=["dilation", "depthwise", "upsampled"],
)
def test_what_is_not_recognised_says_why(mod: tvm.IRModule, reason: str) -> None:
    assert reason in recognised.reason(mod)


DCGAN = {
    "first": (torch.nn.ConvTranspose2d(20, 16, 4, 1, 0, bias=False), (2, 20, 1, 1)),
    "middle": (torch.nn.ConvTranspose2d(16, 8, 4, 2, 1), (2, 16, 4, 4)),
    "odd": (torch.nn.ConvTranspose2d(6, 8, 3, 2, 1, output_padding=1), (1, 6, 5, 4)),
    "groups": (torch.nn.ConvTranspose2d(8, 12, 4, 2, 1, groups=2), (1, 8, 3, 5)),
}


@pytest.mark.parametrize("layer", share.of(DCGAN, 2))
def test_layers_of_torch(layer: str, tmp_path: pathlib.Path) -> None:
    """As they are imported: channels first."""
    module, shape = DCGAN[layer]
    module = copy.deepcopy(module).half()
    (task,) = (
        task
        for task in felix.extract_tasks(module, (torch.zeros(shape).half(),), "llvm")
        if "transpose" in task.name
    )
    _checked(task.mod, SMALL, tmp_path)


@pytest.mark.parametrize("arch", ["sm_86", "sm_90a"])
def test_fused_layers_of_a_generator_have_templates(arch: str) -> None:
    generator = torch.nn.Sequential(
        torch.nn.ConvTranspose2d(100, 64, 4, 1, 0, bias=False),
        torch.nn.BatchNorm2d(64),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(64, 3, 4, 2, 1),
        torch.nn.Tanh(),
    )
    example = (torch.zeros(4, 100, 1, 1, dtype=torch.bfloat16),)
    tasks = felix.extract_tasks(generator.eval().bfloat16(), example, f"cuda -arch {arch}")
    assert len(tasks) == 2
    for task in tasks:
        matching = registry.templates_of(task.mod, task.target, target.hardware(task.target))
        assert [made.name for made in matching.templates] == ["gemm-mma"], matching.reasons
