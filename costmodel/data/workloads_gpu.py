"""The built-in collection workloads for GPUs, made from tables of layers and from a seed.

Layers of ResNet-50, MobileNet-v2, R3D-18, DCGAN, ViT, LLaMA and BERT at batch sizes 1 to 16,
random shapes of every operator, and awkward ones (`workloads_random`). No workload of
`benchmarks/` is among them (`tests/costmodel/test_collect.py` holds that), so that a model
trained on them has not seen those. Lines are of the workload text form, in an order that mixes
operators, so that a run which ends early has them all.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from costmodel.data import workloads_random

#: (height, channels in, channels out, kernel, stride) of ResNet-50's convolutions.
_RESNET50 = (
    (224, 3, 64, 7, 2), (56, 64, 64, 1, 1), (56, 256, 64, 1, 1), (56, 256, 128, 1, 1),
    (56, 256, 512, 1, 2), (28, 128, 128, 3, 1), (28, 128, 512, 1, 1), (28, 512, 128, 1, 1),
    (28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (28, 512, 1024, 1, 2), (14, 256, 256, 3, 1),
    (14, 256, 1024, 1, 1), (14, 1024, 256, 1, 1), (14, 1024, 512, 1, 1), (14, 512, 512, 3, 2),
    (14, 1024, 2048, 1, 2), (7, 512, 512, 3, 1), (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1),
)  # fmt: skip
#: (height, channels, stride) of MobileNet-v2's depthwise convolutions.
_DEPTHWISE = (
    (112, 32, 1),
    (112, 96, 2),
    (56, 144, 2),
    (28, 192, 1),
    (28, 192, 2),
    (14, 384, 1),
    (14, 576, 1),
    (14, 576, 2),
    (7, 960, 1),
)
#: (height, channels in, channels out) of its pointwise ones.
_POINTWISE = (
    (112, 32, 16),
    (112, 16, 96),
    (56, 96, 24),
    (56, 24, 144),
    (28, 144, 32),
    (28, 32, 192),
    (14, 192, 64),
    (14, 64, 384),
    (14, 384, 96),
    (14, 96, 576),
    (7, 576, 160),
    (7, 160, 960),
    (7, 960, 320),
    (7, 320, 1280),
)
#: (frames, height, channels in, channels out, kernel, stride) of R3D-18.
_R3D = (
    (16, 56, 64, 64, "3", "1"),
    (16, 56, 64, 128, "3", "2"),
    (8, 28, 128, 128, "3", "1"),
    (8, 28, 128, 256, "3", "2"),
    (4, 14, 256, 256, "3", "1"),
    (4, 14, 256, 512, "3", "2"),
    (2, 7, 512, 512, "3", "1"),
    (16, 56, 64, 128, "1", "2"),
)
#: (height, channels in, channels out) of DCGAN's generator.
_DCGAN = ((4, 1024, 512), (8, 512, 256), (16, 256, 64), (32, 128, 64), (32, 64, 3))
#: (m, n, k) of projections: ViT-B, ViT-L, BERT, LLaMA-7B slices, classifiers.
_PROJECTIONS = (
    (197, 768, 768), (197, 3072, 768), (197, 768, 3072), (197, 2304, 768), (50, 768, 768),
    (197, 1024, 1024), (197, 4096, 1024), (128, 768, 768), (512, 768, 768), (128, 768, 3072),
    (512, 3072, 768), (384, 1024, 1024), (384, 4096, 1024), (1, 4096, 1024), (16, 4096, 4096),
    (1, 11008, 4096), (1, 4096, 11008), (16, 11008, 4096), (128, 4096, 4096), (128, 1376, 4096),
    (1, 1000, 2048), (16, 1000, 2048), (1, 32000, 4096), (512, 512, 512), (2048, 2048, 2048),
    (4096, 1024, 256), (256, 256, 4096), (8192, 64, 64), (64, 64, 16384),
)  # fmt: skip
#: (batch, m, n, k) of attention products.
_ATTENTION = (
    (12, 197, 197, 64),
    (12, 197, 64, 197),
    (96, 197, 197, 64),
    (12, 384, 384, 64),
    (16, 512, 512, 64),
    (16, 512, 64, 512),
    (32, 128, 128, 128),
    (32, 1, 128, 512),
    (32, 1, 512, 128),
    (192, 64, 64, 64),
)
_SOFTMAX = (
    "12x197x197",
    "96x197x197",
    "16x512x512",
    "32x128x128",
    "192x128x128",
    "1x32000",
    "16x50257",
    "64x1000",
    "8192x64",
    "32x1x512",
    "384x384",
    "4096x1024",
)
_LAYER_NORM = (
    "197x768",
    "1576x768",
    "128x768",
    "512x1024",
    "4096x1024",
    "16x512x768",
    "50x512",
    "1x4096",
    "2048x3072",
    "16384x256",
)
_RMS_NORM = ("1x4096", "16x4096", "128x4096", "2048x4096", "512x5120", "333x1536")
_POOLS = (
    (112, 64, 3, 2, 1),
    (56, 192, 2, 2, 0),
    (28, 256, 3, 1, 1),
    (14, 512, 2, 2, 0),
    (35, 96, 3, 1, 1),
    (8, 2048, 3, 2, 0),
)
_REDUCTIONS = (
    "4194304",
    "128x4096,axes=1",
    "4096x1024,axes=1",
    "1024x4096,axes=0",
    "16x56x56x64,axes=1+2,kind=mean",
    "64x32768,axes=1,kind=max",
    "16x512x768,axes=1",
    "8x131072,axes=1",
    "512x49x256,axes=1",
    "1000x1009,axes=0,kind=min",
)
_ELEMENTWISE = (
    "2048x4096",
    "16x56x56x64,ops=mul@3+add@3+relu",
    "512x3072,ops=add@1+gelu",
    "128x11008,ops=sigmoid+mul",
    "16777216",
    "197x3072,ops=add@1+gelu",
    "1000x1009,ops=sub@0+exp+div@0",
    "8x28x28x512,ops=relu",
)
#: Layers of these networks that benchmarks time.
_HELD_OUT = ("conv2d:1,224,224,3,64,7,stride=2,padding=3", "conv_transpose2d:1,8,8,512,256,4")
_BATCHES = (1, 16, 4, 8, 2)
#: Extents that random shapes are made of: round ones, and primes and their kin.
_ROUND = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
_ODD = (7, 13, 17, 31, 49, 53, 67, 97, 101, 149, 197, 211, 257, 337, 499, 577, 1009)
#: Most multiply-adds of a random workload.
_MAX_MACS = 4e9


def lines(random_count: int = 120, awkward_count: int = 800, seed: int = 7) -> list[str]:
    """The workloads, operators mixed, none twice: awkward ones and those of networks in turns."""
    groups = [list(group()) for group in (_resnet, _mobilenet, _video, _dense, _others)]
    groups.append(list(_random_lines(random_count, seed)))
    networks = [line for line in _in_turns(groups) if line is not None]
    awkward = list(workloads_random.lines(awkward_count, seed))
    step = max(1, len(awkward) // len(networks))
    shares = [awkward[start::step] for start in range(step)]
    mixed = dict.fromkeys(_in_turns([*shares, networks]))
    return [line for line in mixed if line is not None and line not in _HELD_OUT]


def _in_turns(groups: Sequence[Sequence[str]]) -> Iterator[str | None]:
    return itertools.chain.from_iterable(itertools.zip_longest(*groups))


def _resnet() -> Iterator[str]:
    epilogues = ("", ",epilogue=bias+relu", "", ",epilogue=bias", ",epilogue=bias+residual+relu")
    for index, (size, ci, co, kernel, stride) in enumerate(_RESNET50):
        for turn in range(2 if kernel == 1 else 3):
            batch = _BATCHES[(index + turn) % len(_BATCHES)]
            step = f",stride={stride}" if stride > 1 else ""
            pad = f",padding={kernel // 2}" if kernel > 1 else ""
            layout = ",layout=NCHW" if (index + turn) % 7 == 3 else ""
            epilogue = epilogues[(index + 2 * turn) % len(epilogues)] if not layout else ""
            yield f"conv2d:{batch},{size},{size},{ci},{co},{kernel}{step}{pad}{layout}{epilogue}"


def _mobilenet() -> Iterator[str]:
    for index, (size, channels, stride) in enumerate(_DEPTHWISE):
        for turn in range(3):
            batch = _BATCHES[(index + turn) % len(_BATCHES)]
            step = f",stride={stride}" if stride > 1 else ""
            tail = ",epilogue=bias+relu" if turn == 1 else ""
            tail = ",layout=NCHW" if turn == 2 and index % 3 == 0 else tail
            yield f"depthwise_conv2d:{batch},{size},{size},{channels},3{step},padding=1{tail}"
    for index, (size, ci, co) in enumerate(_POINTWISE):
        batch = _BATCHES[index % len(_BATCHES)]
        tail = ",epilogue=bias+relu" if index % 2 else ""
        yield f"conv2d:{batch},{size},{size},{ci},{co},1{tail}"


def _video() -> Iterator[str]:
    for index, (frames, size, ci, co, kernel, stride) in enumerate(_R3D):
        for batch in (1, 4) if index % 2 else (1, 2):
            step = f",stride={stride}" if stride != "1" else ""
            pad = ",padding=1" if kernel == "3" else ""
            yield f"conv3d:{batch},{frames},{size},{size},{ci},{co},{kernel}{step}{pad}"
    yield "conv3d:1,16,112,112,3,64,3x7x7,stride=1x2x2,padding=1x3x3"
    for index, (size, ci, co) in enumerate(_DCGAN):
        for batch in (1, 8, 16):
            tail = ",epilogue=bias+relu" if (index + batch) % 2 else ""
            yield f"conv_transpose2d:{batch},{size},{size},{ci},{co},4{tail}"


def _dense() -> Iterator[str]:
    epilogues = (
        "",
        ",epilogue=bias",
        ",transpose_b=true",
        ",epilogue=bias+gelu",
        "",
        ",epilogue=bias+residual",
    )
    for index, (m, n, k) in enumerate(_PROJECTIONS):
        yield f"gemm:{m},{n},{k}{epilogues[index % len(epilogues)]}"
    for index, (batch, m, n, k) in enumerate(_ATTENTION):
        yield f"gemm:{m},{n},{k},batch={batch}{',transpose_b=true' if index % 2 == 0 else ''}"


def _others() -> Iterator[str]:
    for shape in _SOFTMAX:
        yield f"softmax:{shape}"
    for shape in _LAYER_NORM:
        yield f"layer_norm:{shape}"
    for shape in _RMS_NORM:
        yield f"rms_norm:{shape}"
    for index, (size, channels, kernel, stride, padding) in enumerate(_POOLS):
        kind = "max" if index % 2 else "avg"
        batch = _BATCHES[index % len(_BATCHES)]
        shape = f"{batch},{size},{size},{channels},{kernel}"
        yield f"pool2d:{shape},kind={kind},stride={stride},padding={padding}"
    for batch, size, channels in ((1, 7, 2048), (16, 7, 2048), (8, 14, 512), (4, 20, 256)):
        yield f"global_pool2d:{batch},{size},{size},{channels}"
    for text in _REDUCTIONS:
        yield f"reduce:{text}"
    for text in _ELEMENTWISE:
        yield f"elementwise:{text}"
    for width, ci, co, kernel, batch in (
        (512, 80, 128, 3, 1),
        (256, 64, 64, 5, 4),
        (1000, 32, 48, 9, 8),
        (128, 256, 256, 3, 16),
    ):
        yield f"conv1d:{batch},{width},{ci},{co},{kernel},padding={kernel // 2}"


def _random_lines(count: int, seed: int) -> Iterator[str]:
    draw = random.Random(seed)
    makers = (
        _random_gemm,
        _random_conv2d,
        _random_conv2d,
        _random_gemm,
        _random_rows,
        _random_depthwise,
        _random_conv3d,
        _random_transposed,
    )
    made = 0
    while made < count:
        text, macs = makers[made % len(makers)](draw)
        if macs <= _MAX_MACS:
            made += 1
            yield text


def _extent(draw: random.Random, low: int, high: int) -> int:
    choices: Sequence[int] = _ROUND if draw.random() < 0.7 else _ODD
    return draw.choice([value for value in choices if low <= value <= high])


def _random_gemm(draw: random.Random) -> tuple[str, float]:
    m, n, k = (_extent(draw, 7, 1024) for _ in range(3))
    batch = draw.choice((1, 1, 4, 12, 31))
    tail = f",batch={batch}" if batch > 1 else draw.choice(("", ",epilogue=bias+relu"))
    return f"gemm:{m},{n},{k}{tail}", float(batch) * m * n * k


def _random_conv2d(draw: random.Random) -> tuple[str, float]:
    size, ci, co = _extent(draw, 7, 64), _extent(draw, 8, 512), _extent(draw, 8, 512)
    batch, kernel = draw.choice((1, 1, 3, 8, 16)), draw.choice((1, 3, 3, 5))
    stride = draw.choice((1, 1, 2))
    shape = f"{batch},{size},{size},{ci},{co},{kernel}"
    tail = f",stride={stride}" if stride > 1 else ""
    tail += f",padding={kernel // 2}" if kernel > 1 else ""
    tail += draw.choice(("", ",epilogue=relu", ",layout=NCHW"))
    return f"conv2d:{shape}{tail}", batch * (size / stride * kernel) ** 2 * ci * co


def _random_conv3d(draw: random.Random) -> tuple[str, float]:
    frames, size = draw.choice((4, 8, 16)), _extent(draw, 7, 32)
    ci, co = _extent(draw, 8, 128), _extent(draw, 8, 128)
    batch = draw.choice((1, 2, 4))
    text = f"conv3d:{batch},{frames},{size},{size},{ci},{co},3,padding=1"
    return text, batch * frames * size**2 * 27.0 * ci * co


def _random_transposed(draw: random.Random) -> tuple[str, float]:
    size, ci, co = _extent(draw, 7, 32), _extent(draw, 8, 256), _extent(draw, 8, 256)
    batch = draw.choice((1, 4, 16))
    return f"conv_transpose2d:{batch},{size},{size},{ci},{co},4", batch * size**2 * 16.0 * ci * co


def _random_depthwise(draw: random.Random) -> tuple[str, float]:
    size, channels = _extent(draw, 13, 128), _extent(draw, 24, 1009)
    batch, kernel = draw.choice((1, 4, 16)), draw.choice((3, 3, 5, 7))
    text = f"depthwise_conv2d:{batch},{size},{size},{channels},{kernel},padding={kernel // 2}"
    return text, float(batch) * (size * kernel) ** 2 * channels


def _random_rows(draw: random.Random) -> tuple[str, float]:
    rows = _extent(draw, 31, 1024) * draw.choice((1, 4, 16))
    width = _extent(draw, 31, 1024) * draw.choice((1, 2, 8))
    operator = draw.choice(("softmax", "layer_norm", "rms_norm", "reduce", "elementwise"))
    tail = ",axes=1" if operator == "reduce" else ""
    return f"{operator}:{rows}x{width}{tail}", math.prod((rows, width))
