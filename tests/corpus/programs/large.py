"""Programs large enough that they have variants (`felix.tir.design_space.variants`)."""

from __future__ import annotations

from typing import Any

from tvm import te, topi

from tests.corpus.programs.build import Builder, apply, chain, tensor


def programs() -> dict[str, Builder]:
    """Name -> builder."""
    plain = {"stride": 1, "padding": 1, "dilation": 1}
    transposed = {"strides": (2, 2), "padding": (1, 1), "out_dtype": "float32"}
    every: dict[str, Builder] = {
        "dense_primes": apply(topi.nn.dense, (67, 509), (67, 509)),
        "dense_row": apply(topi.nn.dense, (1, 1024), (1031, 1024)),
        "dense_long": apply(topi.nn.dense, (16, 8192), (32, 8192)),
        "matmul_row": apply(topi.matmul, (1, 1024), (1024, 1031)),
        "matmul_tokens": apply(topi.matmul, (197, 64), (64, 256)),
        "matmul_int8": apply(
            topi.nn.matmul, (67, 509), (509, 67), dtype="int8", out_dtype="int32"
        ),
        "batch_matmul": apply(topi.nn.batch_matmul, (2, 32, 256), (2, 197, 256)),
        "conv2d_primes": apply(topi.nn.conv2d_nchw, (1, 37, 17, 14), (31, 37, 3, 3), **plain),
        "conv2d_few_cells": apply(topi.nn.conv2d_nhwc, (1, 7, 7, 64), (3, 3, 64, 64), **plain),
        "conv2d_first": apply(topi.nn.conv2d_nchw, (1, 16, 14, 14), (64, 16, 3, 3), **plain),
        "conv1d_rows": _conv1d_of_rows,
        "conv1d_of_data": _conv1d_of_data,
        "conv2d_transpose": apply(
            topi.nn.conv2d_transpose_nchw,
            (1, 32, 9, 9),
            (32, 16, 4, 4),
            output_padding=(0, 0),
            **transposed,
        ),
        "conv2d_transpose_odd": apply(
            topi.nn.conv2d_transpose_nchw,
            (1, 32, 9, 9),
            (32, 16, 3, 3),
            output_padding=(1, 1),
            **transposed,
        ),
        "sum_of_all": apply(topi.sum, (48, 2**14)),
        "sum_of_rows": apply(lambda x: topi.sum(x, axis=1), (6, 2**17)),
        "sum_of_columns": apply(lambda x: topi.sum(x, axis=0), (3001, 176)),
        "max_of_the_middle": apply(lambda x: topi.max(x, axis=1), (2, 3001, 99)),
        "argmax_of_rows": apply(lambda x: topi.argmax(x, axis=1), (6, 2**17)),
        "softmax_of_short_rows": chain((6144, 128), topi.nn.softmax),
        "layer_norm": apply(
            lambda x, g, b: topi.nn.layer_norm(x, g, b, [1], 1e-5), (1536, 384), (384,), (384,)
        ),
        "stencil_of_7_points": _stencil,
        "neighbours": _neighbours,
    }
    return {f"large_{name}": builder for name, builder in every.items()}


def _conv1d_of_rows() -> list[te.Tensor]:
    """Windows along rows that are chosen by nothing else, with channels last."""
    x, w = tensor(31, 34, 32), tensor(3, 32, 64, name="w")
    return [x, w, _windows(x, lambda n, r, k, c: w[r, k, c])]


def _conv1d_of_data() -> list[te.Tensor]:
    """Each row has the weights that an index says."""
    x, w = tensor(31, 34, 32), tensor(8, 3, 32, 64, name="w")
    which = tensor(31, name="which", dtype="int32")
    chosen = _windows(x, lambda n, r, k, c: w[which[n] % 8, r, k, c])
    return [x, w, which, chosen]


def _windows(x: te.Tensor, weight: Any) -> te.Tensor:
    r, k = te.reduce_axis((0, 3), "r"), te.reduce_axis((0, 32), "k")
    return te.compute(
        (31, 32, 64),
        lambda n, i, c: te.sum(x[n, i + r, k] * weight(n, r, k, c), axis=[r, k]),
        name="windows",
    )


def _stencil() -> list[te.Tensor]:
    x = tensor(130, 130, 130)

    def value(i: Any, j: Any, k: Any) -> Any:
        sides = x[i, j + 1, k + 1] + x[i + 2, j + 1, k + 1] + x[i + 1, j, k + 1]
        return (
            sides
            + x[i + 1, j + 2, k + 1]
            + x[i + 1, j + 1, k]
            + x[i + 1, j + 1, k + 2]
            - (6.0 * x[i + 1, j + 1, k + 1])
        )

    return [x, te.compute((128, 128, 128), value, name="stencil")]


def _neighbours() -> list[te.Tensor]:
    x = tensor(300, 301)
    return [x, te.compute((300, 300), lambda i, j: x[i, j] + x[i, j + 1], name="pairs")]
