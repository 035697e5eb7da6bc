"""Conversions of ATen operators that PyTorch computes in other element types than TVM.

Operators of 16 bits that PyTorch computes in float32 are computed so. Operands of several types
are cast to the one that they have in common: TVM gives a number the type of the tensor beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import relax

from felix.frontend.pytorch import conversion
from felix.frontend.pytorch.conversion import arguments, cast

#: Types that are summed in float32.
HALF = frozenset({"float16", "bfloat16"})
#: Operators of one tensor that PyTorch computes in float32 for tensors of 16 bits.
_IN_FLOAT32 = (
    "cos.default", "erf.default", "exp.default", "gelu.default",
    "hardsigmoid.default", "hardswish.default", "leaky_relu.default", "log.default",
    "log_softmax.int", "_log_softmax.default", "mean.dim", "mean.default", "pow.Tensor_Scalar",
    "reciprocal.default", "rsqrt.default", "selu.default", "sigmoid.default", "silu.default",
    "sin.default", "softmax.int", "_softmax.default", "softplus.default", "sqrt.default",
    "sum.default", "sum.dim_IntList", "tan.default", "tanh.default", "var.correction",
    "std.correction",
)  # fmt: skip
#: Operators of two operands, which PyTorch computes in the type that they have in common;
_PROMOTED = (
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "div.Tensor_mode", "fmod.Scalar",
    "fmod.Tensor", "remainder.Scalar", "remainder.Tensor", "maximum.default", "minimum.default",
    "pow.Tensor_Tensor", "eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar",
    "lt.Tensor", "le.Scalar", "le.Tensor", "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor",
)  # fmt: skip
#: what they are of two booleans.
_LOGICAL: dict[str, Callable[[Any, Any], Any]] = {
    "add.Tensor": relax.op.logical_or,
    "mul.Tensor": relax.op.logical_and,
    "maximum.default": relax.op.logical_or,
    "minimum.default": relax.op.logical_and,
}
#: Others whose first operand has the result's type before they are computed.
_WIDENING = ("clamp.default", "cumprod.default", "cumsum.default")


def convert_map(defaults: conversion.Defaults) -> dict[str, conversion.Converter]:
    """The conversions by the operators' names."""
    return {
        **{name: _widened(name, defaults) for name in (*_IN_FLOAT32, *_WIDENING)},
        **{name: _promoted(name, defaults) for name in _PROMOTED},
    }


def _widened(name: str, defaults: conversion.Defaults) -> conversion.Converter:
    """TVM's conversion of an operator, given its first operand in the type of its result, or in
    float32 where it has 16 bits and PyTorch computes so."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        source: Any = node.args[0]
        operand = importer.env[source]
        is_half = name in _IN_FLOAT32 and str(operand.ty.dtype) in HALF
        wide = "float32" if is_half else result_dtype(node)
        with conversion.standing_for(importer, {source: cast(importer, operand, wide)}):
            result = defaults.convert(name, node, importer)
        return cast(importer, result, result_dtype(node))

    return convert


def _promoted(name: str, defaults: conversion.Defaults) -> conversion.Converter:
    """TVM's conversion of an operator of two operands, given both in their common type."""

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        dtype = _common_type(name, node)
        if dtype is torch.bool and name in _LOGICAL:
            return importer.block_builder.emit(_LOGICAL[name](*arguments(node, importer, 2)))
        operands = {
            each: cast(importer, importer.env[each], str(dtype).removeprefix("torch."))
            for each in node.args[:2]
            if isinstance(each, torch.fx.Node)
        }
        with conversion.standing_for(importer, operands):
            return defaults.convert(name, node, importer)

    return convert


def _common_type(name: str, node: torch.fx.Node) -> torch.dtype:
    values: list[Any] = [
        each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in node.args[:2]
    ]
    dtype = torch.result_type(*values)
    is_whole = not dtype.is_floating_point and not dtype.is_complex
    divides = name == "div.Tensor"
    return torch.get_default_dtype() if divides and is_whole else dtype


def result_dtype(node: torch.fx.Node) -> str:
    """TVM's name of the type of a node's value."""
    return str(node.meta["val"].dtype).removeprefix("torch.")
