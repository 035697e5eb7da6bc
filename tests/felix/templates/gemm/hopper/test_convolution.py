"""Convolutions as problems of the sm_90a template: what suits, counts, programs that compile."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from felix import launch_plan
from felix.runner.cuda import driver as cuda_driver
from felix.runner.cuda import nvrtc
from felix.templates.gemm.hopper import template as templates
from felix.templates.gemm.hopper.convolution import axes
from felix.templates.gemm.hopper.template import ARCH, HopperGemm
from felix.templates.gemm.problem import GemmProblem
from tests.support import gpu, share
from tests.support.cuda import fakes
from tests.support.templates import conv_problems, cubin, hopper_problems, hopper_walk
from tests.support.templates.conv_problems import Dimension
from tests.support.templates.template_rows import rows_of

needs_nvrtc = pytest.mark.skipif(not gpu.has_nvrtc(), reason="NVRTC is not here")
_SAME = Dimension(14, 3, 1, 1, 1)


def _template(problem: GemmProblem) -> HopperGemm:
    return hopper_problems.template(problem)


def _random(seed: int) -> tuple[HopperGemm, dict[str, int]]:
    rng = random.Random(seed)
    while True:
        problem = conv_problems.random_problem(rng)
        problem = problem.swapped if rng.random() < 0.4 else problem
        if templates.unsuited(problem) is None and problem.m * problem.n < 200_000:
            template = _template(problem)
            return template, hopper_problems.legal(template, rng)


# ---------------------------------------------------------------- what suits


@pytest.mark.parametrize(
    ("channels", "dtype", "block", "zeros"),
    [
        (64, "bfloat16", 64, 0),
        (256, "float16", 64, 0),
        (96, "bfloat16", 32, 0),
        (80, "bfloat16", 16, 0),
        (3, "bfloat16", 16, 13),
        (100, "bfloat16", 16, 12),
        (120, "bfloat16", 64, 8),
        (48, "int8", 64, 16),
        (20, "float32", 8, 4),
    ],
)
def test_blocks_of_channels_have_few_zeros_then_many_bytes(
    channels: int, dtype: str, block: int, zeros: int
) -> None:
    blocks = axes.of(conv_problems.problem([_SAME], channels, 8, dtype=dtype))
    assert blocks is not None
    assert (blocks.block, blocks.of_tap * blocks.block - channels) == (block, zeros)
    assert blocks.extent == 3 * (channels + zeros)


def test_other_products_have_no_blocks() -> None:
    problem = hopper_problems.problem(64, 64, 100)
    assert axes.of(problem) is None and axes.extent_of_k(problem) == 100


def _with_window(problem: GemmProblem, **changed: int) -> GemmProblem:
    gather = problem.a.gather
    assert gather is not None
    windows = (dataclasses.replace(gather.windows[0], **changed), *gather.windows[1:])
    gather = dataclasses.replace(gather, windows=windows)
    return dataclasses.replace(problem, a=dataclasses.replace(problem.a, gather=gather))


_REFUSED: dict[str, tuple[GemmProblem, str]] = {
    "stride": (conv_problems.problem([Dimension(40, 3, 9)], 64, 64), "no stride of 9"),
    "corner": (
        conv_problems.problem([Dimension(300, 3, 1, 1, 129)] * 2, 64, 64),
        "begin 129 before their dimension",
    ),
    "corner of 3 windows": (
        conv_problems.problem([Dimension(40, 35, 1, 1, 0)] * 3, 64, 64),
        "the last 34 before its end",
    ),
    "reach": (
        _with_window(conv_problems.problem([_SAME] * 2, 64, 64), taps=3, dilation=130),
        "reaches over 260 places, the copy engine over 255",
    ),
    "turned windows": (
        _with_window(conv_problems.problem([_SAME] * 2, 64, 64), dilation=-1),
        "reaches over -2 places",
    ),
    "dimensions": (
        conv_problems.problem([Dimension(7)] * 3, 16, 16, images=2, groups=2),
        "are 6 dimensions",
    ),
    "uneven pixels": (
        _with_window(conv_problems.problem([_SAME] * 2, 3, 16), element_stride=14 * 3 + 1),
        "not evenly spaced",
    ),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_the_copy_engine_cannot_do_is_unsuited(name: str) -> None:
    problem, reason = _REFUSED[name]
    for order in (problem, problem.swapped):
        text = templates.unsuited(order)
        assert text is not None and reason in text


def test_two_gathered_operands_are_unsuited() -> None:
    problem = conv_problems.problem([_SAME], 64, 64)
    both = dataclasses.replace(problem, b=dataclasses.replace(problem.b, gather=problem.a.gather))
    for order in (both, both.swapped):
        text = templates.unsuited(order)
        assert text == "both of its operands are gathered from windows that move"


def test_gathered_weights_are_told_from_pixels() -> None:
    problem = conv_problems.problem([_SAME] * 2, 64, 40, weights="oihw")
    for order, is_a in ((problem, True), (problem.swapped, False)):
        assert templates.unsuited(order) is None
        assert axes.pixels_are_a(order) == is_a
    gather = problem.b.gather
    assert gather is not None and axes.taps_as_one_axis(gather) == 1
    uneven = (dataclasses.replace(gather.windows[0], element_stride=4), gather.windows[1])
    assert axes.taps_as_one_axis(dataclasses.replace(gather, windows=uneven)) is None


@pytest.mark.parametrize("seed", range(40))
def test_what_suits_has_maps_that_a_driver_takes(seed: int) -> None:
    """Also where the limits are near: what is not refused can be encoded."""
    rng = random.Random(seed)
    count = rng.randint(1, 3)
    most = (600, 300, 34)[count - 1]
    dimensions = [
        Dimension(
            rng.randint(most // 2, most),
            rng.randint(1, most // 3),
            rng.randint(1, 9),
            rng.choice((1, 1, 3)),
            rng.randint(0, most // 2),
        )
        for _ in range(count)
    ]
    if any(d.outputs < 1 for d in dimensions):
        return
    problem = conv_problems.problem(dimensions, 64, 64, images=rng.choice((1, 2)))
    if templates.unsuited(problem) is not None:
        return
    template = _template(problem)
    generated = template.generate(hopper_problems.legal(template, rng))
    pixels = generated.plan.launches[0].args[0]
    assert isinstance(pixels, launch_plan.TensorMap) and pixels.im2col is not None
    cuda_driver.encoded(fakes.Driver({}), pixels, 4096)
    limit = launch_plan.LARGEST_OFFSET[len(pixels.extents)]
    assert all(d.dilation * (d.taps - 1) <= limit for d in dimensions)


def test_pixels_have_a_map_of_their_windows() -> None:
    """A 7 x 5 window that moves by 2 x 3, paddings 3 and 1, on images of 30 x 41 pixels."""
    problem = conv_problems.problem(
        [Dimension(30, 7, 2, 1, 3), Dimension(41, 5, 3, 2, 1)], 128, 64, images=4, pad=8
    )
    template = _template(problem)
    decisions = hopper_problems.legal(
        template, random.Random(0), block_m=64, cluster_n=1, cluster_k=1
    )
    pixels = template.design(decisions).a.tensor_map()
    assert pixels.extents == (128, 41, 30, 4)
    assert pixels.strides_bytes == (272, 41 * 272, 30 * 41 * 272)
    assert (pixels.box, pixels.swizzle_bytes) == ((64, 64), 128)
    # 12 outputs of 41 places end at place 11·3 - 1 = 32, 15 of 30 at place 14·2 - 3 = 25.
    assert pixels.im2col == launch_plan.Im2col((-1, -3), (32 - 40, 25 - 29), (3, 2))


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_those_of_a_walk(seed: int) -> None:
    hopper_walk.check_counts(*_random(seed))


@pytest.mark.parametrize("seed", range(6))
def test_launches_are_those_of_the_rows(seed: int) -> None:
    hopper_walk.check_launches(*_random(50 + seed))


def test_unique_bytes_leave_out_what_no_window_reads() -> None:
    """Of 11 x 11 places a 1 x 1 window that moves by 2 reads 6 x 6."""
    problem = conv_problems.problem([Dimension(11, 1, 2)] * 2, 64, 32, images=2)
    template = _template(problem)
    decisions = hopper_problems.legal(template, random.Random(0), split_k=1)
    row = rows_of(template, decisions)["gemm"]
    assert row["dram_bytes"] == 2 * (2 * 36 * 64 + 64 * 32 + 2 * 36 * 32)
    assert row["problem_ops"] == 2 * 2 * 36 * 64 * 32


def test_unaligned_channels_have_a_kernel_that_packs_both_operands() -> None:
    problem = conv_problems.problem([Dimension(30, 7, 2, 1, 3)] * 2, 3, 33, images=2)
    assert templates.unsuited(problem) is None
    template = _template(problem)
    decisions = hopper_problems.legal(template, random.Random(0), split_k=1)
    plan = template.generate(decisions).plan
    assert [launch.kernel for launch in plan.launches] == ["pack", "gemm"]
    # Pixels of 8 elements in place of 3, rows of the weights of 40 in place of 33.
    assert plan.workspaces == (2 * 30 * 30 * 8 * 2, 49 * 3 * 40 * 2)
    row = rows_of(template, decisions)["pack"]
    assert row["read_bytes"] == 2 * (2 * 30 * 30 * 3 + 49 * 3 * 33)


# ---------------------------------------------------------------- programs

_PLAIN = hopper_problems.PLAIN | {"block_n": 64}

#: Convolutions and decisions that between them have every part of the generator.
_KERNELS: dict[str, tuple[dict[str, Any], dict[str, int], bool]] = {
    "one dimension": (dict(dimensions=[Dimension(500, 3, 2, 1, 1)]), {}, False),
    "clusters": (
        dict(dimensions=[Dimension(28, 3, 1, 1, 1)] * 2, columns=256, images=4),
        dict(cluster_m=2, cluster_n=2, tma_store=2), False,
    ),
    "three dimensions, persistent": (
        dict(dimensions=[Dimension(16, 3, 1, 1, 1)] * 3, images=8, weights="ohwi"),
        dict(persistent=2, tma_store=2), False,
    ),
    "groups and images, tiles in turn": (
        dict(dimensions=[Dimension(20, 3, 1, 1, 1)] * 2, groups=4, images=4, channels=32),
        dict(tiles_at_once=2), False,
    ),
    "first layer": (
        dict(dimensions=[Dimension(56, 7, 2, 1, 3)] * 2, channels=3, bias=True), {}, False
    ),
    "sums in a cluster": (dict(dimensions=[_SAME] * 2, channels=256), dict(cluster_k=4), False),
    "split sums": (dict(dimensions=[_SAME] * 2, channels=256), dict(split_k=4), False),
    "swapped": (dict(dimensions=[_SAME] * 2, columns=256), dict(cluster_n=2), True),
    "channels first": (
        dict(dimensions=[_SAME] * 2, columns=128, channels_first=True, weights="oihw",
             results_first=True, images=3), {}, True,
    ),
    "int8": (
        dict(dimensions=[_SAME] * 2, channels=128, dtype="int8", out="int32"),
        dict(block_k=128), False,
    ),
}  # fmt: skip


@needs_nvrtc
@pytest.mark.parametrize("name", share.of(_KERNELS, 5))
def test_kernels_compile_without_spills(name: str) -> None:
    fields, changed, is_swapped = _KERNELS[name]
    problem = conv_problems.problem(**{"channels": 64, "columns": 64} | fields)
    problem = problem.swapped if is_swapped else problem
    assert templates.unsuited(problem) is None
    generated = _template(problem).generate(_PLAIN | changed)
    assert ".im2col." in generated.source
    binary = nvrtc.compile_cubin(generated.source, ARCH)
    cubin.check(binary, generated.plan.launches)
    row = rows_of(_template(problem), _PLAIN | changed)["gemm"]
    assert cubin.registers(binary, "gemm") == row["registers"]


def test_few_columns_have_pixels_as_rows_and_few_pixels_are_swapped() -> None:
    def names(extent: int, columns: int) -> list[str]:
        problem = conv_problems.problem([Dimension(extent, 3, 1, 1, 1)] * 2, 64, columns)
        return [t.name for t in templates.templates(problem, hopper_problems.hardware())]

    assert names(56, 64) == ["gemm-wgmma"]
    assert names(7, 512) == ["gemm-wgmma-swapped", "gemm-wgmma"]
