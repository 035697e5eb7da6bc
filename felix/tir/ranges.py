"""Bounds of integer expressions, proved in exact arithmetic.

Notation: an *atom* is a variable or a term that is not linear in variables (a quotient, a
remainder, a minimum, a product). A `Linear` is c + sum of k_i * atom_i with integers c and k_i. An
`Interval` is the integers from `low` to `high`, both included. A `Scope` says what is known at one
place of a program: the interval of each variable, and conditions `Linear >= 0` that hold there.

Every rule here gives a superset of the values that can occur. Equal subexpressions are the same
atom, so `i // 4 * 4 + i % 4` is i, and `i - i` is 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping
from fractions import Fraction
from typing import TypeAlias

Atom: TypeAlias = Hashable

#: Conditions that one bound may combine.
_MAX_COMBINED = 3
#: Combinations of conditions that all bounds of one proof may try.
_MAX_TRIED = 20_000


@dataclasses.dataclass(slots=True)
class Budget:
    """How many combinations of conditions a proof may still try."""

    left: int = _MAX_TRIED


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """The integers from `low` to `high`; none where low > high."""

    low: int
    high: int

    def within(self, other: Interval) -> bool:
        """Whether every value lies in the other interval."""
        return other.low <= self.low and self.high <= other.high

    def intersection(self, other: Interval) -> Interval:
        """The values in both."""
        return Interval(max(self.low, other.low), min(self.high, other.high))

    def scaled(self, factor: int) -> Interval:
        """The interval of `factor` times the value."""
        ends = (self.low * factor, self.high * factor)
        return Interval(min(ends), max(ends))

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """constant + sum of coefficient * atom; no coefficient is 0."""

    constant: int
    terms: frozenset[tuple[Atom, int]] = frozenset()

    @staticmethod
    def of(atom: Atom) -> Linear:
        """The atom itself."""
        return Linear(0, frozenset([(atom, 1)]))

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for atom, factor in other.terms:
            terms[atom] = terms.get(atom, 0) + factor
        return _linear(self.constant + other.constant, terms)

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Linear:
        """`factor` times the form."""
        if factor == 0:
            return Linear(0)
        return Linear(self.constant * factor, frozenset((a, k * factor) for a, k in self.terms))

    def shifted(self, amount: int) -> Linear:
        """The form plus a constant."""
        return Linear(self.constant + amount, self.terms)


@dataclasses.dataclass(frozen=True, slots=True)
class Quotient:
    """Atom: floor(dividend / divisor), divisor >= 2."""

    dividend: Linear
    divisor: int


@dataclasses.dataclass(frozen=True, slots=True)
class Remainder:
    """Atom: dividend - divisor * floor(dividend / divisor), divisor >= 2."""

    dividend: Linear
    divisor: int


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """Atom: the product of two forms."""

    a: Linear
    b: Linear


@dataclasses.dataclass(frozen=True, slots=True)
class Extremum:
    """Atom: the minimum or the maximum of two forms."""

    a: Linear
    b: Linear
    is_minimum: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Unknown:
    """Atom: any value of the interval; `key` tells different ones apart."""

    interval: Interval
    key: Hashable


def _linear(constant: int, terms: Mapping[Atom, int]) -> Linear:
    """A form in which k * (x // n) * n and k * (x % n) have become k * x."""
    terms = {atom: factor for atom, factor in terms.items() if factor}
    for atom, factor in terms.items():
        if not isinstance(atom, Remainder):
            continue
        quotient = Quotient(atom.dividend, atom.divisor)
        if terms.get(quotient) == factor * atom.divisor:
            rest = {a: k for a, k in terms.items() if a not in (atom, quotient)}
            return _linear(constant, rest) + atom.dividend.scaled(factor)
    return Linear(constant, frozenset(terms.items()))


def floor_div(scope: Scope, value: Linear, divisor: int) -> Linear:
    """floor(value / divisor) for a positive divisor; multiples of it come out of the quotient."""
    multiple, rest = _split(value, divisor)
    interval = scope.interval(rest)
    if interval.low // divisor == interval.high // divisor:
        return multiple.shifted(interval.low // divisor)
    return multiple + Linear.of(Quotient(rest, divisor))


def floor_mod(scope: Scope, value: Linear, divisor: int) -> Linear:
    """value mod divisor, in [0, divisor), for a positive divisor."""
    _, rest = _split(value, divisor)
    interval = scope.interval(rest)
    if interval.low // divisor == interval.high // divisor:
        return rest.shifted(-divisor * (interval.low // divisor))
    return Linear.of(Remainder(rest, divisor))


def _split(value: Linear, divisor: int) -> tuple[Linear, Linear]:
    """(q, r) with value = divisor * q + r, and nothing in r that the divisor divides."""
    multiple = {a: k // divisor for a, k in value.terms if k % divisor == 0}
    rest = {a: k for a, k in value.terms if k % divisor}
    quotient, constant = divmod(value.constant, divisor)
    return _linear(quotient, multiple), _linear(constant, rest)


class Scope:
    """What is known at one place: intervals of variables, and conditions that hold."""

    def __init__(
        self,
        intervals: Mapping[Atom, Interval],
        conditions: tuple[Linear, ...] = (),
        budget: Budget | None = None,
    ) -> None:
        """Know that each atom lies in its interval, and that each condition is not negative."""
        self._intervals = dict(intervals)
        self._conditions = conditions
        self.budget = budget or Budget()
        self._results: dict[Linear, Interval] = {}

    def with_variable(self, atom: Atom, interval: Interval) -> Scope:
        """The scope with one more variable."""
        return Scope({**self._intervals, atom: interval}, self._conditions, self.budget)

    def is_empty(self) -> bool:
        """Whether the conditions contradict each other: no execution comes here."""
        return any(interval.low > interval.high for interval in self._intervals.values())

    def assume(self, conditions: Iterable[Linear]) -> Scope:
        """The scope in which these conditions are not negative as well."""
        scope = Scope(self._intervals, (*self._conditions, *conditions), self.budget)
        for _ in range(2):
            for condition in scope._conditions:
                scope._tighten(condition)
        scope._results.clear()
        return scope

    def _tighten(self, condition: Linear) -> None:
        """Narrow each atom of `condition >= 0` by the intervals of the others."""
        self._results.clear()
        if not condition.terms and condition.constant < 0:
            self._intervals[condition] = Interval(0, -1)
        for atom, factor in condition.terms:
            rest = Linear(condition.constant, condition.terms - {(atom, factor)})
            most = self._simple(rest).high
            now = self._atom(atom)
            # factor * atom >= -rest, and -rest is at least -most
            if factor > 0:
                narrowed = Interval(max(now.low, -(most // factor)), now.high)
            else:
                narrowed = Interval(now.low, min(now.high, most // -factor))
            if narrowed == now:
                continue
            self._intervals[atom] = narrowed
            if isinstance(atom, Quotient):
                least, last = narrowed.low * atom.divisor, narrowed.high * atom.divisor
                self._tighten(atom.dividend.shifted(-least))
                self._tighten(atom.dividend.scaled(-1).shifted(last + atom.divisor - 1))

    def proves(self, value: Linear, interval: Interval) -> bool:
        """Whether the value surely lies in an interval."""
        return self._simple(value).within(interval) or self.interval(value).within(interval)

    def interval(self, value: Linear) -> Interval:
        """Where the value lies, by the intervals of its atoms and by the conditions."""
        result = self._results.get(value)
        if result is None:
            result = self._simple(value)
            if self._conditions and len(value.terms) > 1:
                low = -self._greatest(value.scaled(-1), _MAX_COMBINED)
                high = self._greatest(value, _MAX_COMBINED)
                result = result.intersection(Interval(math.ceil(low), math.floor(high)))
            self._results[value] = result
        return result

    def _simple(self, value: Linear) -> Interval:
        total = Interval(value.constant, value.constant)
        for atom, factor in value.terms:
            total += self._atom(atom).scaled(factor)
        return total

    def _greatest(self, value: Linear, combined: int) -> Fraction:
        """An upper bound: value + t * condition is one for every t >= 0."""
        best = Fraction(self._simple(value).high)
        if not combined:
            return best
        for condition in self._conditions:
            if self.budget.left <= 0:
                break
            self.budget.left -= 1
            terms = dict(condition.terms)
            for atom, factor in value.terms:
                if terms.get(atom, 0) * factor < 0:
                    # times = -factor / terms[atom] > 0 cancels the atom
                    ratio = Fraction(-factor, terms[atom])
                    whole = value.scaled(ratio.denominator) + condition.scaled(ratio.numerator)
                    if len(whole.terms) < len(value.terms) + len(terms) - 1:
                        best = min(best, self._greatest(whole, combined - 1) / ratio.denominator)
        return best

    def _atom(self, atom: Atom) -> Interval:
        known = self._intervals.get(atom)
        derived = self._derived(atom)
        if known is None:
            if derived is None:
                raise KeyError(atom)
            return derived
        return known if derived is None else known.intersection(derived)

    def _derived(self, atom: Atom) -> Interval | None:
        """Where an atom lies by what it is made of; None for a variable."""
        match atom:
            case Quotient(dividend, divisor):
                inside = self._simple(dividend)
                return Interval(inside.low // divisor, inside.high // divisor)
            case Remainder(dividend, divisor):
                inside = self._simple(dividend)
                if inside.low // divisor == inside.high // divisor:
                    return Interval(inside.low % divisor, inside.high % divisor)
                return Interval(0, divisor - 1)
            case Product(a, b):
                return product(self._simple(a), self._simple(b))
            case Extremum(a, b, is_minimum):
                left, right = self._simple(a), self._simple(b)
                choose = min if is_minimum else max
                return Interval(choose(left.low, right.low), choose(left.high, right.high))
            case Unknown(interval):
                return interval
        return None


def product(a: Interval, b: Interval) -> Interval:
    """The interval of the product of two values."""
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(ends), max(ends))
