"""Index expressions of TIR as expressions in block iterators.

Resizing computes indices in floats, `round((v + 0.5) * 0.7 - 0.5)`, and pads choose them by
conditions. All become the operators of `felix.symbolic.expr`: a float expression is a sum of
rational multiples of integers, whose floor is an integer division. Constants of float32 are read
as the nearest fraction of small denominator, which they are rounded from, so that an index may
differ from what floats give at a tie. What is loaded from a buffer, and what is computed of it,
become the operators of `felix.symbolic.loaded`.
"""

from __future__ import annotations

import fractions
import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy
from tvm import tirx
from tvm.ir.expr import Call, TensorLoad

from felix.errors import UnsupportedSchedule
from felix.symbolic import expr, loaded

#: Float constants are fractions of at most this denominator.
MAX_DENOMINATOR = 1 << 16
_HALF = sympy.Rational(1, 2)

Symbols = Mapping[Any, sympy.Expr]
#: TVM's buffer -> the buffer that an index is loaded from.
Buffers = Mapping[Any, Any]
_NO_BUFFERS: Buffers = types.MappingProxyType({})


def iter_symbol(name: str) -> sympy.Symbol:
    """The symbol of a block iterator: a nonnegative integer."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def load_index(node: Any, symbols: Symbols, buffers: Buffers = _NO_BUFFERS) -> sympy.Expr:
    """An integer TIR expression of block iterators, and of elements of these buffers.

    Raises:
        UnsupportedSchedule: an operation that no rule is there for.
    """
    value = _Loader(symbols, buffers).load(node)
    if not is_whole(value):
        raise UnsupportedSchedule(f"index expression {node} cannot be modelled")
    return value


class _Loader:
    """Reads expressions of one block; conditions are 0 or 1."""

    def __init__(self, symbols: Symbols, buffers: Buffers) -> None:
        self._symbols = symbols
        self._buffers = buffers

    def load(self, node: Any) -> sympy.Expr:
        """An integer or float expression."""
        if isinstance(node, int):
            return sympy.Integer(node)
        if isinstance(node, tirx.Var) and node in self._symbols:
            return self._symbols[node]
        if isinstance(node, tirx.IntImm):
            return sympy.Integer(int(node.value))
        if isinstance(node, tirx.FloatImm):
            near = fractions.Fraction(float(node.value)).limit_denominator(MAX_DENOMINATOR)
            return sympy.Rational(near.numerator, near.denominator)
        if isinstance(node, TensorLoad) and node.source in self._buffers:
            indices = tuple(self.load(index) for index in node.indices)
            return loaded.element(self._buffers[node.source], indices)
        return self._operation(node)

    def _operation(self, node: Any) -> sympy.Expr:
        operands = [self.load(operand) for operand in _operands(node)]
        if any(map(loaded.is_data, operands)):
            if isinstance(node, tirx.Cast) and _is_integer(node) and _is_integer(node.value):
                return operands[0]
            return loaded.operation(_name(node), *operands)
        if isinstance(node, tirx.Cast):
            return truncated(operands[0]) if _is_integer(node) else operands[0]
        rule = _CALLS.get(_name(node)) if isinstance(node, Call) else _RULES.get(type(node))
        if rule is None:
            raise UnsupportedSchedule(f"index expression {node} cannot be modelled")
        if isinstance(node, tirx.Div) and not _is_integer(node):
            rule = _quotient
        return rule(*operands)


def _operands(node: Any) -> Sequence[Any]:
    if isinstance(node, Call):
        return tuple(node.args)
    if isinstance(node, tirx.Cast):
        return (node.value,)
    if isinstance(node, (tirx.Not, tirx.BitwiseNot)):
        return (node.a,)
    if isinstance(node, tirx.Select):
        return (node.condition, node.true_value, node.false_value)
    if hasattr(node, "a") and hasattr(node, "b"):
        return (node.a, node.b)
    raise UnsupportedSchedule(f"index expression {node} cannot be modelled")


def _name(node: Any) -> str:
    """The operation of a node: the function that a call is of, else the kind of the node."""
    if isinstance(node, Call):
        return str(getattr(node.op, "name", node.op)).rpartition(".")[2]
    return type(node).__name__


def _is_integer(node: Any) -> bool:
    return str(node.ty).startswith(("int", "uint"))


# Integer parts and quotients


def floor(value: sympy.Expr) -> sympy.Expr:
    """The largest integer not above a sum of rational multiples of integers.

    Raises:
        UnsupportedSchedule: the value is no such sum, nor a choice between some.
    """
    if is_whole(value):
        return value
    if isinstance(value, (expr.Minimum, expr.Maximum)):
        return type(value)(*map(floor, value.args))
    if isinstance(value, expr.Select):
        return expr.Select(value.args[0], *map(floor, value.args[1:]))
    denominator = _denominator(value)
    return expr.FloorDiv(_scaled(value, denominator), denominator)


def _denominator(value: sympy.Expr) -> int:
    """The least number of which a multiple of the value has whole coefficients."""
    coefficients = sympy.expand(value).as_coefficients_dict().values()
    return int(sympy.ilcm(1, *(c.q for c in coefficients if c.is_Rational)))


def _scaled(value: sympy.Expr, factor: int) -> sympy.Expr:
    scaled = value if factor == 1 else sympy.expand(value * factor)
    if not is_whole(scaled):
        raise UnsupportedSchedule(f"an index with the part {value} cannot be modelled")
    return scaled


def _compared(
    operator: Callable[[sympy.Expr, sympy.Expr], sympy.Expr],
) -> Callable[[sympy.Expr, sympy.Expr], sympy.Expr]:
    """A comparison, of multiples of both sides that are whole."""

    def compare(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        factor = math.lcm(*(1 if is_whole(side) else _denominator(side) for side in (a, b)))
        return operator(_scaled(a, factor), _scaled(b, factor))

    return compare


def is_whole(value: sympy.Expr) -> bool:
    """Whether an expression is visibly an integer; choices are looked into."""
    if isinstance(value, (expr.Minimum, expr.Maximum)):
        return all(map(is_whole, value.args))
    if isinstance(value, expr.Select):
        return all(map(is_whole, value.args[1:]))
    if isinstance(value, (sympy.Add, sympy.Mul)):
        return all(map(is_whole, value.args))
    return bool(value.is_integer)


def truncated(value: sympy.Expr) -> sympy.Expr:
    """The integer part, towards 0."""
    return floor(value) if _is_nonnegative(value) else _towards_zero(value, floor)


def _towards_zero(value: sympy.Expr, rule: Callable[[sympy.Expr], sympy.Expr]) -> sympy.Expr:
    if is_whole(value) and rule is floor:
        return value
    is_positive = _compared(expr.LessEqual)(sympy.Integer(0), value)
    return expr.Select(is_positive, rule(value), -rule(-value))


def _truncated_quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    if _is_nonnegative(a) and _is_nonnegative(b):
        return expr.FloorDiv(a, b)
    return _towards_zero(a, lambda value: expr.FloorDiv(value, b))


def _truncated_remainder(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    if _is_nonnegative(a) and _is_nonnegative(b):
        return expr.FloorMod(a, b)
    return a - b * _truncated_quotient(a, b)


def _masked(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """a & (2^n - 1), on either side."""
    for value, mask in ((a, b), (b, a)):
        if mask.is_Integer and mask >= 0 and (int(mask) & (int(mask) + 1)) == 0:
            return expr.FloorMod(value, sympy.Integer(int(mask) + 1))
    raise UnsupportedSchedule(f"an index is a mask that is no 2^n - 1: {a} & {b}")


def _power_of_two(exponent: sympy.Expr) -> sympy.Integer:
    if not exponent.is_Integer or exponent < 0:
        raise UnsupportedSchedule(f"an index is shifted by {exponent}")
    return sympy.Integer(1 << int(exponent))


def _quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """Of floats."""
    if not b.is_Rational or b.is_zero:
        raise UnsupportedSchedule(f"an index is divided by {b}")
    return a / b


def _is_nonnegative(value: sympy.Expr) -> bool:
    """Whether a value is visibly not negative; quotients are looked into."""
    if isinstance(value, (expr.FloorDiv, expr.Maximum, expr.Minimum)):
        checks = [_is_nonnegative(argument) for argument in value.args]
        return any(checks) if isinstance(value, expr.Maximum) else all(checks)
    if isinstance(value, expr.Select):
        return all(map(_is_nonnegative, value.args[1:]))
    if isinstance(value, (sympy.Add, sympy.Mul)):
        return all(map(_is_nonnegative, value.args))
    if isinstance(value, expr.FloorMod):
        return True
    return bool(value.is_nonnegative)


#: TIR node -> what it is of the operands' expressions.
_RULES: dict[type[Any], Callable[..., sympy.Expr]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: expr.FloorDiv,
    tirx.FloorMod: expr.FloorMod,
    tirx.Div: _truncated_quotient,
    tirx.Mod: _truncated_remainder,
    tirx.BitwiseAnd: _masked,
    tirx.LShift: lambda a, b: a * _power_of_two(b),
    tirx.RShift: lambda a, b: expr.FloorDiv(a, _power_of_two(b)),
    tirx.Min: expr.Minimum,
    tirx.Max: expr.Maximum,
    tirx.EQ: _compared(expr.Equal),
    tirx.NE: _compared(lambda a, b: expr.Not(expr.Equal(a, b))),
    tirx.LT: _compared(expr.Less),
    tirx.LE: _compared(expr.LessEqual),
    tirx.GT: _compared(lambda a, b: expr.Less(b, a)),
    tirx.GE: _compared(lambda a, b: expr.LessEqual(b, a)),
    tirx.And: expr.And,
    tirx.Or: expr.Or,
    tirx.Not: expr.Not,
    tirx.Select: expr.Select,
}

#: Function -> the same.
_CALLS: dict[str, Callable[..., sympy.Expr]] = {
    "floor": floor,
    "ceil": lambda value: -floor(-value),
    "round": lambda value: floor(value + _HALF),
    "nearbyint": lambda value: floor(value + _HALF),
    "trunc": truncated,
    "if_then_else": expr.Select,
    "likely": lambda value: value,
}


# Numbers


Grid = Mapping[sympy.Symbol, npt.NDArray[np.int64]]

_EVALUATED: dict[type[Any], Callable[..., Any]] = {
    expr.FloorDiv: np.floor_divide,
    expr.FloorMod: np.mod,
    expr.Minimum: np.minimum,
    expr.Maximum: np.maximum,
    expr.Less: np.less,
    expr.LessEqual: np.less_equal,
    expr.Equal: np.equal,
    expr.And: np.logical_and,
    expr.Or: np.logical_or,
    expr.Not: np.logical_not,
    expr.Select: np.where,
}


def evaluate(index: sympy.Expr, grid: Grid) -> npt.NDArray[np.int64]:
    """An index expression on a grid of points: arrays that broadcast, one for each iterator."""
    if index.is_Symbol:
        return grid[index]
    if index.is_Integer:
        return np.full((1,) * max(1, len(grid)), int(index), dtype=np.int64)
    args = [evaluate(a, grid) for a in index.args]
    if isinstance(index, sympy.Add):
        return functools.reduce(np.add, args)
    if isinstance(index, sympy.Mul):
        return functools.reduce(np.multiply, args)
    return np.asarray(_EVALUATED[type(index)](*args), dtype=np.int64)
