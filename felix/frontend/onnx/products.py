"""ONNX's matrix products, summed in float32 where operands have 16 bits, and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

from felix import errors
from felix.frontend.onnx.node import Node, dtype_of, shape_of
from felix.tir.rounding import accumulator


def multiply(node: Node) -> Any:
    """MatMul."""
    left, right = node[0], node[1]
    dtype = dtype_of(left)
    return node.cast(node.emit(relax.op.matmul(left, right, accumulator(dtype))), dtype)


def multiply_add(node: Node) -> Any:
    """Gemm: alpha A B + beta C, each factor transposed where an attribute says so."""
    factors, term = [node[0], node[1]], node[2]
    dtype = dtype_of(factors[0])
    wide = accumulator(dtype)
    for i, name in enumerate(("transA", "transB")):
        if node.get(name, 0):
            factors[i] = node.emit(relax.op.permute_dims(factors[i]))
    result = node.emit(relax.op.matmul(*factors, wide))
    result = _scaled(node, result, float(node.get("alpha", 1.0)))
    beta = float(node.get("beta", 1.0))
    if term is not None and beta:
        result = node.emit(relax.op.add(result, _scaled(node, node.cast(term, wide), beta)))
    return node.cast(result, dtype)


def _scaled(node: Node, x: Any, factor: float) -> Any:
    if factor == 1:
        return x
    if "float" not in dtype_of(x) and not factor.is_integer():
        raise errors.WorkloadError(f"integers by the fraction {factor:g} are not supported")
    return node.emit(relax.op.multiply(x, relax.const(factor, dtype_of(x))))


def multiply_integers(node: Node) -> Any:
    """MatMulInteger: of int8 and uint8 less their zero points, in int32."""
    factors = []
    for i in range(2):
        x = node.cast(node[i], "int32")
        if node[i + 2] is not None:
            zero = node.cast(node[i + 2], "int32")
            if len(shape_of(zero)) == 1 and shape_of(zero) != [1] and i == 0:
                zero = node.emit(relax.op.expand_dims(zero, -1))  # one for each row
            x = node.emit(relax.op.subtract(x, zero))
        factors.append(x)
    return node.emit(relax.op.matmul(*factors, "int32"))


#: Operators of this module.
CONVERSIONS: Mapping[str, Callable[[Node], Any]] = {
    "MatMul": multiply,
    "Gemm": multiply_add,
    "MatMulInteger": multiply_integers,
}
