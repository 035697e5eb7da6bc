"""Random collection workloads, awkward ones above all, drawn from a seed.

Extents that divide badly (odd, prime, 197 tokens), one and few rows, long reductions, few output
channels, first layers, dilated, grouped and transposed convolutions, products of attention,
programs with exp and erf, and for GPUs float16 among all of them. Lines are of the workload text
form.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

#: A line without its type and the multiply-adds (else: elements read) of the workload.
Drawn = tuple[str, float]

#: Most multiply-adds or elements of a workload for GPUs: a poor schedule must end within seconds.
MAX_WORK = 4e9
#: Share of the workloads for GPUs in float16.
FLOAT16_SHARE = 0.12
_ROUND = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1280, 2048)
_ODD = (7, 11, 13, 17, 21, 31, 37, 49, 53, 67, 83, 97, 101, 149, 197, 211, 257, 337, 499, 577,
        701, 811, 1009, 1021, 1499, 2003)  # fmt: skip
#: Widths of transformers (BERT, ViT, GPT-2, LLaMA) and their hidden layers.
_WIDTHS = (256, 384, 768, 1024, 1280, 1376, 1536, 1600, 2048, 2560, 2752, 3072, 4096, 5120, 5504,
           6400, 8192, 11008)  # fmt: skip
_TOKENS = (1, 2, 3, 5, 7, 8, 13, 31, 50, 64, 77, 100, 128, 197, 257, 333, 384, 512, 577)
_UNARY = ("exp", "erf", "tanh", "sigmoid", "gelu", "silu", "relu", "sqrt", "square", "abs")
_BINARY = ("add", "sub", "mul", "max", "add@0", "add@1", "mul@1", "div@0", "sub@0")


def lines(
    count: int, seed: int, max_work: float = MAX_WORK, float16_share: float = FLOAT16_SHARE
) -> Iterator[str]:
    """So many workloads of at most so many multiply-adds or elements, their kinds in turns."""
    draw = random.Random(seed)
    made = 0
    while made < count:
        text, work = _MAKERS[made % len(_MAKERS)](draw)
        if work <= max_work:
            made += 1
            half = draw.random() < float16_share
            yield f"{text},dtype=float16" if half else text


def _extent(draw: random.Random, low: int, high: int, odd_share: float = 0.55) -> int:
    choices: Sequence[int] = _ODD if draw.random() < odd_share else _ROUND
    return draw.choice([value for value in choices if low <= value <= high])


def _epilogue(draw: random.Random, *choices: str) -> str:
    chosen = draw.choice(("", "", *choices))
    return f",epilogue={chosen}" if chosen else ""


def _options(**values: int) -> str:
    """Options of a window that differ from the operators' defaults."""
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    return "".join(f",{name}={v}" for name, v in values.items() if v != defaults[name])


# ---------------------------------------------------------------- products


def _gemm(draw: random.Random) -> Drawn:
    m, n, k = (_extent(draw, 7, 2048) for _ in range(3))
    text = f"gemm:{m},{n},{k}{draw.choice(('', '', ',transpose_b=true', ',transpose_a=true'))}"
    return text + _epilogue(draw, "bias", "bias+relu", "bias+gelu"), float(m) * n * k


def _gemm_few_rows(draw: random.Random) -> Drawn:
    m, n, k = draw.randint(1, 16), draw.choice(_WIDTHS), draw.choice(_WIDTHS)
    if draw.random() < 0.3:
        m, n = n, m  # few columns instead
    text = f"gemm:{m},{n},{k}{draw.choice(('', ',transpose_b=true'))}"
    return text + _epilogue(draw, "bias", "bias+gelu"), float(m) * n * k


def _gemm_long(draw: random.Random) -> Drawn:
    m, n = draw.choice((1, 3, 8, 16, 31, 64)), draw.choice((1, 4, 10, 17, 32, 64, 97))
    k = draw.choice((8192, 10007, 16384, 25088, 32768, 50257, 65536, 100003))
    return f"gemm:{m},{n},{k}", float(m) * n * k


def _projection(draw: random.Random) -> Drawn:
    m, n, k = draw.choice(_TOKENS), draw.choice(_WIDTHS), draw.choice(_WIDTHS)
    text = f"gemm:{m},{n},{k}{draw.choice(('', ',transpose_b=true'))}"
    return text + _epilogue(draw, "bias", "bias+gelu", "bias+residual"), float(m) * n * k


def _attention(draw: random.Random) -> Drawn:
    heads = draw.choice((3, 6, 8, 12, 16, 24, 32, 40))
    tokens = draw.choice(_TOKENS[4:])
    queries, width = draw.choice((1, tokens, tokens)), draw.choice((32, 40, 64, 80, 128))
    if draw.random() < 0.5:
        text = f"gemm:{queries},{tokens},{width},batch={heads},transpose_b=true"
    else:
        text = f"gemm:{queries},{width},{tokens},batch={heads}"
    return text, float(heads) * queries * tokens * width


# ---------------------------------------------------------------- convolutions


def _conv2d(draw: random.Random) -> Drawn:
    size, ci, co = _extent(draw, 7, 128), _extent(draw, 8, 768), _extent(draw, 8, 768)
    batch, kernel = draw.choice((1, 1, 2, 3, 8)), draw.choice((1, 1, 3, 3, 5))
    stride = draw.choice((1, 1, 2))
    text = f"conv2d:{batch},{size},{size},{ci},{co},{kernel}"
    text += _options(stride=stride, padding=kernel // 2)
    text += draw.choice(("", "", ",layout=NCHW")) or _epilogue(draw, "relu", "bias+relu")
    return text, batch * (size / stride * kernel) ** 2 * ci * co


def _conv2d_uneven(draw: random.Random) -> Drawn:
    height, width = _extent(draw, 7, 128), _extent(draw, 7, 128)
    ci, co = _extent(draw, 8, 256), _extent(draw, 8, 256)
    kernel, padding = draw.choice((("1x7", "0x3"), ("7x1", "3x0"), ("1x3", "0x1"), ("3", "0")))
    text = f"conv2d:1,{height},{width},{ci},{co},{kernel},padding={padding}"
    return text + _epilogue(draw, "bias+relu"), height * width * 9.0 * ci * co


def _first_layer(draw: random.Random) -> Drawn:
    size, batch = draw.choice((96, 112, 160, 224, 299)), draw.choice((1, 2, 4))
    kernel, stride = draw.choice(((7, 2), (3, 1), (3, 2), (4, 4), (14, 14), (16, 16), (11, 4)))
    co, ci = draw.choice((24, 32, 48, 64, 96, 192, 768)), draw.choice((1, 3, 3, 3, 4))
    padding = kernel // 2 if kernel % 2 else 0
    text = f"conv2d:{batch},{size},{size},{ci},{co},{kernel}"
    text += _options(stride=stride, padding=padding) + _epilogue(draw, "bias+relu")
    return text, batch * (size / stride * kernel) ** 2 * ci * co


def _few_channels(draw: random.Random) -> Drawn:
    size, ci = _extent(draw, 13, 256), _extent(draw, 16, 512)
    co, kernel = draw.randint(1, 7), draw.choice((1, 3, 3, 7))
    text = f"conv2d:{draw.choice((1, 1, 4))},{size},{size},{ci},{co},{kernel}"
    return text + _options(padding=kernel // 2), 4.0 * (size * kernel) ** 2 * ci * co


def _dilated(draw: random.Random) -> Drawn:
    size, ci, co = _extent(draw, 16, 97), _extent(draw, 16, 512), _extent(draw, 16, 512)
    dilation, batch = draw.choice((2, 2, 3, 4, 6)), draw.choice((1, 1, 2))
    text = f"conv2d:{batch},{size},{size},{ci},{co},3"
    text += _options(padding=dilation, dilation=dilation) + _epilogue(draw, "relu")
    return text, batch * size**2 * 9.0 * ci * co


def _grouped(draw: random.Random) -> Drawn:
    groups, each = draw.choice((2, 4, 8, 16, 32)), draw.choice((3, 4, 5, 8, 16, 24, 32))
    size, stride = _extent(draw, 7, 64), draw.choice((1, 1, 2))
    kernel, batch = draw.choice((1, 3, 3, 5)), draw.choice((1, 2, 8))
    channels = groups * each
    text = f"conv2d:{batch},{size},{size},{channels},{channels},{kernel}"
    text += _options(stride=stride, padding=kernel // 2, groups=groups)
    return text, batch * (size * kernel) ** 2 * channels * each


def _depthwise(draw: random.Random) -> Drawn:
    size, channels = _extent(draw, 7, 128), _extent(draw, 16, 1024)
    batch, kernel = draw.choice((1, 1, 4, 16)), draw.choice((3, 3, 5, 7))
    dilation, stride = draw.choice(((1, 1), (1, 1), (1, 2), (2, 1)))
    text = f"depthwise_conv2d:{batch},{size},{size},{channels},{kernel}"
    text += _options(stride=stride, padding=dilation * (kernel // 2), dilation=dilation)
    text += draw.choice(("", "", ",multiplier=2", ",layout=NCHW", ",epilogue=bias+relu"))
    return text, 2.0 * batch * (size * kernel) ** 2 * channels


def _conv1d(draw: random.Random) -> Drawn:
    width, ci, co = _extent(draw, 64, 2048), _extent(draw, 8, 512), _extent(draw, 8, 512)
    kernel, batch = draw.choice((1, 3, 5, 9, 15)), draw.choice((1, 2, 8))
    dilation, stride = draw.choice(((1, 1), (1, 2), (2, 1), (4, 1)))
    text = f"conv1d:{batch},{width},{ci},{co},{kernel}"
    text += _options(stride=stride, padding=dilation * (kernel // 2), dilation=dilation)
    return text + draw.choice(("", ",layout=NCW")), float(batch) * width * kernel * ci * co


def _conv3d(draw: random.Random) -> Drawn:
    frames, size = draw.choice((3, 4, 7, 8, 16)), _extent(draw, 7, 48)
    ci, co = _extent(draw, 3, 128), _extent(draw, 8, 128)
    kernel, stride = draw.choice((("3", 1), ("3", 2), ("1", 1), ("1x3x3", 1), ("3x1x1", 1)))
    padding = {"3": "1", "1": "0", "1x3x3": "0x1x1", "3x1x1": "1x0x0"}[kernel]
    text = f"conv3d:1,{frames},{size},{size},{ci},{co},{kernel}{_options(stride=stride)}"
    return f"{text},padding={padding}", frames * size**2 * 27.0 * ci * co


def _transposed(draw: random.Random) -> Drawn:
    size, ci = _extent(draw, 4, 67), _extent(draw, 8, 512)
    co, batch = draw.choice((1, 3, 3, 21, _extent(draw, 8, 256))), draw.choice((1, 1, 4))
    window = draw.choice(("4", "2,padding=0", "3,output_padding=1", "5,padding=2", "3,stride=1"))
    text = f"conv_transpose2d:{batch},{size},{size},{ci},{co},{window}"
    return text + draw.choice(("", "", ",layout=NCHW")), batch * size**2 * 25.0 * ci * co


# ---------------------------------------------------------------- rows, sums, elements


def _rows(draw: random.Random) -> Drawn:
    rows = draw.choice((1, 3, _extent(draw, 7, 2048), 16 * _extent(draw, 7, 512)))
    width = draw.choice((_extent(draw, 31, 2048), _extent(draw, 31, 2048), *_WIDTHS[-4:], 50257))
    operator = draw.choice(("softmax", "layer_norm", "rms_norm"))
    return f"{operator}:{rows}x{width}", 4.0 * rows * width


def _middle_rows(draw: random.Random) -> Drawn:
    shape = [draw.choice((1, 3, 8)), _extent(draw, 13, 512), _extent(draw, 13, 257)]
    operator = draw.choice(
        ("softmax:{},axis=1", "layer_norm:{},axes=1+2", "softmax:{}", "rms_norm:{}")
    )
    return operator.format("x".join(map(str, shape))), 4.0 * math.prod(shape)


def _long_sum(draw: random.Random) -> Drawn:
    kind = draw.choice(("", "", ",kind=max", ",kind=mean", ",kind=min"))
    rows = draw.choice((1, 1, 2, 5, 16, 31))
    width = draw.choice((2**18, 2**20, 2**21, 2**22, 2**23, 1000003, 3145739, 524287))
    return f"reduce:{rows}x{width},axes=1{kind}", float(rows) * width


def _column_sum(draw: random.Random) -> Drawn:
    kind = draw.choice(("", "", ",kind=max", ",kind=mean"))
    rows, columns = _extent(draw, 49, 2048) * draw.choice((1, 4, 16)), _extent(draw, 7, 2048)
    if draw.random() < 0.5:
        return f"reduce:{rows}x{columns},axes=0{kind}", float(rows) * columns
    batch, columns = draw.choice((2, 8, 32)), min(columns, 512)
    return f"reduce:{batch}x{rows}x{columns},axes={draw.choice(('1', '0+2'))}{kind}", float(
        batch * rows * columns
    )


def _elementwise(draw: random.Random) -> Drawn:
    rows, width = _extent(draw, 7, 2048) * draw.choice((1, 4)), _extent(draw, 31, 2048)
    ops = [
        draw.choice(_UNARY) if draw.random() < 0.6 else draw.choice(_BINARY)
        for _ in range(draw.randint(1, 3))
    ]
    return f"elementwise:{rows}x{width},ops={'+'.join(ops)}", 4.0 * rows * width


def _pool(draw: random.Random) -> Drawn:
    size, channels, batch = _extent(draw, 13, 128), _extent(draw, 16, 768), draw.choice((1, 4))
    if draw.random() < 0.25:
        return f"global_pool2d:{batch},{size},{size},{channels}", batch * size**2 * channels
    kernel, stride, padding = draw.choice(((3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 2, 2)))
    kind = draw.choice(("max", "avg"))
    text = f"pool2d:{batch},{size},{size},{channels},{kernel},kind={kind},stride={stride}"
    return f"{text},padding={padding}", batch * (size * kernel) ** 2.0 * channels


_MAKERS: tuple[Callable[[random.Random], Drawn], ...] = (
    _gemm, _conv2d, _gemm_few_rows, _rows, _projection, _transposed, _attention, _dilated, _gemm,
    _long_sum, _conv2d, _grouped, _projection, _depthwise, _few_channels, _elementwise,
    _gemm_long, _first_layer, _conv2d_uneven, _conv3d, _column_sum, _conv1d, _middle_rows, _pool,
)  # fmt: skip
