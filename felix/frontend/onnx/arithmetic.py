"""ONNX's arithmetic of elements where TVM's conversions compute other numbers or lack types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from felix import errors, names
from felix.frontend import casts, layers, numerics
from felix.frontend.layers import dtype_of
from felix.frontend.onnx import constants, schemas
from felix.frontend.onnx.node import Node


def supported(dtype: str, among: Collection[str] = constants.TYPES) -> str:
    """An element type that is among some.

    Raises:
        WorkloadError: it is not.
    """
    if dtype not in among:
        raise errors.WorkloadError(f"the element type {names.quoted(dtype)} is not supported")
    return dtype


def element_type(number: int) -> str:
    """TVM's name of one of ONNX's element types; raises as `supported`."""
    return supported(schemas.type_name(int(number)))


def cast(node: Node) -> Any:
    """Cast, and CastLike, which reads no more of its second operand than its type."""
    is_like = node.operator == "CastLike"
    dtype = supported(dtype_of(node[1])) if is_like else element_type(node.get("to"))
    for attribute in ("saturate", "round_mode"):  # of float8
        node.get(attribute)
    x = node[0]
    if dtype == "bool" and dtype_of(x) != "bool":
        return node.emit(relax.op.not_equal(x, relax.const(0, dtype_of(x))))
    return casts.emit_cast(node.emit, x, dtype)


def power(node: Node) -> Any:
    """x ** y in the type of x."""
    x, y = node[0], node[1]
    dtype = dtype_of(x)
    if dtype.startswith(("float", "bfloat")):
        return node.emit(relax.op.power(x, node.cast(y, dtype)))
    if dtype_of(y).startswith(("float", "bfloat")):
        result = relax.op.power(node.cast(x, "float64"), node.cast(y, "float64"))
        return node.cast(node.emit(result), dtype)
    return _whole_power(node, x, node.cast(y, dtype))


def _whole_power(node: Node, x: Any, y: Any) -> Any:
    """By squaring: a factor for each bit of the exponent. Of negative exponents only powers of 1
    and -1 are no fractions, which are 0."""
    dtype = dtype_of(x)
    zero, one, result = relax.const(0, dtype), relax.const(1, dtype), None
    power, known = x, node.known(1)
    n_bits = np.iinfo(dtype).bits - ("u" not in dtype)
    if known is not None and known.size:
        n_bits = min(n_bits, max(1, int(np.abs(known).max()).bit_length()))
    for bit in range(n_bits):
        is_set = node.emit(relax.op.bitwise_and(y, relax.const(1 << bit, dtype)))
        is_set = node.emit(relax.op.not_equal(is_set, zero))
        factor = node.emit(relax.op.where(is_set, power, one))
        result = factor if result is None else node.emit(relax.op.multiply(result, factor))
        power = node.emit(relax.op.multiply(power, power))
    if "u" in dtype:
        return result
    is_unit = node.emit(relax.op.equal(node.emit(relax.op.abs(x)), one))
    is_positive = node.emit(relax.op.greater_equal(y, zero))
    is_whole = node.emit(relax.op.logical_or(is_positive, is_unit))
    return node.emit(relax.op.where(is_whole, result, zero))


def sign(node: Node) -> Any:
    """-1, 0 or 1; NaN of NaN."""
    x = node[0]
    result = node.emit(relax.op.sign(x))
    if "float" not in dtype_of(x):
        return result
    return node.emit(relax.op.where(node.emit(relax.op.isnan(x)), x, result))


def thresholded(node: Node) -> Any:
    """The elements above alpha; 0 elsewhere."""
    x, alpha = node[0], float(node.get("alpha", 1.0))
    dtype = dtype_of(x)
    is_above = node.emit(relax.op.greater(x, relax.const(alpha, dtype)))
    return node.emit(relax.op.where(is_above, x, relax.const(0, dtype)))


def modulo(node: Node) -> Any:
    """The remainder: of the divisor's sign, or with `fmod` of the dividend's."""
    x, y = node[0], node[1]
    dtype = dtype_of(x)
    is_float = dtype.startswith(("float", "bfloat"))
    is_dividends = bool(node.get("fmod", 0))
    if not is_float:
        _, divisor = _divisors(node, y)
        return node.emit((relax.op.mod if is_dividends else relax.op.floor_mod)(x, divisor))
    if not is_dividends and node.opset < _FLOAT_MODULO:
        raise errors.WorkloadError(
            f"floats need its attribute 'fmod' before opset {_FLOAT_MODULO}, which it lacks"
        )
    emit = numerics.emit_remainder if is_dividends else numerics.emit_modulo
    return emit(node.bb, x, y)


def divide(node: Node) -> Any:
    """The quotient; of integers towards 0, and 0 where the divisor is 0.

    The processor ends a program that divides an integer by 0, or the least one by -1.
    """
    x, y = node[0], node[1]
    dtype = dtype_of(x)
    if "float" in dtype:
        return node.emit(relax.op.divide(x, y))
    is_odd, divisor = _divisors(node, y)
    quotient = node.emit(relax.op.divide(x, divisor))
    if is_odd is None:
        return quotient
    # y is 0 or -1 where it is odd: x y is 0 or -x
    return node.emit(relax.op.where(is_odd, node.emit(relax.op.multiply(x, y)), quotient))


def _divisors(node: Node, y: Any) -> tuple[Any, Any]:
    """Where integers are 0 or -1, and them with 1 there; None and them where none is."""
    dtype = dtype_of(y)
    odd = [0] if dtype.startswith("u") else [0, -1]
    known = constants.small(y, node.tables)
    if known is not None and not np.isin(known, odd).any():
        return None, y
    is_odd = node.emit(relax.op.equal(y, relax.const(0, dtype)))
    if len(odd) > 1:
        is_other = node.emit(relax.op.equal(y, relax.const(-1, dtype)))
        is_odd = node.emit(relax.op.logical_or(is_odd, is_other))
    return is_odd, node.emit(relax.op.where(is_odd, relax.const(1, dtype), y))


def shift(node: Node) -> Any:
    """Bits shifted left or right; 0, or the sign to the right, where that is all of them."""
    x, count, direction = node[0], node[1], node.get("direction")
    dtype = dtype_of(x)
    n_bits = int("".join(c for c in dtype if c.isdigit()))
    last = relax.const(n_bits - 1, dtype)
    is_far = node.emit(relax.op.greater(count, last))
    if not dtype.startswith("u"):
        is_negative = node.emit(relax.op.less(count, relax.const(0, dtype)))
        is_far = node.emit(relax.op.logical_or(is_far, is_negative))
    near = node.emit(relax.op.where(is_far, last, count))
    if direction == "LEFT":
        result = node.emit(relax.op.left_shift(x, near))
    else:
        result = node.emit(relax.op.right_shift(x, near))
        if not dtype.startswith("u"):
            return result
    return node.emit(relax.op.where(is_far, relax.const(0, dtype), result))


def is_infinite(node: Node) -> Any:
    """Whether elements are infinite, of the signs that are asked for."""
    x = node[0]
    dtype = dtype_of(x)
    found: Any = relax.op.zeros(x.ty.shape, "bool")
    for attribute, infinity in (("detect_negative", -np.inf), ("detect_positive", np.inf)):
        if node.get(attribute, 1):
            bound = relax.const(infinity, dtype)
            found = node.emit(relax.op.logical_or(found, node.emit(relax.op.equal(x, bound))))
    return found


def bit_cast(node: Node) -> Any:
    """The same bits as another type of as many."""
    x, dtype = node[0], element_type(node.get("to"))
    if tvm.DataType(dtype).bits != tvm.DataType(dtype_of(x)).bits or "bool" in (
        dtype,
        dtype_of(x),
    ):
        raise errors.WorkloadError("types of other sizes, and booleans, are not supported")
    if dtype == dtype_of(x):
        return x

    def reinterpreted(tensor: te.Tensor) -> te.Tensor:
        return te.compute(tensor.shape, lambda *i: tirx.reinterpret(dtype, tensor[i]))

    return node.bb.emit_te(reinterpreted, x, primfunc_name_hint="bit_cast")


def elu(node: Node) -> Any:
    """x, or alpha (exp(x) - 1) below 0; rounded once."""
    return layers.elu(node.bb, node[0], float(node.get("alpha", 1.0)))


def softplus(node: Node) -> Any:
    """log(1 + exp(x)), which TVM would write as a sum that loses small results."""
    return node.emit(relax.op.nn.softplus(node[0], 1.0, _LINEAR))


#: The first opset whose Mod has floats without 'fmod'.
_FLOAT_MODULO = 28
#: Beyond it softplus(x) is x in float64, too.
_LINEAR = 40.0
#: Operators of this module.
CONVERSIONS: Mapping[str, Callable[[Node], Any]] = {
    "Cast": cast,
    "CastLike": cast,
    "Pow": power,
    "Sign": sign,
    "ThresholdedRelu": thresholded,
    "Div": divide,
    "Mod": modulo,
    "BitCast": bit_cast,
    "BitShift": shift,
    "IsInf": is_infinite,
    "Elu": elu,
    "Softplus": softplus,
}
