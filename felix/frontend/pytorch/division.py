"""Conversions of PyTorch's remainders and whole quotients of floats, by C's fmod as PyTorch's are.

A quotient that is rounded down is wrong where the quotient itself is rounded up: 1.0 // 0.1 is 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tvm import relax

from felix.frontend import numerics
from felix.frontend.pytorch import calling, conversion
from felix.tir import rounding

_NAMES = ("fmod.Scalar", "fmod.Tensor", "remainder.Scalar", "remainder.Tensor")


def _converter(name: str) -> conversion.Converter:
    promoted = conversion.promoted(name)

    def convert(node: torch.fx.Node, importer: Any) -> Any:
        dtype = calling.dtype_name(conversion.common_type(name, node))
        is_floor = name == "floor_divide.default" or node.kwargs.get("rounding_mode") == "floor"
        is_remainder = name in _NAMES
        if "float" not in dtype or not (is_floor or is_remainder):
            return promoted(node, importer)
        builder = importer.block_builder
        wide = rounding.accumulator(dtype)
        # A remainder's number is one of the tensors' type, a quotient's is not rounded.
        of_number = dtype if is_remainder else wide
        x, y = (_operand(importer, each, of_number, wide) for each in node.args[:2])
        if name.startswith("fmod"):
            result = numerics.emit_remainder(builder, x, y)
        elif is_remainder:
            result = numerics.emit_modulo(builder, x, y)
        else:
            result = _whole_quotient(builder, x, y)
        return conversion.cast(importer, result, dtype)

    return convert


def _operand(importer: Any, value: Any, of_number: str, wide: str) -> Any:
    """An operand in a type; a number is first made one of its own."""
    if not isinstance(value, torch.fx.Node):
        return relax.const(torch.tensor(value, dtype=getattr(torch, of_number)).item(), wide)
    return conversion.cast(importer, importer.env[value], wide)


def _whole_quotient(builder: relax.BlockBuilder, x: Any, y: Any) -> Any:
    """(x - rest) / y, one less where the rest has not the sign of y, to the nearest whole number;
    x / 0 is what it is."""
    emit, dtype = builder.emit, str(x.ty.dtype)
    rest = numerics.emit_remainder(builder, x, y)
    quotient = emit(relax.op.divide(emit(relax.op.subtract(x, rest)), y))
    less = emit(relax.op.subtract(quotient, relax.const(1.0, dtype)))
    is_other = numerics.has_other_sign(builder, rest, y)
    quotient = emit(relax.op.where(is_other, less, quotient))
    nearest = emit(relax.op.floor(emit(relax.op.add(quotient, relax.const(0.5, dtype)))))
    by_zero = emit(relax.op.equal(y, relax.const(0.0, dtype)))
    return emit(relax.op.where(by_zero, emit(relax.op.divide(x, y)), nearest))


#: The conversions by the operators' names.
CONVERSIONS: Mapping[str, conversion.Converter] = {
    name: _converter(name) for name in (*_NAMES, "div.Tensor_mode", "floor_divide.default")
}
