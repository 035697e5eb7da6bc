"""Small instances of every operator and variant, for checks that must cover them all.

Each is a few thousand to a few hundred thousand float operations, with the extents that break
things: 1, primes, 197, strides, dilation, groups, reductions over every position.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from felix import task
from felix.workloads import common, convolution, matmul, pointwise, reduction, transposed


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """One operator with all its parameters; call it with a target to build the task."""

    operator: str
    function: Callable[..., task.Task]
    params: Mapping[str, Any]

    def __call__(self, target: common.TargetLike = "llvm") -> task.Task:
        """The task of this instance for a target."""
        return self.function(**self.params, target=target)


def _instance(function: Callable[..., task.Task], *args: Any, **kwargs: Any) -> Instance:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    params = {name: value for name, value in bound.arguments.items() if name != "target"}
    return Instance(function.__name__, function, params)


_gemm = functools.partial(_instance, matmul.gemm)
_conv2d = functools.partial(_instance, convolution.conv2d)
_pool2d = functools.partial(_instance, reduction.pool2d)
_reduce = functools.partial(_instance, reduction.reduce)
_elementwise = functools.partial(_instance, pointwise.elementwise)

#: name -> instance; `CHECK_SUITE[name](target)` builds the task
CHECK_SUITE: Mapping[str, Instance] = {
    "gemm": _gemm(64, 48, 32),
    "gemm_primes": _gemm(37, 53, 29),
    "gemm_197": _gemm(197, 64, 96),
    "gemm_vector": _gemm(1, 128, 96),
    "gemm_inner_1": _gemm(32, 48, 1),
    "gemm_ta": _gemm(32, 64, 48, transpose_a=True),
    "gemm_tb": _gemm(32, 64, 48, transpose_b=True),
    "gemm_ta_tb": _gemm(32, 64, 48, transpose_a=True, transpose_b=True),
    "gemm_bias": _gemm(64, 48, 32, epilogue=("bias",)),
    "gemm_relu": _gemm(64, 48, 32, epilogue=("relu",)),
    "gemm_gelu": _gemm(64, 48, 32, epilogue=("gelu",)),
    "gemm_residual": _gemm(64, 48, 32, epilogue=("residual",)),
    "gemm_bias_relu": _gemm(128, 64, 64, epilogue=("bias", "relu")),
    "gemm_bias_gelu_residual": _gemm(64, 48, 32, epilogue=("bias", "gelu", "residual")),
    "batch_gemm": _gemm(32, 48, 16, batch=6),
    "batch_gemm_1": _gemm(32, 48, 16, batch=1),
    "batch_gemm_tb_bias": _gemm(17, 32, 24, batch=3, transpose_b=True, epilogue=("bias",)),
    "conv1d": _instance(convolution.conv1d, 2, 64, 16, 24, 3, padding=1),
    "conv1d_ncw": _instance(
        convolution.conv1d, 1, 65, 8, 16, 5, stride=2, padding=2, layout="NCW"
    ),
    "conv2d": _conv2d(1, 14, 14, 16, 32, 3, padding=1),
    "conv2d_nchw": _conv2d(1, 14, 14, 16, 32, 3, padding=1, layout="NCHW"),
    "conv2d_1x1": _conv2d(2, 7, 7, 32, 48, 1),
    "conv2d_valid": _conv2d(1, 13, 11, 8, 16, 3),
    "conv2d_stride2": _conv2d(1, 15, 15, 8, 16, 3, stride=2, padding=1),
    "conv2d_1x1_stride2": _conv2d(1, 14, 14, 16, 24, 1, stride=2),
    "conv2d_dilation2": _conv2d(1, 14, 14, 8, 16, 3, padding=2, dilation=2),
    "conv2d_rectangular": _conv2d(1, 9, 17, 6, 10, (1, 5), stride=(1, 2), padding=(0, 2)),
    "conv2d_groups": _conv2d(1, 14, 14, 16, 32, 3, padding=1, groups=4),
    "conv2d_groups_nchw": _conv2d(1, 8, 8, 12, 18, 3, padding=1, groups=3, layout="NCHW"),
    "conv2d_bias_relu": _conv2d(1, 14, 14, 16, 32, 3, padding=1, epilogue=("bias", "relu")),
    "conv2d_residual_nchw": _conv2d(
        1, 8, 8, 8, 16, 3, padding=1, layout="NCHW", epilogue=("bias", "residual", "relu")
    ),
    "depthwise_conv2d": _instance(convolution.depthwise_conv2d, 1, 14, 14, 32, 3, padding=1),
    "depthwise_conv2d_multiplier": _instance(
        convolution.depthwise_conv2d, 1, 11, 11, 8, 3, multiplier=2, stride=2, padding=1
    ),
    "depthwise_conv2d_nchw": _instance(
        convolution.depthwise_conv2d, 1, 14, 14, 16, 5, padding=2, layout="NCHW"
    ),
    "conv3d": _instance(convolution.conv3d, 1, 6, 8, 8, 8, 16, 3, padding=1),
    "conv3d_ncdhw": _instance(
        convolution.conv3d, 1, 5, 7, 7, 4, 8, 3, stride=2, padding=1, layout="NCDHW"
    ),
    "conv_transpose2d": _instance(transposed.conv_transpose2d, 1, 7, 7, 16, 8),
    "conv_transpose2d_nchw": _instance(
        transposed.conv_transpose2d, 1, 6, 6, 8, 12, 3, output_padding=1, layout="NCHW"
    ),
    "conv_transpose2d_stride1": _instance(
        transposed.conv_transpose2d, 1, 8, 8, 8, 8, 3, stride=1, padding=1
    ),
    "max_pool2d": _pool2d(1, 16, 16, 24),
    "max_pool2d_padded": _pool2d(1, 15, 15, 16, 3, stride=2, padding=1),
    "max_pool2d_nchw": _pool2d(2, 14, 14, 8, 3, stride=1, padding=1, layout="NCHW"),
    "avg_pool2d": _pool2d(1, 16, 16, 24, kind="avg"),
    "avg_pool2d_padded": _pool2d(1, 15, 15, 16, 3, kind="avg", padding=1),
    "avg_pool2d_valid": _pool2d(1, 15, 15, 16, 3, kind="avg", padding=1, count_padding=False),
    "global_avg_pool2d": _instance(reduction.global_pool2d, 2, 7, 7, 64),
    "global_max_pool2d_nchw": _instance(
        reduction.global_pool2d, 2, 7, 7, 32, kind="max", layout="NCHW"
    ),
    "softmax": _instance(reduction.softmax, (48, 128)),
    "softmax_197": _instance(reduction.softmax, (4, 17, 197)),
    "softmax_middle": _instance(reduction.softmax, (6, 64, 24), 1),
    "softmax_first": _instance(reduction.softmax, (32, 40), 0),
    "layer_norm": _instance(reduction.layer_norm, (48, 128)),
    "layer_norm_197": _instance(reduction.layer_norm, (3, 197, 96)),
    "layer_norm_two_axes": _instance(reduction.layer_norm, (8, 12, 16), (-2, -1)),
    "layer_norm_plain": _instance(reduction.layer_norm, (32, 64), affine=False),
    "rms_norm": _instance(reduction.rms_norm, (48, 128)),
    "rms_norm_1": _instance(reduction.rms_norm, (1, 1021)),
    "sum_last": _reduce((64, 96), (1,)),
    "sum_first": _reduce((96, 64), (0,)),
    "sum_middle": _reduce((8, 48, 20), (1,)),
    "sum_outer_inner": _reduce((12, 20, 28), (0, 2)),
    "sum_all": _reduce((31, 64)),
    "sum_keepdims": _reduce((24, 197), (-1,), keepdims=True),
    "max_last": _reduce((64, 96), (1,), kind="max"),
    "min_middle": _reduce((8, 48, 20), (1,), kind="min"),
    "mean_last_two": _reduce((16, 12, 18), (1, 2), kind="mean"),
    "add_relu": _elementwise((32, 197)),
    "elementwise_1d": _elementwise((1009,), ("mul", "add", "tanh")),
    "elementwise_broadcast_row": _elementwise((24, 7, 64), ("mul@2", "add@2", "relu")),
    "elementwise_broadcast_column": _elementwise((48, 80), ("sub@0", "exp", "div@0")),
    "elementwise_unary": _elementwise((2, 3, 5, 64), ("gelu", "sigmoid", "square")),
    "elementwise_scalar": _elementwise((16, 33), ("mul@", "max", "silu")),
}
