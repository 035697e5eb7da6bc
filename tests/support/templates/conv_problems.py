"""Convolutions as problems of GEMM templates, drawn from a seed, and what their operands are."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix.templates.gemm.problem import (
    Epilogue,
    Gather,
    GemmProblem,
    Operand,
    Output,
    Read,
    Window,
)

_ACCUMULATORS = {"int8": "int32"}


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A spatial dimension; output o and tap t read o * stride + t * dilation - padding."""

    extent: int
    taps: int = 3
    stride: int = 1
    dilation: int = 1
    padding: int = 0

    @property
    def outputs(self) -> int:
        reach = self.dilation * (self.taps - 1)
        return (self.extent + 2 * self.padding - reach - 1) // self.stride + 1


def problem(
    dimensions: Sequence[Dimension],
    channels: int,
    columns: int,
    *,
    images: int = 1,
    groups: int = 1,
    dtype: str = "bfloat16",
    out: str = "bfloat16",
    weights: str = "hwio",
    pad: int = 0,
    bias: bool = False,
    channels_first: bool = False,
    images_are_batch: bool = True,
    results_first: bool = False,
) -> GemmProblem:
    """Channels last in and out; `channels` and `columns` are of a group.

    Args:
        weights: "hwio" ([taps][channel][group, column]), "ohwi", or "oihw", which is gathered.
        pad: unused channels behind each pixel of the input.
        channels_first: the input is [image][channel][place].
        images_are_batch: of such an input.
        results_first: the result is [image][column][pixel].
    """
    windows: list[Window] = []
    step = 1 if channels_first else groups * channels + pad
    for d in reversed(dimensions):
        windows.insert(
            0, Window(d.outputs, d.taps, d.stride, d.dilation, d.padding, d.extent, step)
        )
        step *= d.extent
    taps = math.prod(d.taps for d in dimensions)
    pixels = math.prod(d.outputs for d in dimensions)
    k, rows, batch = taps * channels, images * pixels, groups
    a_batch, b_batch, out_batch = channels, columns, columns
    gather = Gather(images, step, tuple(windows), channels)
    if channels_first:
        assert groups == 1
        of_batch = images if images_are_batch else 1
        gather = Gather(images // of_batch, channels * step, tuple(windows), channels, step)
        batch, rows, a_batch, b_batch = of_batch, images // of_batch * pixels, channels * step, 0
        out_batch = pixels * columns
    b = (b_batch, 1, groups * columns)
    if weights == "ohwi":
        b = (columns * k if groups > 1 else 0, k, 1)
    of_weights = None
    if weights == "oihw":
        b, spatial, step = (columns * k if groups > 1 else 0, 0, 0), [], 1
        for d in reversed(dimensions):
            spatial.insert(0, Window(1, d.taps, 1, 1, 0, d.taps, step))
            step *= d.taps
        of_weights = Gather(columns, k, tuple(spatial), channels, taps)
    stored = (1, pixels) if results_first else (groups * columns, 1)
    reads = (Read("read0", 2, "float32", (columns if groups > 1 else 0, 0, 1)),) if bias else ()
    is_batched = batch > 1
    return GemmProblem(
        batch,
        rows,
        columns,
        k,
        Operand(0, dtype, (a_batch if is_batched else 0, 0, 0), gather),
        Operand(1, dtype, (b[0] if is_batched else 0, *b[1:]), of_weights),
        _ACCUMULATORS.get(dtype, "float32"),
        Output(2 + len(reads), out, (out_batch if is_batched else 0, *stored)),
        Epilogue("x + read0" if bias else "x", reads),
        3 + len(reads),
    )


def random_problem(rng: random.Random, most_dimensions: int = 3, **fixed: Any) -> GemmProblem:
    """Of awkward windows, channels and groups."""
    count = rng.randint(1, most_dimensions)
    groups = rng.choice((1, 1, 2)) if count < 3 else 1
    dimensions = [random_dimension(rng, (40, 14, 7)[count - 1]) for _ in range(count)]
    fields: dict[str, Any] = dict(
        images=rng.choice((1, 3)),
        groups=groups,
        weights=rng.choice(("hwio", "ohwi", "oihw")),
        pad=rng.choice((0, 0, 8)),
        bias=rng.random() < 0.3,
        dtype=rng.choice(("bfloat16", "bfloat16", "float16")),
    )
    channels = rng.choice((3, 8, 16, 24, 40, 64, 72, 96, 128, 200))
    columns = rng.choice((8, 24, 33, 64, 96))
    return problem(dimensions, channels, columns, **fields | fixed)


def random_dimension(rng: random.Random, most: int) -> Dimension:
    """Of at most so many places; a window fits."""
    while True:
        made = Dimension(
            rng.randint(3, most),
            rng.choice((1, 2, 3, 5)),
            rng.choice((1, 1, 2, 3)),
            rng.choice((1, 1, 2)),
            rng.choice((0, 1, 2, 3)),
        )
        if made.outputs >= 1:
            return made


# ---------------------------------------------------------------- what the operands are


def elements_of(p: GemmProblem, operand: Operand) -> int:
    """Elements of memory that an operand spans."""
    inner = p.inner_batch or p.batch
    last = (p.batch // inner - 1) * operand.outer_stride + (inner - 1) * operand.strides[0]
    gather = operand.gather
    if gather is None:
        lines = p.n if operand is p.b else p.m
        return (
            operand.offset
            + last
            + (lines - 1) * operand.strides[1]
            + (p.k - 1) * operand.strides[2]
            + 1
        )
    last += (gather.images - 1) * gather.image_stride
    last += sum((w.extent - 1) * w.element_stride for w in gather.windows)
    return operand.offset + last + (gather.channels - 1) * gather.channel_stride + 1


def matrix_of(p: GemmProblem, operand: Operand, memory: NDArray[Any], batch: int) -> NDArray[Any]:
    """[line][tap][channel] of a matrix of the batch, read as the problem defines it."""
    gathered = p.a.gather or p.b.gather
    assert gathered is not None
    taps = math.prod(w.taps for w in gathered.windows)
    inner = p.inner_batch or p.batch
    start = operand.offset + batch // inner * operand.outer_stride
    start += batch % inner * operand.strides[0]
    if operand.gather is None:
        lines = p.n if operand is p.b else p.m
        line, k = (np.arange(count) for count in (lines, taps * gathered.channels))
        at = start + line[:, None] * operand.strides[1] + k * operand.strides[2]
        return memory[at].reshape(lines, taps, gathered.channels)
    return _gathered(operand.gather, memory, start)


def _gathered(gather: Gather, memory: NDArray[Any], start: int) -> NDArray[Any]:
    channels = np.arange(gather.channels) * gather.channel_stride
    rows = []
    spaces = [range(w.outputs) for w in gather.windows]
    for image, *outputs in itertools.product(range(gather.images), *spaces):
        row = []
        for tap in itertools.product(*(range(w.taps) for w in gather.windows)):
            at, is_inside = start + image * gather.image_stride, True
            for w, o, t in zip(gather.windows, outputs, tap, strict=True):
                place = o * w.stride + t * w.dilation - w.before
                is_inside &= 0 <= place < w.extent
                at += place * w.element_stride
            row.append(memory[at + channels] if is_inside else np.zeros_like(memory[channels]))
        rows.append(row)
    return np.array(rows)
