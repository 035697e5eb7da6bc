"""Contractions: matrix products, convolutions of all kinds, alone and with what follows them."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import te, topi

from tests.corpus.programs.build import Builder, apply, gelu, tensor

_IMAGE = (1, 8, 14, 15)


def programs() -> dict[str, Builder]:
    """Name -> builder."""
    return _products() | _fused_products() | _convolutions() | _transposed() | _fused()


def _products() -> dict[str, Builder]:
    nn = topi.nn
    result = {
        "dense": apply(nn.dense, (33, 70), (55, 70)),
        "dense_bias": apply(nn.dense, (33, 70), (55, 70), (55,)),
        "dense_prime": apply(nn.dense, (197, 61), (101, 61)),
        "dense_one_row": apply(nn.dense, (1, 128), (96, 128)),
        "matmul": apply(topi.matmul, (24, 40), (40, 56)),
        "matmul_ta": apply(topi.matmul, (40, 24), (40, 56), transp_a=True),
        "batch_matmul": apply(nn.batch_matmul, (3, 24, 40), (3, 24, 40)),
        "tensordot": apply(topi.tensordot, (6, 7, 8), (7, 8, 9), axes=2),
        "einsum": apply(lambda a, b: topi.einsum("bij,bjk->bik", a, b), (2, 9, 10), (2, 10, 12)),
        "outer_product": apply(lambda a, b: topi.einsum("i,j->ij", a, b), (40,), (70,)),
        "inner_product": apply(lambda a, b: topi.einsum("i,i->", a, b), (1000,), (1000,)),
    }
    for dtype in ("float16", "bfloat16", "int8", "int32", "float64"):
        result[f"dense_{dtype}"] = apply(
            topi.nn.dense,
            (32, 64),
            (48, 64),
            dtype=dtype,
            out_dtype="int32" if dtype == "int8" else dtype,
        )
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        result[f"dense_{dtype}"] = apply(_summed_in_float32, (32, 64), (48, 64), dtype=dtype)
    result["dense_bfloat16_in_float32"] = apply(
        _summed_in_float32, (33, 47), (29, 47), dtype="bfloat16"
    )
    return result


def _summed_in_float32(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    wide = topi.nn.dense(a, b, out_dtype="float32")
    return topi.cast(topi.nn.relu(wide), "bfloat16")


def _fused_products() -> dict[str, Builder]:
    def then(*steps: Any) -> Any:
        def function(a: te.Tensor, b: te.Tensor) -> te.Tensor:
            value = topi.nn.dense(a, b)
            for step in steps:
                value = step(value)
            return value

        return apply(function, (32, 64), (48, 64))

    def shared(a: te.Tensor, b: te.Tensor, c: te.Tensor) -> te.Tensor:
        return topi.add(topi.nn.dense(a, b), topi.nn.dense(a, c))

    def mlp(a: te.Tensor, b: te.Tensor, c: te.Tensor) -> te.Tensor:
        return topi.nn.dense(topi.nn.relu(topi.nn.dense(a, b)), c)

    def attention(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> te.Tensor:
        scores = topi.nn.softmax(topi.nn.batch_matmul(q, k), axis=-1)
        return topi.nn.batch_matmul(scores, v)

    return {
        "dense_relu": then(topi.nn.relu),
        "dense_gelu": then(gelu),
        "dense_softmax": then(lambda x: topi.nn.softmax(x, axis=-1)),
        "dense_log_softmax": then(lambda x: topi.nn.log_softmax(x, axis=-1)),
        "dense_sum": then(lambda x: topi.sum(x, axis=1)),
        "dense_reshape": then(lambda x: topi.reshape(x, (4, 8, 48))),
        "dense_transpose": then(topi.transpose),
        "dense_reshape_transpose": then(
            lambda x: topi.transpose(topi.reshape(x, (4, 8, 6, 8)), (0, 2, 1, 3))
        ),
        "dense_cast": then(lambda x: topi.cast(x, "float16")),
        "dense_twice_shared": apply(shared, (32, 64), (48, 64), (48, 64)),
        "dense_of_itself": apply(lambda a: topi.nn.dense(a, a), (32, 64)),
        "mlp": apply(mlp, (32, 64), (48, 64), (20, 48)),
        "attention": apply(attention, (2, 16, 24), (2, 20, 24), (2, 24, 20)),
    }


def _convolutions() -> dict[str, Builder]:
    nn = topi.nn
    plain = {"stride": 1, "padding": 1, "dilation": 1}
    return {
        "conv1d": apply(nn.conv1d_ncw, (1, 8, 31), (12, 8, 3), strides=1, padding=1, dilation=1),
        "conv2d_nchw": apply(nn.conv2d_nchw, _IMAGE, (12, 8, 3, 3), **plain),
        "conv2d_nhwc": apply(nn.conv2d_nhwc, (1, 14, 15, 8), (3, 3, 8, 12), **plain),
        "conv2d_hwcn": apply(nn.conv2d_hwcn, (14, 15, 8, 2), (3, 3, 8, 12), **plain),
        "conv2d_stride": apply(
            nn.conv2d_nchw, _IMAGE, (12, 8, 3, 3), stride=2, padding=1, dilation=1
        ),
        "conv2d_dilated": apply(
            nn.conv2d_nchw, _IMAGE, (12, 8, 3, 3), stride=1, padding=2, dilation=2
        ),
        "conv2d_1x1": apply(
            nn.conv2d_nchw, _IMAGE, (12, 8, 1, 1), stride=1, padding=0, dilation=1
        ),
        "group_conv2d": apply(nn.group_conv2d_nchw, _IMAGE, (12, 4, 3, 3), groups=2, **plain),
        "depthwise": apply(nn.depthwise_conv2d_nchw, _IMAGE, (8, 1, 3, 3), **plain),
        "depthwise_nhwc": apply(nn.depthwise_conv2d_nhwc, (1, 14, 15, 8), (3, 3, 8, 1), **plain),
        "conv3d": apply(nn.conv3d_ncdhw, (1, 4, 6, 7, 8), (6, 4, 3, 3, 3), stride=1, padding=1,
                        dilation=1, groups=1),
        "conv2d_NCHWc": apply(_blocked, (1, 2, 14, 15, 4), (3, 2, 3, 3, 4, 4)),
        "conv2d_f16": apply(nn.conv2d_nchw, _IMAGE, (12, 8, 3, 3), dtype="float16", **plain),
        "winograd_nhwc": apply(nn.conv2d_winograd_nhwc, (1, 14, 14, 8), (3, 3, 8, 12),
                               strides=1, padding=1, dilation=1, out_dtype="float32"),
        "winograd_nchw": apply(nn.conv2d_winograd_nchw, (1, 8, 12, 12), (12, 8, 3, 3),
                               strides=1, padding=1, dilation=1, out_dtype="float32"),
        "correlation": apply(nn.correlation_nchw, (1, 4, 9, 9), (1, 4, 9, 9), kernel_size=1,
                             max_displacement=2, stride1=1, stride2=1, padding=2,
                             is_multiply=True),
        "dilation2d": apply(topi.image.dilation2d_nchw, (1, 4, 9, 9), (4, 3, 3), stride=1,
                            padding=1, dilations=1),
    }  # fmt: skip


def _blocked(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    with tvm.target.Target("llvm"):
        return topi.nn.conv2d_NCHWc(x, w, 1, 1, 1, "NCHW4c", "NCHW4c")


def _transposed() -> dict[str, Builder]:
    nn = topi.nn
    return {
        "conv1d_transpose": apply(nn.conv1d_transpose_ncw, (1, 8, 15), (8, 6, 4), stride=2,
                                  padding=1, out_dtype="float32", output_padding=0),
        "conv2d_transpose": apply(nn.conv2d_transpose_nchw, (1, 8, 7, 9), (8, 6, 4, 4),
                                  strides=(2, 2), padding=(1, 1), out_dtype="float32",
                                  output_padding=(0, 0)),
        "conv2d_transpose_odd": apply(nn.conv2d_transpose_nchw, (1, 8, 7, 9), (8, 6, 3, 3),
                                      strides=(2, 2), padding=(1, 1), out_dtype="float32",
                                      output_padding=(1, 1)),
        "group_conv2d_transpose": apply(nn.group_conv2d_transpose_nchw, (1, 8, 7, 9),
                                        (8, 3, 4, 4), stride=(2, 2), padding=(1, 1),
                                        out_dtype="float32", output_padding=(0, 0), groups=2),
        "group_conv2d_transpose_3": apply(nn.group_conv2d_transpose_nchw, (1, 12, 9, 9),
                                          (12, 5, 3, 3), stride=(2, 2), padding=(1, 1),
                                          out_dtype="float32", output_padding=(1, 1), groups=3),
        "conv3d_transpose": apply(nn.conv3d_transpose_ncdhw, (1, 4, 4, 5, 6), (4, 3, 3, 3, 3),
                                  strides=(2, 2, 2), padding=(1, 1, 1), out_dtype="float32",
                                  output_padding=(0, 0, 0)),
    }  # fmt: skip


def _fused() -> dict[str, Builder]:
    nn = topi.nn

    def conv(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        return nn.conv2d_nchw(x, w, 1, 1, 1)

    def two(x: te.Tensor, v: te.Tensor, w: te.Tensor) -> te.Tensor:
        return conv(nn.relu(conv(x, v)), w)

    def residual(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        return nn.relu(topi.add(conv(x, w), x))

    def normalised() -> list[te.Tensor]:
        x, w = tensor(*_IMAGE), tensor(8, 8, 3, 3, name="w")
        scale, shift = tensor(8, name="scale"), tensor(8, name="shift")
        y = nn.relu(nn.scale_shift_nchw(conv(x, w), scale, shift))
        return [x, w, scale, shift, y]

    return {
        "conv_conv": apply(two, _IMAGE, (12, 8, 3, 3), (8, 12, 3, 3)),
        "conv_residual": apply(residual, _IMAGE, (8, 8, 3, 3)),
        "conv_scale_relu": normalised,
        "conv_pool": apply(
            lambda x, w: nn.pool2d(conv(x, w), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max"),
            (1, 8, 14, 14),
            (12, 8, 3, 3),
        ),
        "conv_flatten": apply(lambda x, w: nn.flatten(conv(x, w)), _IMAGE, (12, 8, 3, 3)),
        "conv_concatenate": apply(
            lambda x, w: topi.concatenate([conv(x, w), x], axis=1), _IMAGE, (12, 8, 3, 3)
        ),
    }
