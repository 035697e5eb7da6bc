"""Transposed convolutions as programs: of any rank, layout, dilation and groups, and topi's."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import te, tirx, topi

from felix.tir import validate


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A spatial dimension; `before` cells of the full result are cut off, `outputs` are left."""

    extent: int
    taps: int = 4
    stride: int = 2
    dilation: int = 1
    before: int = 1
    outputs: int | None = None

    @property
    def reach(self) -> int:
        """Places from the first tap to the last."""
        return (self.taps - 1) * self.dilation

    @property
    def result(self) -> int:
        full = (self.extent - 1) * self.stride + self.reach + 1
        return self.outputs if self.outputs is not None else full - 2 * self.before


def program(
    dimensions: Sequence[Dimension],
    channels: int,
    columns: int,
    *,
    images: int = 1,
    groups: int = 1,
    first: bool = False,
    flipped: bool = True,
    epilogue: bool = False,
    dtype: str = "float16",
) -> tvm.IRModule:
    """Sums in float32; `channels` and `columns` are of a group.

    Args:
        first: channels come before the places of data and result.
        flipped: the sum goes through the taps from the last to the first.
        epilogue: a bias for each channel, a tensor of the result's shape, and relu.
    """

    def shaped(n: Any, c: Any, places: Sequence[Any]) -> tuple[Any, ...]:
        return (n, c, *places) if first else (n, *places, c)

    total, extents = groups * columns, [d.extent for d in dimensions]
    x = te.placeholder(shaped(images, groups * channels, extents), dtype, "x")
    taps = [d.taps for d in dimensions]
    of_weights = (groups * channels, columns, *taps) if first else (*taps, channels, total)
    w = te.placeholder(of_weights, dtype, "w")
    rc = te.reduce_axis((0, channels), "rc")
    reduced = [te.reduce_axis((0, d.taps), f"r{i}") for i, d in enumerate(dimensions)]

    def cell(*index: Any) -> Any:
        """Of the data spread by the strides, from the first place that is read."""
        n, c, at = (index[0], index[1], index[2:]) if first else (index[0], index[-1], index[1:-1])
        places = [u - d.reach + d.before for u, d in zip(at, dimensions, strict=True)]
        inside = []
        for place, d in zip(places, dimensions, strict=True):
            inside += [place >= 0, place <= (d.extent - 1) * d.stride]
            inside += [tirx.floormod(place, d.stride).equal(0)] if d.stride > 1 else []
        cells = [tirx.floordiv(a, d.stride) for a, d in zip(places, dimensions, strict=True)]
        return tirx.if_then_else(tirx.all(*inside), x[shaped(n, c, cells)], tirx.const(0.0, dtype))

    spread_shape = shaped(images, groups * channels, [d.result + d.reach for d in dimensions])
    spread = te.compute(spread_shape, cell, "spread")

    def result(*index: Any) -> Any:
        n, rest = index[0], index[1:]
        column, at = (rest[0], rest[1:]) if first else (rest[-1], rest[:-1])
        places, of_tap = [], []
        for y, r, d in zip(at, reduced, dimensions, strict=True):
            tap = d.taps - 1 - r if flipped else r
            places.append(y + (r if flipped else d.taps - 1 - r) * d.dilation)
            of_tap.append(tap)
        group = tirx.floordiv(column, columns)
        channel = group * channels + rc if groups > 1 else rc
        if first:
            weight = w[
                (channel, tirx.floormod(column, columns) if groups > 1 else column, *of_tap)
            ]
        else:
            weight = w[(*of_tap, rc, column)]
        cell_at = spread[shaped(n, channel, places)]
        wide = cell_at.astype("float32") * weight.astype("float32")
        return te.sum(wide, axis=[rc, *reduced])

    shape = shaped(images, total, [d.result for d in dimensions])
    sums = te.compute(shape, result, "sums")
    if not epilogue:
        return module(x, w, te.compute(shape, lambda *i: sums(*i).astype(dtype), "y"))
    bias, other = te.placeholder((total,), "float32", "bias"), te.placeholder(shape, dtype, "z")

    def finished(*index: Any) -> Any:
        biased = sums(*index) + bias[index[1 if first else -1]]
        value = te.max(biased + other(*index).astype("float32"), tirx.const(0.0, "float32"))
        return value.astype(dtype)

    return module(x, w, bias, other, te.compute(shape, finished, "y"))


def of_topi(
    operator: Callable[..., te.Tensor], data: Sequence[int], weights: Sequence[int], *rest: Any
) -> tvm.IRModule:
    """An operator of topi on float16."""
    x, w = te.placeholder(data, "float16", "x"), te.placeholder(weights, "float16", "w")
    return module(x, w, operator(x, w, *rest))


TOPI: dict[str, Callable[[], tvm.IRModule]] = {
    "topi": lambda: of_topi(
        topi.nn.conv2d_transpose_nchw, (2, 8, 4, 5), (8, 6, 4, 4), (2, 2), (1, 1), "float16",
        (0, 0),
    ),
    "topi_1x1_data": lambda: of_topi(
        topi.nn.conv2d_transpose_nchw, (1, 12, 1, 1), (12, 8, 4, 4), (1, 1), (0, 0), "float16",
        (0, 0),
    ),
    "topi_groups": lambda: of_topi(
        topi.nn.group_conv2d_transpose_nchw, (2, 8, 4, 5), (8, 6, 4, 3), (2, 2), (1, 1), "float16",
        (1, 1), 2,
    ),
    "topi_line": lambda: of_topi(
        topi.nn.conv1d_transpose_ncw, (2, 8, 9), (8, 6, 5), 3, 1, "float16", (0,)
    ),
    "topi_volume": lambda: of_topi(
        topi.nn.conv3d_transpose_ncdhw, (1, 4, 3, 4, 5), (4, 6, 3, 3, 3), (2, 2, 2), (1, 1, 1),
        "float16", (1, 1, 1),
    ),
}  # fmt: skip


def random_program(rng: random.Random) -> tvm.IRModule:
    """Of awkward strides, taps, cuts, channels and groups."""
    count = rng.choice((1, 2, 2, 3))
    dimensions = [_random_dimension(rng, (9, 6, 3)[count - 1]) for _ in range(count)]
    return program(
        dimensions,
        rng.choice((2, 3, 4, 6, 8, 16, 24)),
        rng.choice((2, 5, 8, 16, 24)),
        images=rng.choice((1, 2)),
        groups=rng.choice((1, 1, 2, 3)),
        first=rng.random() < 0.4,
        flipped=rng.random() < 0.6,
        epilogue=rng.random() < 0.5,
        dtype=rng.choice(("float16", "bfloat16")),
    )


def _random_dimension(rng: random.Random, most: int) -> Dimension:
    while True:
        stride = rng.choice((1, 2, 2, 3))
        made = Dimension(
            rng.randint(1, most),
            rng.choice((1, 2, 3, 4, 5)),
            stride,
            rng.choice((1, 1, 1, 2)),
            rng.choice((0, 1, 2)),
        )
        outputs = made.result + rng.randint(0, stride - 1)
        is_divisible = stride == 2 and made.dilation == 2
        if outputs > 1 and not is_divisible:
            return dataclasses.replace(made, outputs=outputs)


def module(*tensors: te.Tensor) -> tvm.IRModule:
    """The program of tensors, the last of which is the result."""
    func = te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": validate.normalise(func)})
