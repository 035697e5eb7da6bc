"""Convolutions are recognised as products with gathered operands, or are said not to be.

Each recognised problem is computed by numpy from its windows and strides, and compared with what
the program itself gives when TVM builds it.
"""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import pytest
import torch
import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.frontend.torch import from_exported_program

import felix
from felix import workloads
from felix.templates.gemm.problem import Window
from tests.support import share
from tests.support.templates import recognised
from tests.support.templates.recognised import problem, program


def _conv(*arguments: Any, **options: Any) -> tvm.IRModule:
    return recognised.convolution(*arguments, **options).mod


def _workloads() -> dict[str, tvm.IRModule]:
    return {
        "plain": _conv(2, 2, 7, 8, 4, 6, 3),
        "padded": _conv(2, 2, 7, 8, 4, 6, 3, padding=1, dtype="float16"),
        "strided": _conv(2, 2, 9, 8, 4, 6, 3, padding=1, stride=2, dtype="bfloat16"),
        "dilated": _conv(2, 1, 9, 11, 4, 6, 3, padding=2, dilation=2),
        "uneven": _conv(2, 2, 9, 6, 5, 7, (3, 2), padding=(0, 1), stride=(2, 1), dilation=(1, 3)),
        "fused": _conv(2, 2, 7, 7, 4, 6, 3, padding=1, epilogue=("bias", "gelu", "residual")),
        "groups": _conv(2, 2, 7, 7, 8, 6, 3, padding=1, groups=2, epilogue=("bias", "residual")),
        "one_channel": _conv(2, 2, 9, 9, 1, 6, 3, padding=1),
        "one_row": _conv(2, 2, 1, 9, 4, 6, 3, padding=1),
        "one_output_row": _conv(2, 2, 7, 9, 4, 6, (7, 3)),
        "strided_1x1": _conv(2, 2, 8, 8, 4, 6, 1, stride=2),
        "padded_1x1": _conv(2, 2, 5, 5, 4, 6, 1, padding=1),
        "line": _conv(1, 3, 17, 4, 6, 5, stride=2, padding=3, dilation=2),
        "volume": _conv(3, 2, 5, 6, 7, 4, 6, 3, stride=2, padding=1, epilogue=("bias",)),
        "frames": _conv(3, 2, 5, 6, 7, 4, 6, (1, 3, 3), padding=(0, 1, 1)),
        "time": _conv(3, 2, 5, 6, 7, 4, 6, (3, 1, 1), padding=(1, 0, 0)),
        "int8": _conv(2, 2, 7, 7, 4, 6, 3, padding=1, dtype="int8"),
        "first": _conv(2, 2, 7, 7, 4, 6, 3, padding=1, layout="NCHW", epilogue=("bias", "relu")),
        "first_groups": _conv(2, 1, 7, 7, 8, 6, 3, padding=1, layout="NCHW", groups=2),
        "first_images_and_groups": _conv(2, 3, 7, 7, 8, 6, 3, layout="NCHW", groups=2),
        "first_line": _conv(1, 2, 17, 4, 6, 3, padding=1, layout="NCW"),
        "first_1x1": _conv(2, 2, 8, 8, 4, 6, 1, stride=2, layout="NCHW"),
    }


class _Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(4, 8, 3, padding=1, stride=2)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return torch.nn.functional.silu(self.second(x)) + x


def _imported() -> dict[str, tvm.IRModule]:
    """As PyTorch's layers are imported: one image, channels first."""
    tasks = felix.extract_tasks(_Layers(), (torch.zeros(1, 4, 9, 9),), "llvm")
    return {f"torch_{task.name}": task.mod for task in tasks if "conv2d" in task.name}


def _channels_last() -> dict[str, tvm.IRModule]:
    """The same layers as Relax's ConvertLayout makes them."""
    exported = torch.export.export(_Layers(), (torch.zeros(2, 4, 9, 9),))
    mod = from_exported_program(exported, keep_params_as_input=True)
    passes = [
        relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    for each in passes:
        mod = each(mod)
    functions = {var.name_hint: func for var, func in mod.functions_items() if "conv" in str(var)}
    return {
        f"last_{name}": felix.Task.from_prim_func(func, "llvm", name=name).mod
        for name, func in functions.items()
    }


def _padded(condition: Any, value: float = 0.0, move: int = 1) -> tvm.IRModule:
    """A 1-D convolution of 8 cells whose padding has a condition of the padded index."""
    x, w = te.placeholder((2, 8, 4), name="x"), te.placeholder((3, 4, 5), name="w")
    zero = tirx.const(value, "float32")
    cell = te.compute(
        (2, 10, 4),
        lambda n, i, c: tirx.if_then_else(
            tirx.all(i >= move, i < 8 + move, condition(i, x, n)), x[n, i - move, c], zero
        ),
        "pad",
    )
    r, c = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 4), name="c")
    y = te.compute(
        (2, 8, 5), lambda n, i, j: te.sum(cell[n, i + r, c] * w[r, c, j], axis=[r, c]), "y"
    )
    return program(x, w, y)


def _padded_at(axis: int) -> tvm.IRModule:
    """A convolution along the second dimension of [8, 9, 3], of which one is filled up."""
    x, w = te.placeholder((8, 9, 3), name="x"), te.placeholder((3, 4, 5), name="w")
    shape = [8, 9, 4 if axis == 2 else 3]
    shape[axis] += 2 if axis != 2 else 0
    limits = (8, 9, 3)
    cell = te.compute(
        shape,
        lambda *at: tirx.if_then_else(at[axis] < limits[axis], x[at], tirx.const(0.0, "float32")),
        "pad",
    )
    r, c = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, shape[2]), name="c")
    y = te.compute(
        (shape[0], shape[1] - 2, 5),
        lambda i, p, j: te.sum(cell[i, p + r, c] * w[r, c, j], axis=[r, c]),
        "y",
    )
    return program(x, w, y)


def _diagonal() -> tvm.IRModule:
    """Both dimensions of the data slide together."""
    x, w = te.placeholder((8, 8, 4), name="x"), te.placeholder((3, 4, 5), name="w")
    r, c = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 4), name="c")
    y = te.compute((6, 5), lambda i, j: te.sum(x[i + r, i + r, c] * w[r, c, j], axis=[r, c]), "y")
    return program(x, w, y)


def _padded_groups() -> tvm.IRModule:
    """The channels of all groups are filled up behind the last one."""
    x, w = te.placeholder((9, 7), name="x"), te.placeholder((2, 3, 4, 5), name="w")
    cell = te.compute(
        (9, 8), lambda i, c: tirx.if_then_else(c < 7, x[i, c], tirx.const(0.0, "float32")), "pad"
    )
    r, c = te.reduce_axis((0, 3), name="r"), te.reduce_axis((0, 4), name="c")
    y = te.compute(
        (2, 7, 5), lambda g, i, j: te.sum(cell[i + r, g * 4 + c] * w[g, r, c, j], axis=[r, c]), "y"
    )
    return program(x, w, y)


def _turned_result() -> tvm.IRModule:
    """Pixels of the result are not in the order of any rows."""
    x, w = te.placeholder((2, 8, 9, 4), name="x"), te.placeholder((3, 3, 4, 5), name="w")
    y = topi.nn.conv2d_nhwc(x, w, 1, 1, 1)
    return program(x, w, topi.transpose(y, (2, 0, 1, 3)))


def _everywhere(i: Any, x: te.Tensor, n: Any) -> Any:
    return i >= 0


@functools.cache
def programs() -> dict[str, tvm.IRModule]:
    """Convolutions of all forms by their names."""
    return {
        **_workloads(),
        **_imported(),
        **_channels_last(),
        "one_side_without_images": _padded_at(0),
        "one_side": _padded_at(1),
        "padded_channels": _padded_at(2),
    }


def test_problems_compute_what_the_programs_compute(tmp_path: pathlib.Path) -> None:
    chosen = {name: programs()[name] for name in share.of(programs(), 8)}
    recognised.check(chosen, tmp_path, {})
    for name, mod in programs().items():
        made = problem(mod)
        assert made.a.gather or made.b.gather, name


def test_windows_of_a_convolution() -> None:
    made = problem(programs()["uneven"])
    assert (made.batch, made.m, made.n, made.k) == (1, 2 * 4 * 5, 7, 3 * 2 * 5)
    assert made.a.gather is not None and made.b.gather is None
    assert (made.a.gather.images, made.a.gather.image_stride) == (2, 9 * 6 * 5)
    assert made.a.gather.windows == (Window(4, 3, 2, 1, 0, 9, 30), Window(5, 2, 1, 3, 1, 6, 5))
    assert (made.a.gather.channels, made.a.gather.channel_stride) == (5, 1)
    assert made.b.strides == (0, 1, 7)


def test_groups_are_batches() -> None:
    made = problem(programs()["groups"])
    assert (made.batch, made.m, made.n, made.k) == (2, 98, 3, 36)
    assert (made.a.strides, made.b.strides) == ((4, 0, 0), (3, 1, 6))
    assert [read.strides for read in made.epilogue.reads] == [(3, 0, 1), (3, 6, 1)]


def test_weights_of_channels_last_are_one_axis_of_k() -> None:
    (name,) = (name for name in programs() if name.startswith("last_") and "add_relu" in name)
    made = problem(programs()[name])
    assert made.b.gather is None and made.b.strides == (0, 36, 1)


def test_channels_first_has_pixels_as_columns_and_images_as_batches() -> None:
    made = problem(programs()["first"])
    assert made.a.gather is not None and made.b.gather is not None
    assert (made.batch, made.m, made.n, made.k) == (2, 6, 49, 36)
    assert (made.b.strides, made.b.gather.channel_stride) == ((196, 0, 0), 49)
    assert (made.a.strides, made.a.gather.channel_stride) == ((0, 0, 0), 9)
    assert made.output.strides == (6 * 49, 49, 1)


def test_unpadded_1x1_is_an_ordinary_product() -> None:
    made = problem(_conv(2, 2, 8, 8, 4, 6, 1))
    assert made.a.gather is None and (made.m, made.n, made.k) == (128, 6, 4)


@pytest.mark.parametrize(
    "mod, reason",
    [
        (_padded(lambda i, x, n: i >= 2), "0 elsewhere"),
        (_padded(lambda i, x, n: i < 8), "0 elsewhere"),
        (_padded(lambda i, x, n: x[n, 0, 0] > 0), "no bound of its indices"),
        (_padded(lambda i, x, n: n < 1), "0 elsewhere"),
        (_padded(lambda i, x, n: tirx.any(i < 4, i > 6)), "no bound of its indices"),
        (_padded(_everywhere, value=1.0), "computed before"),
        (_padded(lambda i, x, n: tirx.floormod(i, 2).equal(0)), "zeros between them"),
        (workloads.parse("depthwise_conv2d:1,7,7,8,3,padding=1", "llvm").mod, "one channel"),
        (_turned_result(), "pixel by pixel"),
        (_diagonal(), "no windows"),
        (_padded_groups(), "no windows"),
        (_conv(2, 2, 7, 7, 8, 4, 3, groups=4), "no axis along which it is contiguous"),
    ],
)
def test_what_is_not_recognised_says_why(mod: tvm.IRModule, reason: str) -> None:
    assert reason in recognised.reason(mod)


def test_padding_of_one_side_alone() -> None:
    made = problem(_padded(_everywhere, move=2))
    assert made.a.gather is not None
    assert made.a.gather.windows == (Window(8, 3, 1, 1, 2, 8, 4),)


def test_pooling_is_no_product() -> None:
    x = te.placeholder((2, 8, 8, 4), name="x")
    pooled = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "avg", layout="NHWC")
    assert "products of two tensors" in recognised.reason(program(x, pooled))
