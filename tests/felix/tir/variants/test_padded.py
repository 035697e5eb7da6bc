"""Extents and windows that are padded."""

from __future__ import annotations

import felix
from felix import workloads
from felix.tir.design_space.variants import padded_extents
from felix.tir.design_space.variants.padded_windows import window_multiple
from tests.felix.tir.variants.variant_programs import CPU, GPU, searched, texts


def test_extents_are_padded_that_divide_badly() -> None:
    assert texts(workloads.gemm(197, 1021, 509), CPU) == [
        "padded_extents(loop0=16, loop1=64, loop2=64)"
    ]
    assert [padded_extents.multiple(extent) for extent in (100, 13, 344, 11008, 50257)] == [
        1,
        1,
        32,
        1,
        64,
    ]
    assert texts(workloads.gemm(197, 256, 256), CPU) == ["padded_extents(loop0=16)"]


def test_a_padded_program_replaces_one_that_tiles_cannot_divide() -> None:
    """Of the task's own, one sketch is left."""
    padded, split = "padded_extents", "padded_extents+split_reduction"
    prime = workloads.gemm(197, 3072, 768, target="h200")
    assert searched(prime) == ["stock", padded, padded, split, split]
    smooth = workloads.gemm(344, 768, 768, target="h200")
    assert searched(smooth)[:4] == ["stock"] * 3 + ["split_reduction"]
    assert "padded_extents" in searched(smooth)
    on_cpu = workloads.gemm(197, 256, 256)
    assert searched(on_cpu) == [sketch.variant.name for sketch in felix.trace_sketches(on_cpu)]


def test_windows_are_padded_that_move_along_an_extent_that_divides_badly() -> None:
    assert texts(workloads.conv2d(1, 35, 35, 127, 131, 3, padding=1), CPU) == [
        "padded_windows(loop1=36, loop2=36, loop3=144, loop4=128)"
    ]
    extents = (7, 13, 14, 17, 28, 35, 71, 147)
    grown = [-(-e // m) * m for e, m in zip(extents, map(window_multiple, extents), strict=True)]
    assert grown == [7, 13, 14, 18, 28, 36, 72, 152]
    assert texts(workloads.depthwise_conv2d(1, 65, 65, 67, 3, padding=1), CPU) == []
    assert texts(workloads.pool2d(1, 131, 131, 32, 3), CPU) == []


def test_a_padded_reduction_is_split_as_well() -> None:
    assert texts(workloads.gemm(1, 4099, 4093), GPU) == [
        "split_columns(parts=63)",
        "padded_extents(loop1=64, loop2=64)",
        "padded_extents+split_reduction(loop1=64, loop2=64, parts=32, loop=2)",
    ]
