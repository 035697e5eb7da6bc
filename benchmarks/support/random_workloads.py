"""Random workloads for generated kernels: products, convolutions, transposed convolutions.

Extents are drawn on a logarithmic scale, as multiples of 64, 16, 8 or of nothing, so that operands
of any alignment come up. At most `MAX_WORK` multiply-adds each, so that a reference takes
milliseconds.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from felix.task import Task

MAX_WORK = 1 << 29
#: Types of factors as often as they are drawn. Products of float32 may use TF32.
_DTYPES = (
    ("bfloat16",) * 5
    + ("float16",) * 4
    + ("int8",) * 3
    + ("float32",) * 3
    + ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2")
)
#: Types of results that are asked for besides the default.
_OUT_DTYPES = ("float32", "bfloat16", "float16", "int32")
_CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 33, 40, 48, 64, 72, 96, 128, 160)


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """A workload in the text form, and whether its products of float32 may use TF32."""

    text: str
    allows_tf32: bool

    @property
    def operator(self) -> str:
        """Name of the operator."""
        return self.text.partition(":")[0]

    def task(self, target: str) -> Task:
        """The task for a target.

        Raises:
            WorkloadError: the drawn parameters do not go together.
        """
        from felix import workloads

        made = workloads.parse(self.text, target)
        return made.allowing_tf32() if self.allows_tf32 else made


def draw(rng: random.Random) -> Drawn:
    """A workload; its parameters may not go together, which `Drawn.task` says."""
    dtype = rng.choice(_DTYPES)
    shape = rng.choices(_SHAPES, _WEIGHTS)[0](rng)
    options = [_epilogue(rng, dtype), f"dtype={dtype}"]
    if rng.random() < 0.25:
        options.append(f"out_dtype={rng.choice(_OUT_DTYPES)}")
    text = ",".join([shape, *filter(None, options)])
    return Drawn(text, dtype == "float32")


def _epilogue(rng: random.Random, dtype: str) -> str:
    from felix.workloads import common

    if rng.random() < 0.4:
        return ""
    stages = rng.sample(common.EPILOGUES, rng.randint(1, 3))
    return f"epilogue={'+'.join(stages)}"


def _extent(rng: random.Random, most: int) -> int:
    step = rng.choice((64, 16, 8, 1))
    return max(1, min(most, round(2 ** rng.uniform(0.0, math.log2(most)) / step) * step) or step)


def _product(rng: random.Random) -> str:
    while True:
        m, n, k = _extent(rng, 2048), _extent(rng, 2048), _extent(rng, 4096)
        batch = rng.choice((0, 0, 0, 2, 3, 6))
        if max(batch, 1) * m * n * k <= MAX_WORK:
            break
    flags = [f"transpose_{operand}=true" for operand in "ab" if rng.random() < 0.5]
    return ",".join([f"gemm:{m},{n},{k}", *([f"batch={batch}"] if batch else []), *flags])


def _convolution(rng: random.Random) -> str:
    rank = rng.choice((1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 1, 1, 2, 4, 8))
    most = (2000, 64, 16)[rank - 1]
    while True:
        images, extents = rng.randint(1, 4), [rng.randint(1, most) for _ in range(rank)]
        ci, co = groups * rng.choice(_CHANNELS), groups * rng.choice(_CHANNELS)
        taps = [rng.choice((1, 2, 3, 3, 5, 7)) for _ in range(rank)]
        work = images * math.prod(extents) * math.prod(taps) * ci * co // groups
        if work <= MAX_WORK and ci + co <= 1024:
            break
    steps = [rng.choice((1, 1, 2, 3)) for _ in range(rank)]
    padding = [rng.randint(0, taps[axis] - 1) for axis in range(rank)]
    dilation = [rng.choice((1, 1, 1, 2)) for _ in range(rank)]
    layout = f"NC{'DHW'[3 - rank :]}" if rng.random() < 0.35 else f"N{'DHW'[3 - rank :]}C"
    windows = f"stride={_by(steps)},padding={_by(padding)},dilation={_by(dilation)}"
    shape = ",".join(map(str, (images, *extents, ci, co)))
    return f"conv{rank}d:{shape},{_by(taps)},{windows},groups={groups},layout={layout}"


def _transposed(rng: random.Random) -> str:
    while True:
        images, extents = rng.randint(1, 4), [rng.randint(1, 40) for _ in range(2)]
        ci, co = rng.choice(_CHANNELS), rng.choice(_CHANNELS)
        taps = [rng.randint(1, 6) for _ in range(2)]
        steps = [rng.choice((1, 2, 2, 3, 4)) for _ in range(2)]
        work = images * math.prod(extents) * math.prod(taps) * math.prod(steps) * ci * co
        if work <= MAX_WORK:
            break
    padding = [rng.randint(0, taps[axis] - 1) for axis in range(2)]
    more = [rng.randint(0, steps[axis] - 1) for axis in range(2)]
    windows = f"stride={_by(steps)},padding={_by(padding)},output_padding={_by(more)}"
    shape = ",".join(map(str, (images, *extents, ci, co)))
    layout = rng.choice(("NHWC", "NCHW"))
    return f"conv_transpose2d:{shape},{_by(taps)},{windows},layout={layout}"


def _by(values: list[int]) -> str:
    return "x".join(map(str, values))


_SHAPES: tuple[Callable[[random.Random], str], ...] = (_product, _convolution, _transposed)
_WEIGHTS = (0.45, 0.35, 0.2)
