"""The operand of a product as a sum of factors by rows, factors by k, and x.

Notation: x is a parameter that is read at rows and at k.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tvm import tirx

from felix.templates.gemm.stages import NotPlain, require
from felix.tir import grammar, rounding

FLOAT = "float32"


@dataclasses.dataclass(frozen=True, slots=True)
class Term:
    """A term of the operand: factors by rows, by k, and x where it has it; None is 1."""

    row: Any = None
    column: Any = None
    x: Any = None


def terms(expr: Any, k: tirx.Var, is_parameter: Callable[[Any], bool]) -> list[Term]:
    """The terms of an operand whose elementwise stages are inlined.

    Args:
        is_parameter: whether an expression reads a parameter.

    Raises:
        NotPlain: it is no such sum.
    """
    used = iterators(expr)
    if k not in used:
        return [Term(row=as_float(expr))]
    if used == {k}:
        return [Term(column=as_float(expr))]
    kind = type(expr).__name__
    if (exact := rounding.source(expr)) is not None:
        return terms(exact, k, is_parameter)
    if kind == "Cast" and grammar.is_float(grammar.dtype(expr.value)):
        return terms(expr.value, k, is_parameter)
    if is_parameter(expr):
        require_plain(expr, k)
        return [Term(x=expr)]
    if kind not in ("Add", "Sub", "Mul", "Div"):
        reason = "its operand is no sum of products of x, factors of rows and factors of k"
        raise NotPlain(reason)
    first, second = (terms(side, k, is_parameter) for side in (expr.a, expr.b))
    if kind == "Add":
        return first + second
    if kind == "Sub":
        minus = tirx.const(-1.0, FLOAT)
        return first + [dataclasses.replace(t, row=times(minus, t.row)) for t in second]
    if kind == "Div":
        return [_product(a, _inverse(second)) for a in first]
    return [_product(a, b) for a in first for b in second]


def require_plain(load: Any, k: tirx.Var) -> None:
    """Raise NotPlain unless each index of a load is an iterator of its own, and k is one."""
    indices = list(load.indices)
    variables = [index for index in indices if isinstance(index, tirx.Var)]
    is_plain = all(isinstance(i, tirx.Var | tirx.IntImm) for i in indices)
    is_plain = is_plain and len(set(variables)) == len(variables) and k in variables
    require(is_plain, f"{load.source.name} is not read at plain iterators")


def iterators(expr: Any) -> set[Any]:
    """The variables of an expression that are no buffers."""
    return {part for part in grammar.expressions(expr) if isinstance(part, tirx.Var)}


def times(a: Any, b: Any) -> Any:
    """The product of factors; None is 1."""
    if a is None or b is None:
        return b if a is None else a
    return a * b


def as_float(expr: Any) -> Any:
    """The expression in float32."""
    return expr if grammar.dtype(expr) == FLOAT else tirx.Cast(FLOAT, expr)


def _inverse(divisor: list[Term]) -> Term:
    is_factor = len(divisor) == 1 and (divisor[0].row is None) != (divisor[0].column is None)
    require(is_factor and divisor[0].x is None, "its operand is divided by more than a factor")
    one = tirx.const(1.0, FLOAT)
    (term,) = divisor
    return Term(
        None if term.row is None else one / term.row,
        None if term.column is None else one / term.column,
    )


def _product(a: Term, b: Term) -> Term:
    require(a.x is None or b.x is None, "its operand has a product of two elements of x")
    x = b.x if a.x is None else a.x
    return Term(times(a.row, b.row), times(a.column, b.column), x)
