"""Operators Felix can tune: functions that return a `felix.Task`.

In: an operator's name and extents.
Out: a task.
From: users, `cli`, `costmodel`, `server`.

Direct use: `felix.workloads.gemm(512, 512, 512, epilogue=("bias", "relu"), target="cuda")`.
By name: `build("gemm", {"m": 512, "n": 512, "k": 512})`, or from one line of text
`parse("gemm:512,512,512,epilogue=bias+relu")` (see `catalogue`). `OPERATORS` lists them with
JSON Schemas; `CHECK_SUITE` has small instances of everything for checks.
"""

from __future__ import annotations

from felix.workloads.catalogue import OPERATORS, Operator, build, parse
from felix.workloads.convolution import conv1d, conv2d, conv3d, depthwise_conv2d
from felix.workloads.matmul import gemm
from felix.workloads.pointwise import elementwise
from felix.workloads.reduction import global_pool2d, layer_norm, pool2d, reduce, rms_norm, softmax
from felix.workloads.suite import CHECK_SUITE
from felix.workloads.transposed import conv_transpose2d

__all__ = [
    "CHECK_SUITE",
    "OPERATORS",
    "Operator",
    "build",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "depthwise_conv2d",
    "elementwise",
    "gemm",
    "global_pool2d",
    "layer_norm",
    "parse",
    "pool2d",
    "reduce",
    "rms_norm",
    "softmax",
]
