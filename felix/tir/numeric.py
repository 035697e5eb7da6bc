"""Index expressions and conditions as numpy arrays over the values of their variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from felix import errors
from felix.tir import grammar


def evaluate(expr: Any, grid: Mapping[Any, NDArray[np.int64]]) -> Any:
    """The values of an expression where its variables have these, arrays that broadcast.

    Raises:
        UnsupportedSchedule: it has an operation that is none of an index or a condition.
    """
    if isinstance(expr, int):
        return np.asarray(expr)
    kind = type(expr).__name__
    if kind == "IntImm":
        return np.asarray(int(expr.value))
    if kind == "FloatImm":
        return np.asarray(float(expr.value), dtype=np.float32)
    if kind == "Var":
        return grid[expr]
    name = operation(expr)
    if name not in _FUNCTIONS:
        raise errors.UnsupportedSchedule(f"index expression {expr} cannot be enumerated")
    operands = [evaluate(child, grid) for child in grammar.children(expr)]
    is_float = grammar.is_float(grammar.dtype(expr))
    if name == "Cast":
        return _cast(operands[0], is_float)
    if name == "Div" and is_float:
        return np.divide(*operands)
    return _FUNCTIONS[name](*operands)


def operation(expr: Any) -> str:
    """The kind of an expression, or the function that is called."""
    return grammar.function_name(expr) if type(expr).__name__ == "Call" else type(expr).__name__


def _cast(value: Any, is_float: bool) -> Any:
    if is_float:
        return value.astype(np.float32)
    return np.trunc(value).astype(np.int64) if value.dtype.kind == "f" else value


def _truncated_div(a: Any, b: Any) -> Any:
    return np.where((a < 0) ^ (b < 0), -(np.abs(a) // np.abs(b)), np.abs(a) // np.abs(b))


#: Operations of integers, and casts.
INTEGER_OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Div": _truncated_div,
    "Mod": np.fmod,
    "Min": np.minimum,
    "Max": np.maximum,
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
    "Cast": _cast,
    "Select": np.where,
    "if_then_else": np.where,
    "likely": np.asarray,
}
#: Those, bits, and functions of one float; an index rounds as C does, halves away from 0.
_FUNCTIONS = INTEGER_OPERATIONS | {
    "BitwiseAnd": np.bitwise_and,
    "LShift": np.left_shift,
    "RShift": np.right_shift,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "round": lambda value: np.copysign(np.floor(np.abs(value) + 0.5), value),
}
