"""Integer expressions of a program as linear forms, and conditions as what they say of them.

Arithmetic must fit its type at every step: in TVM's code an overflow may be anything, and so may
what is derived from it.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from felix import errors
from felix.tir import grammar, ranges
from felix.tir.grammar import check
from felix.tir.graph import quoted
from felix.tir.ranges import Interval, Linear, Scope

#: Alternatives of conditions with "or" that are told apart.
_MAX_ALTERNATIVES = 16
#: A conjunction of conditions that are not negative.
Case: TypeAlias = tuple[Linear, ...]


def assume(condition: Any, truth: bool, scopes: list[Scope]) -> list[Scope]:
    """The scopes in which the condition is true, or false; none when it cannot be."""
    alternatives = []
    for scope in scopes:
        cases = Evaluation(scope).cases(condition, truth)
        assumed = [scope.assume(case) for case in cases]
        alternatives += [inside for inside in assumed if not inside.is_empty()]
    return alternatives if len(alternatives) <= _MAX_ALTERNATIVES else scopes


class Evaluation:
    """Integer expressions as linear forms in one scope."""

    def __init__(self, scope: Scope, values: Mapping[Any, Linear] | None = None) -> None:
        """Evaluate where the scope holds, with the values of variables that others stand for."""
        self._scope = scope
        self._values = values or {}

    def linear(self, expr: Any) -> Linear:
        """The value of an integer expression, which must fit its type at every step.

        Raises:
            WorkloadError: it is not proved to fit, or to divide by no zero.
        """
        result = self._linear(expr)
        limits = limits_of(expr)
        check(
            self._scope.proves(result, limits),
            f"{text_of(expr)} is not proved to fit {grammar.dtype(expr)}: it takes "
            f"{values_of(self._scope, result)}",
        )
        return result

    def _linear(self, expr: Any) -> Linear:
        kind = type(expr).__name__
        match kind:
            case "IntImm":
                return Linear(int(expr.value))
            case "Var":
                return self._values.get(expr, Linear.of(expr))
            case "Add":
                return self.linear(expr.a) + self.linear(expr.b)
            case "Sub":
                return self.linear(expr.a) - self.linear(expr.b)
            case "Mul":
                return self._product(self.linear(expr.a), self.linear(expr.b))
            case "Min" | "Max":
                pair = (self.linear(expr.a), self.linear(expr.b))
                return Linear.of(ranges.Extremum(*pair, is_minimum=kind == "Min"))
            case "Cast":
                return self._cast(expr)
            case "Select":
                return self._select(expr)
            case "Call":
                return self._call(expr)
        if kind in grammar.DIVISIONS:
            return self._division(expr, kind)
        if kind in grammar.BITWISE or kind == "BitwiseNot":
            return self._bitwise(expr, kind)
        return Linear.of(ranges.Unknown(limits_of(expr), expr))

    def _bitwise(self, expr: Any, kind: str) -> Linear:
        """Any value of the type, or of a mask; the operands must fit their type all the same.

        A shift to the right by a constant divides by a power of 2.
        """
        forms = [self.linear(operand) for operand in grammar.children(expr)]
        if (
            kind == "RShift"
            and not forms[1].terms
            and 0 <= forms[1].constant < grammar.bits(grammar.dtype(expr))
        ):
            return ranges.floor_div(self._scope, forms[0], 1 << forms[1].constant)
        masks = [form.constant for form in forms if not form.terms and form.constant >= 0]
        if kind == "BitwiseAnd" and masks:
            return Linear.of(ranges.Unknown(Interval(0, min(masks)), expr))
        return Linear.of(ranges.Unknown(limits_of(expr), expr))

    def _product(self, a: Linear, b: Linear) -> Linear:
        if not b.terms:
            return a.scaled(b.constant)
        if not a.terms:
            return b.scaled(a.constant)
        return Linear.of(ranges.Product(a, b))

    def _cast(self, expr: Any) -> Linear:
        """The value itself where the type holds it; else any value of the type."""
        limits = limits_of(expr)
        unknown = Linear.of(ranges.Unknown(limits, expr))
        inner = expr.value
        if grammar.is_float(grammar.dtype(inner)):
            return Linear.of(ranges.Unknown(self._rounded(expr), expr))
        if grammar.dtype(inner) == "bool":
            self.cases(inner, True)
            return Linear.of(ranges.Unknown(Interval(0, 1), expr))
        form = self.linear(inner)
        return form if self._scope.proves(form, limits) else unknown

    def _rounded(self, expr: Any) -> Interval:
        """Where a float cast to an integer lies; beyond the type, it would be anything."""
        low, high = self._float(expr.value)
        limits = limits_of(expr)
        check(
            limits.low < low and high < limits.high,
            f"{text_of(expr)} is not proved to fit {grammar.dtype(expr)}",
        )
        return Interval(math.floor(low), math.ceil(high))

    def _float(self, expr: Any) -> tuple[float, float]:
        """Bounds of a float of iterators, wide enough for rounding; infinite where unknown."""
        kind = type(expr).__name__
        unknown = (-math.inf, math.inf)
        if grammar.dtype(expr) not in ("float32", "float64"):
            return unknown
        if kind == "FloatImm":
            return _widened([float(expr.value)])
        if kind == "Cast" and not grammar.is_float(grammar.dtype(expr.value)):
            inside = self._scope.interval(self.linear(expr.value))
            return _widened([float(inside.low), float(inside.high)])
        if kind == "Call" and grammar.function_name(expr) in _ROUNDINGS:
            low, high = self._float(expr.args[0])
            return low - 1, high + 1
        if kind not in _FLOAT_ARITHMETIC:
            return unknown
        pairs = itertools.product(self._float(expr.a), self._float(expr.b))
        return _widened([_FLOAT_ARITHMETIC[kind](a, b) for a, b in pairs])

    def _select(self, expr: Any) -> Linear:
        """One of two values, both of which are evaluated.

        Choices between equal values by one equal comparison of iterators are one atom.
        """
        cases = tuple(self.cases(expr.condition, True))
        forms = tuple(self.linear(value) for value in (expr.true_value, expr.false_value))
        intervals = [
            scope.interval(form)
            for form, truth in zip(forms, (True, False), strict=True)
            for scope in assume(expr.condition, truth, [self._scope])
        ]
        kind = type(expr.condition).__name__
        is_known = kind in grammar.COMPARISONS and self._is_of_iterators(expr.condition)
        key = ("Select", cases, forms) if is_known else expr
        return Linear.of(ranges.Unknown(_hull(intervals), key))

    def _call(self, expr: Any) -> Linear:
        name = grammar.function_name(expr)
        if name == "popcount":
            self.linear(expr.args[0])
            return Linear.of(ranges.Unknown(Interval(0, grammar.bits(grammar.dtype(expr))), expr))
        if name == "if_then_else":
            return self._guarded(expr)
        raise errors.WorkloadError(f"{text_of(expr)} is an index, or a part of one; unsupported")

    def _guarded(self, expr: Any) -> Linear:
        """The values of if_then_else, each under its condition."""
        condition, *values = expr.args
        intervals = []
        for value, truth in zip(values, (True, False), strict=True):
            for scope in assume(condition, truth, [self._scope]):
                inside = Evaluation(scope, self._values)
                intervals.append(scope.interval(inside.linear(value)))
        return Linear.of(ranges.Unknown(_hull(intervals), expr))

    def _division(self, expr: Any, kind: str) -> Linear:
        """Floored or truncated quotient or remainder, by a divisor that is not 0."""
        a, b = self.linear(expr.a), self.linear(expr.b)
        dividend, divisor = self._scope.interval(a), self._scope.interval(b)
        check(
            divisor.low > 0 or divisor.high < 0,
            f"{text_of(expr)} divides by a value that may be 0",
        )
        floored = kind in ("FloorDiv", "FloorMod")
        if not b.terms and b.constant > 0 and (floored or dividend.low >= 0):
            function = ranges.floor_div if kind.endswith("Div") else ranges.floor_mod
            return function(self._scope, a, b.constant)
        if kind.endswith("Div"):
            interval = _quotients(dividend, divisor, floored)
        else:
            interval = _remainders(dividend, divisor, floored)
        return Linear.of(ranges.Unknown(interval, expr))

    # Conditions

    def cases(self, condition: Any, truth: bool) -> list[Case]:
        """Alternatives of which one holds when the condition has this truth value.

        Raises:
            WorkloadError: arithmetic of iterators in it is not proved to fit.
        """
        kind = type(condition).__name__
        if kind == "IntImm":
            return [()] if bool(int(condition.value)) == truth else []
        if kind == "Not":
            return self.cases(condition.a, not truth)
        if kind == "Call" and grammar.function_name(condition) == "likely":
            return self.cases(condition.args[0], truth)
        if kind in grammar.LOGIC:
            left, right = (self.cases(side, truth) for side in (condition.a, condition.b))
            if (kind == "And") == truth:
                both = [(*a, *b) for a in left for b in right]
                return both if len(both) <= _MAX_ALTERNATIVES else left
            either = [*left, *right]
            return either if len(either) <= _MAX_ALTERNATIVES else [()]
        if kind in grammar.BITWISE:
            for side in (condition.a, condition.b):
                self.cases(side, truth)
        if kind in grammar.COMPARISONS and self._is_of_iterators(condition):
            return self._comparison(kind if truth else _NEGATED[kind], condition)
        return [()]

    def _is_of_iterators(self, condition: Any) -> bool:
        """Whether a comparison is one of integers that do not depend on data."""
        dtype = grammar.dtype(condition.a)
        return (
            dtype != "bool"
            and not grammar.is_float(dtype)
            and not any(
                grammar.is_load(part) or grammar.is_float(grammar.dtype(part))
                for part in grammar.expressions(condition)
            )
        )

    def _comparison(self, kind: str, condition: Any) -> list[Case]:
        a, b = self.linear(condition.a), self.linear(condition.b)
        most, least = b - a, a - b
        below, above = most.shifted(-1), least.shifted(-1)
        cases: dict[str, list[Case]] = {
            "LT": [(below,)],
            "LE": [(most,)],
            "GT": [(above,)],
            "GE": [(least,)],
            "EQ": [(most, least)],
            "NE": [(below,), (above,)],
        }
        return cases[kind]


_NEGATED = {"EQ": "NE", "NE": "EQ", "LT": "GE", "GE": "LT", "GT": "LE", "LE": "GT"}
_ROUNDINGS = ("floor", "ceil", "round", "trunc", "nearbyint")
_FLOAT_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Min": min,
    "Max": max,
}


def _widened(ends: list[float]) -> tuple[float, float]:
    """The bounds of some values, with room for rounding."""
    if not all(math.isfinite(end) for end in ends):
        return -math.inf, math.inf
    room = max(abs(end) for end in ends) * 1e-3 + 1e-3
    return min(ends) - room, max(ends) + room


def _hull(intervals: Sequence[Interval]) -> Interval:
    """The smallest interval that holds all; 0 where there is none."""
    low = min((interval.low for interval in intervals), default=0)
    high = max((interval.high for interval in intervals), default=0)
    return Interval(low, high)


def _quotients(dividend: Interval, divisor: Interval, floored: bool) -> Interval:
    """Where quotients lie; they are monotonic in each operand on either side of 0."""
    divisors = (divisor.low, divisor.high)
    dividends = [dividend.low, dividend.high]
    if dividend.low < 0 <= dividend.high:
        dividends += [-1, 0]
    values = [a // b if floored else _truncated(a, b) for a in dividends for b in divisors]
    return Interval(min(values), max(values))


def _remainders(dividend: Interval, divisor: Interval, floored: bool) -> Interval:
    """Where remainders lie: floored with the divisor's sign, truncated with the dividend's."""
    largest = max(abs(divisor.low), abs(divisor.high)) - 1
    if floored:
        return Interval(0, largest) if divisor.low > 0 else Interval(-largest, 0)
    low = max(-largest, dividend.low) if dividend.low < 0 else 0
    high = min(largest, dividend.high) if dividend.high > 0 else 0
    return Interval(low, high)


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def limits_of(expr: Any) -> Interval:
    """The values that an expression's type holds."""
    dtype = grammar.dtype(expr)
    bits = grammar.bits(dtype)
    if dtype.startswith("int"):
        return Interval(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return Interval(0, 2**bits - 1)


def text_of(expr: Any) -> str:
    """An expression as a message quotes it."""
    return quoted(grammar.text(expr))


def values_of(scope: Scope, form: Linear) -> str:
    interval = scope.interval(form)
    return f"{interval.low} to {interval.high}"
