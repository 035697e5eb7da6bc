"""Expressions of TIR: their nodes, variables, and values over arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad

from felix.errors import UnsupportedSchedule


def walk(node: Any) -> Iterator[Any]:
    """All nodes of an expression, parents first; indices of loads included."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: Any) -> list[Any]:
    """Operands of an expression node."""
    if isinstance(node, TensorLoad):
        return list(node.indices)
    if isinstance(node, Call):
        return list(node.args)
    if isinstance(node, tirx.Select):
        return [node.condition, node.true_value, node.false_value]
    if isinstance(node, tirx.Cast):
        return [node.value]
    if isinstance(node, (tirx.Not, tirx.BitwiseNot)):
        return [node.a]
    return [node.a, node.b] if type(node) in _OPERATIONS or hasattr(node, "b") else []


def variables(node: Any) -> list[Any]:
    """Distinct variables of an expression, in order of first use."""
    return list(dict.fromkeys(n for n in walk(node) if isinstance(n, tirx.Var)))


_OPERATIONS: dict[type[Any], Any] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
    tirx.Mod: np.fmod,
    tirx.Not: np.logical_not,
    tirx.BitwiseAnd: np.bitwise_and,
    tirx.LShift: np.left_shift,
    tirx.RShift: np.right_shift,
    tirx.Select: np.where,
}


def _quotient(node: Any, a: Any, b: Any) -> Any:
    """a / b, of integers towards 0."""
    return np.trunc(a / b).astype(np.int64) if is_integer(node) else a / b


def is_integer(node: Any) -> bool:
    return str(node.ty).startswith(("int", "uint"))


#: Functions of one float; an index rounds as C does, halves away from 0.
_FUNCTIONS: dict[str, Any] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "round": lambda value: np.copysign(np.floor(np.abs(value) + 0.5), value),
    "likely": np.asarray,
    "if_then_else": np.where,
}


def evaluate(node: Any, grid: Mapping[Any, NDArray[np.int64]]) -> Any:
    """A TIR expression of an index or a condition over arrays of loop variables."""
    if isinstance(node, (int, bool)):
        return np.asarray(node)
    if isinstance(node, tirx.IntImm):
        return np.asarray(int(node.value))
    if isinstance(node, tirx.Var):
        return grid[node]
    if isinstance(node, tirx.FloatImm):
        return np.asarray(float(node.value), dtype=np.float32)
    if isinstance(node, tirx.Cast):
        value = evaluate(node.value, grid)
        return np.trunc(value).astype(np.int64) if is_integer(node) else value.astype(np.float32)
    operands = [evaluate(child, grid) for child in children(node)]
    if isinstance(node, tirx.Div):
        return _quotient(node, *operands)
    operation = _OPERATIONS.get(type(node))
    if isinstance(node, Call):
        operation = _FUNCTIONS.get(str(node.op.name).rpartition(".")[2])
    if operation is None:
        raise UnsupportedSchedule(f"index expression {node} cannot be enumerated")
    return operation(*operands)
