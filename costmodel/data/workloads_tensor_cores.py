"""The built-in collection workloads for generated kernels: products and convolutions that fit
tensor cores.

Squares, the layers of LLaMA-7B and 13B, BERT, ViT, GPT-2 and of mixtures of experts at 1 to 2048
rows, odd and prime extents, attention, transposed operands, epilogues; convolutions of ResNet-50,
MobileNet-v2, R3D-18, DCGAN and U-Net with channels last. Mostly bfloat16, also float16, int8 and
float8. Extents are those of one workload only, and none are extents of a benchmark's
(`tests/costmodel/test_collect_templates.py` holds both), so that neither a split by workload
nor a benchmark has seen them under other types, layouts or epilogues.

Lines are of the workload text form, families in turns, so that a run which ends early has them
all. A workload that no template recognises is left out by the collector, which says why.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

#: (outputs, inputs) of linear layers by network.
_LAYERS = {
    "llama-7b": ((4096, 4096), (12288, 4096), (11008, 4096), (4096, 11008), (32000, 4096)),
    "llama-13b": ((5120, 5120), (15360, 5120), (13824, 5120), (5120, 13824)),
    "bert-base": ((768, 768), (2304, 768), (3072, 768), (768, 3072)),
    "bert-large": ((1024, 1024), (4096, 1024), (1024, 4096)),
    "vit-l": ((3072, 1024), (1000, 1024), (1024, 768)),
    "gpt-2": ((1600, 1600), (4800, 1600), (6400, 1600), (1600, 6400), (50257, 768)),
    "experts": ((14336, 4096), (4096, 14336), (2048, 7168), (7168, 2048), (1408, 2048)),
}
#: Rows of the inputs: tokens. Each layer has some of them.
_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 77, 100, 128, 192, 197, 256, 333, 384, 512, 577, 777, 1024,
         1576, 2048)  # fmt: skip
_ROWS_A_LAYER = 6
_SQUARES = (256, 384, 640, 768, 896, 1152, 1280, 1536, 1792, 2304, 2560, 3072, 3584, 5120, 6144,
            7168)  # fmt: skip
#: (batch, rows, columns, length of sums) of attention and of batched layers.
_ATTENTION = (
    (12, 128, 128, 64), (12, 128, 64, 128), (16, 384, 384, 64), (16, 384, 64, 384),
    (96, 197, 197, 64), (96, 197, 64, 197), (16, 577, 577, 64), (16, 577, 64, 577),
    (32, 1024, 1024, 128), (32, 1024, 128, 1024), (40, 256, 256, 128), (40, 256, 128, 256),
    (32, 1, 777, 128), (32, 1, 128, 777), (32, 16, 2048, 128), (32, 16, 128, 2048),
    (25, 1024, 1024, 64), (25, 1024, 64, 1024), (8, 2048, 2048, 128), (8, 2048, 128, 2048),
    (8, 256, 2048, 1024), (64, 32, 1408, 2048), (128, 64, 64, 64), (48, 100, 100, 80),
)  # fmt: skip
#: Odd and prime extents, long sums, narrow results.
_AWKWARD = (
    (101, 1009, 499), (333, 777, 555), (1021, 1021, 1021), (127, 4093, 2039), (37, 509, 8191),
    (509, 37, 2003), (1, 50257, 1600), (3, 4095, 4097), (2047, 2049, 1023), (777, 1001, 1003),
    (197, 2305, 769), (64, 64, 16384), (128, 128, 32768), (256, 96, 10007), (8192, 64, 64),
    (10007, 128, 96), (4096, 40, 320), (16384, 256, 72), (613, 1499, 72), (1999, 3001, 24),
    (5, 11, 4096), (13, 8192, 1031), (4099, 521, 263), (1009, 8, 1009),
)  # fmt: skip
#: (height, channels in, channels out, kernel, stride): of ResNet-50 at other batches than 1 and
#: 16, MobileNet-v2's pointwise ones, U-Net's.
_RESNET50 = (
    (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 256, 64, 1, 1), (56, 256, 128, 1, 1),
    (56, 128, 128, 3, 2), (28, 128, 512, 1, 1), (56, 256, 512, 1, 2), (28, 128, 128, 3, 1),
    (28, 512, 256, 1, 1), (28, 256, 256, 3, 2), (14, 256, 1024, 1, 1), (28, 512, 1024, 1, 2),
    (14, 256, 256, 3, 1), (14, 1024, 512, 1, 1), (14, 512, 512, 3, 2), (7, 512, 2048, 1, 1),
    (14, 1024, 2048, 1, 2), (7, 512, 512, 3, 1), (7, 2048, 512, 1, 1), (224, 3, 64, 7, 2),
)  # fmt: skip
_MOBILENET = (
    (56, 144, 24, 1, 1),
    (28, 192, 32, 1, 1),
    (14, 384, 96, 1, 1),
    (14, 576, 96, 1, 1),
    (7, 960, 160, 1, 1),
    (7, 320, 1280, 1, 1),
    (112, 32, 16, 1, 1),
)
_UNET = (
    (128, 64, 64, 3, 1),
    (64, 128, 128, 3, 1),
    (64, 320, 320, 3, 1),
    (32, 640, 640, 3, 1),
    (32, 1280, 640, 3, 1),
    (16, 1280, 1280, 3, 1),
    (64, 320, 320, 3, 2),
    (64, 4, 320, 3, 1),
    (35, 192, 96, 3, 1),
    (33, 160, 160, 5, 1),
)
_BATCHES = (2, 4, 8, 32)
#: (frames, height, channels in, channels out, kernel, stride) of R3D-18, with two and four clips.
_R3D18 = (
    (16, 56, 64, 64, 3, 1),
    (16, 56, 64, 128, 3, 2),
    (8, 28, 128, 128, 3, 1),
    (8, 28, 128, 256, 3, 2),
    (4, 14, 256, 256, 3, 1),
    (4, 14, 256, 512, 3, 2),
    (2, 7, 512, 512, 3, 1),
    (16, 56, 64, 128, 1, 2),
    (8, 28, 128, 256, 1, 2),
)
#: (height, channels in, channels out) of DCGAN's generator.
_DCGAN = ((4, 1024, 512), (8, 512, 256), (16, 256, 128), (32, 128, 3))
#: Types of factors with their usual shares, and what follows a product.
_DTYPES = (
    "bfloat16",
    "bfloat16",
    "bfloat16",
    "float16",
    "bfloat16",
    "bfloat16",
    "int8",
    "bfloat16",
    "float8_e4m3fn",
    "bfloat16",
)
_EPILOGUES = (
    "",
    "bias",
    "bias+gelu",
    "",
    "residual",
    "bias+relu",
    "bias+residual",
    "relu",
    "bias+residual+relu",
)
_LAYOUTS = (
    "transpose_b=true",
    "transpose_b=true",
    "",
    "transpose_b=true",
    "transpose_a=true",
    "transpose_b=true",
    "",
    "transpose_a=true,transpose_b=true",
)
#: Extents that benchmarks time: batch (0: none), m, n, k.
_HELD_OUT = frozenset(
    {(0, n, n, n) for n in (512, 1024, 2048, 4096, 8192)}
    | {
        (0, m, *layer)
        for m in (1, 16, 100, 512)
        for layer in ((4096, 4096), (11008, 4096), (4096, 11008))
    }
    | {
        (0, m, *layer)
        for m in (1, 16, 100, 197, 512)
        for layer in ((768, 768), (3072, 768), (768, 3072))
    }
    | {
        (0, 197, 1021, 509),
        (0, 1023, 1025, 1027),
        (12, 197, 197, 64),
        (12, 197, 64, 197),
        (32, 512, 512, 128),
        (32, 512, 128, 512),
    }
)


def lines(random_count: int = 48, seed: int = 11) -> list[str]:
    """The workloads, families in turns."""
    products = [_layers(), _squares(), _attention(), _awkward(), _random(random_count, seed)]
    tails = _tails()
    distinct: set[tuple[int, ...]] = set(_HELD_OUT)
    groups = [
        [_product(shape, next(tails)) for shape in group if _is_new(shape, distinct)]
        for group in map(list, products)
    ]
    mixed = itertools.zip_longest(*groups, _images(), _videos(), _transposed())
    return [line for turn in mixed for line in turn if line is not None]


def _is_new(shape: tuple[int, ...], distinct: set[tuple[int, ...]]) -> bool:
    is_new = shape not in distinct
    distinct.add(shape)
    return is_new


def _tails() -> Iterator[tuple[str, str, str]]:
    """Type, layout and epilogue of one product after the other; each meets each in time."""
    for number in itertools.count():
        dtype = _DTYPES[number % len(_DTYPES)]
        layout = _LAYOUTS[number // 3 % len(_LAYOUTS)]
        epilogue = _EPILOGUES[number // 2 % len(_EPILOGUES)]
        yield dtype, layout, epilogue


def _product(shape: tuple[int, ...], tail: tuple[str, str, str]) -> str:
    batch, m, n, k = shape
    dtype, layout, epilogue = tail
    if dtype == "int8":  # gelu needs floats
        epilogue = epilogue.replace("gelu", "relu")
    options = [
        f"batch={batch}" if batch else "",
        layout,
        f"epilogue={epilogue}" if epilogue else "",
        f"dtype={dtype}",
    ]
    return ",".join([f"gemm:{m},{n},{k}", *filter(None, options)])


def _layers() -> Iterator[tuple[int, ...]]:
    """Each layer with rows of its own choice, few and many."""
    every = [layer for layers in _LAYERS.values() for layer in layers]
    for turn in range(_ROWS_A_LAYER):
        for number, layer in enumerate(every):
            rows = _ROWS[(5 * number + 4 * turn) % len(_ROWS)]
            if rows * layer[0] * layer[1] <= 2048 * 15360 * 5120:
                yield (0, rows, *layer)


def _squares() -> Iterator[tuple[int, ...]]:
    for n in _SQUARES:
        yield (0, n, n, n)


def _attention() -> Iterator[tuple[int, ...]]:
    yield from _ATTENTION


def _awkward() -> Iterator[tuple[int, ...]]:
    for shape in _AWKWARD:
        yield (0, *shape)


def _random(count: int, seed: int) -> Iterator[tuple[int, ...]]:
    """Extents drawn on a logarithmic scale: multiples of 64, of 8, or any."""
    draw = random.Random(seed)
    for number in range(count):
        step = (64, 8, 1)[number % 3]
        extents = [_drawn(draw, step, 13.0) for _ in range(3)]
        batch = draw.choice((0, 0, 0, 0, 3, 6, 24))
        work = max(batch, 1) * extents[0] * extents[1] * extents[2]
        while work > 1 << 36:
            largest = extents.index(max(extents))
            extents[largest] //= 2
            work //= 2
        yield (batch, *extents)


def _drawn(draw: random.Random, step: int, most_log2: float) -> int:
    return max(step, round(2 ** draw.uniform(4.0, most_log2) / step) * step)


def _window(kernel: int, stride: int) -> str:
    step = f",stride={stride}" if stride > 1 else ""
    return step + (f",padding={kernel // 2}" if kernel > 1 else "")


def _half(number: int) -> str:
    return ",dtype=float16" if number % 4 == 3 else ",dtype=bfloat16"


def _images() -> Iterator[str]:
    epilogues = (",epilogue=bias+relu", "", ",epilogue=bias", ",epilogue=bias+residual+relu")
    for number, (size, ci, co, kernel, stride) in enumerate((*_RESNET50, *_UNET, *_MOBILENET)):
        for turn in range(2 if number < len(_RESNET50) else 1):
            batch = _BATCHES[(number + 2 * turn) % len(_BATCHES)]
            tail = epilogues[(number + turn) % len(epilogues)] + _half(number + turn)
            yield f"conv2d:{batch},{size},{size},{ci},{co},{kernel}{_window(kernel, stride)}{tail}"


def _videos() -> Iterator[str]:
    for number, (frames, size, ci, co, kernel, stride) in enumerate(_R3D18):
        for batch in (2, 4):
            shape = f"{batch},{frames},{size},{size},{ci},{co},{kernel}"
            yield f"conv3d:{shape}{_window(kernel, stride)}{_half(number)}"


def _transposed() -> Iterator[str]:
    for number, (size, ci, co) in enumerate(_DCGAN):
        for batch in (4, 16):
            tail = ",epilogue=bias+relu" if number % 2 else ""
            yield f"conv_transpose2d:{batch},{size},{size},{ci},{co},4{tail}{_half(number)}"
