"""Values that are 0 unless iterators meet conditions: the padding of a convolution's data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from felix.templates.gemm.stages import require
from felix.tir import evaluation, grammar
from felix.tir.ranges import Linear, Remainder, Scope

_ORDERS = ("LT", "LE", "GT", "GE")


@dataclasses.dataclass(frozen=True, slots=True)
class Padded:
    """`value` where the condition holds, else 0."""

    condition: Any
    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Multiple:
    """A form that is a multiple of the divisor."""

    form: Linear
    divisor: int

    def divides(self, form: Linear) -> bool:
        """Whether another form is a multiple of the divisor exactly where this one is."""
        difference = form - self.form
        numbers = (difference.constant, *(k for _, k in difference.terms))
        return all(number % self.divisor == 0 for number in numbers)


@dataclasses.dataclass(frozen=True, slots=True)
class Guards:
    """What holds where a value is read; elsewhere it is 0.

    Attributes:
        bounds: forms that are 0 or more.
        multiples: of cells that are spread, with zeros between them.
    """

    bounds: frozenset[Linear] = frozenset()
    multiples: frozenset[Multiple] = frozenset()

    def __or__(self, other: Guards) -> Guards:
        return Guards(self.bounds | other.bounds, self.multiples | other.multiples)

    def __bool__(self) -> bool:
        return bool(self.bounds or self.multiples)


#: Of what is nowhere 0.
EVERYWHERE = Guards()


def of(expr: Any) -> Padded | None:
    """An expression as a padded value; None of another one."""
    kind = type(expr).__name__
    if kind == "Select":
        parts = (expr.condition, expr.true_value, expr.false_value)
    elif kind == "Call" and grammar.function_name(expr) == "if_then_else":
        parts = tuple(expr.args)
    else:
        return None
    condition, value, otherwise = parts
    is_number = type(otherwise).__name__ in ("IntImm", "FloatImm")
    return Padded(condition, value) if is_number and float(otherwise.value) == 0 else None


def guards(padded: Padded, scope: Scope, values: Mapping[Any, Linear]) -> Guards:
    """What the condition says; bounds that always hold are left out.

    Raises:
        NotPlain: the condition is not one of bounds and multiples of iterators.
    """
    evaluate = evaluation.Evaluation(scope, values)
    forms: set[Linear] = set()
    multiples: set[Multiple] = set()
    pending = [padded.condition]
    while pending:
        condition = pending.pop()
        kind = type(condition).__name__
        if kind == "And":
            pending += [condition.a, condition.b]
            continue
        if kind == "Call" and grammar.function_name(condition) == "likely":
            pending.append(condition.args[0])
            continue
        require(
            kind in (*_ORDERS, "EQ") and not _reads(condition),
            "an operand of the product is 0 under a condition that is no bound of its indices",
        )
        if kind == "EQ":
            difference = evaluate.linear(condition.a) - evaluate.linear(condition.b)
            if any(isinstance(atom, Remainder) for atom, _ in difference.terms):
                multiples.add(_multiple(difference))
            elif difference != Linear(0):
                forms |= {difference, difference.scaled(-1)}
            continue
        ((form,),) = evaluate.cases(condition, True)
        if scope.interval(form).low < 0:
            forms.add(form)
    return Guards(frozenset(forms), frozenset(multiples))


def _multiple(difference: Linear) -> Multiple:
    """What is a multiple where the difference of a remainder and a number is 0."""
    atoms = [(atom, k) for atom, k in difference.terms if isinstance(atom, Remainder)]
    require(
        len(atoms) == len(difference.terms) == 1 and abs(atoms[0][1]) == 1,
        "an operand of the product is 0 under an equality that says of no index what it is a "
        "multiple of",
    )
    remainder, sign = atoms[0]
    residue = -sign * difference.constant
    require(0 <= residue < remainder.divisor, "an operand of the product is always 0")
    return Multiple(remainder.dividend.shifted(-residue), remainder.divisor)


def _reads(condition: Any) -> bool:
    """Whether a condition depends on data, or compares what is no integer."""
    parts = list(grammar.expressions(condition))
    return any(grammar.is_load(p) or grammar.is_float(grammar.dtype(p)) for p in parts)
