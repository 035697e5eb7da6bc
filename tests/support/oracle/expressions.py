"""Expressions of TIR as the oracle reads them: their parts, and their values at many points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad

_BINARY = {
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
}
COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def children(node: Any) -> list[Any]:
    """Operands of an expression, without the indices of loads."""
    if isinstance(node, TensorLoad):
        return []
    if isinstance(node, Call):
        return list(node.args)
    if isinstance(node, tirx.Select):
        return [node.condition, node.true_value, node.false_value]
    if isinstance(node, tirx.Cast):
        return [node.value]
    if isinstance(node, tirx.Not):
        return [node.a]
    return [node.a, node.b] if hasattr(node, "a") else []


def walk(node: Any) -> Iterator[Any]:
    yield node
    for child in children(node):
        yield from walk(child)


def variables(node: Any) -> list[Any]:
    return [n for n in walk(node) if isinstance(n, tirx.Var)]


def used(nodes: Sequence[Any]) -> list[Any]:
    return [v for n in nodes for v in variables(n)]


def is_if(node: Any) -> bool:
    return isinstance(node, Call) and str(node.op.name).endswith("if_then_else")


def positions(index: Any) -> list[Any]:
    """Where an index that depends on data is loaded from, and what else it is made of."""
    if isinstance(index, TensorLoad):
        return [part for inner in index.indices for part in positions(inner)]
    if reads_data(index):
        return [part for child in children(index) for part in positions(child)]
    return [index] if variables(index) else []


def evaluate(node: Any, env: dict[Any, np.ndarray]) -> np.ndarray:
    """An integer or truth-valued expression over arrays of variables."""
    if isinstance(node, (int, np.integer)):
        return np.asarray(int(node))
    if isinstance(node, tirx.IntImm):
        return np.asarray(int(node.value))
    if isinstance(node, tirx.Var):
        return env[node]
    if isinstance(node, tirx.Cast):
        return evaluate(node.value, env)
    if isinstance(node, tirx.Not):
        return np.logical_not(evaluate(node.a, env))
    if isinstance(node, tirx.Select):
        return np.where(*(evaluate(child, env) for child in children(node)))
    return _BINARY[type(node)](evaluate(node.a, env), evaluate(node.b, env))


def reads_data(node: Any) -> bool:
    return any(isinstance(n, TensorLoad) for n in walk(node))


def can_hold(node: Any, truth: bool, env: dict[Any, np.ndarray]) -> np.ndarray:
    """Where the condition can be `truth`; what depends on loaded data can be either."""
    if isinstance(node, tirx.Not):
        return can_hold(node.a, not truth, env)
    if isinstance(node, (tirx.And, tirx.Or)):
        a, b = can_hold(node.a, truth, env), can_hold(node.b, truth, env)
        both = isinstance(node, tirx.And) == truth
        return np.logical_and(a, b) if both else np.logical_or(a, b)
    if reads_data(node):
        return np.asarray(True)
    return np.equal(evaluate(node, env).astype(bool), truth)


def element_bytes(buffer: Any) -> int:
    return max(1, tvm.DataType(str(buffer.dtype)).bits // 8)
