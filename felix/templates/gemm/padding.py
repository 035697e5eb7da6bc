"""Values that are 0 unless iterators meet conditions: the padding of a convolution's data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from felix.templates.gemm.stages import require
from felix.tir import evaluation, grammar
from felix.tir.ranges import Linear, Scope

_ORDERS = ("LT", "LE", "GT", "GE")


@dataclasses.dataclass(frozen=True, slots=True)
class Padded:
    """`value` where the condition holds, else 0."""

    condition: Any
    value: Any


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


def guards(padded: Padded, scope: Scope, values: Mapping[Any, Linear]) -> frozenset[Linear]:
    """Forms that are all 0 or more where the condition holds; those that always are left out.

    Raises:
        NotPlain: the condition is not one of bounds of iterators.
    """
    evaluate = evaluation.Evaluation(scope, values)
    forms: set[Linear] = set()
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
        is_remainder = kind in ("EQ", "NE")
        require(
            not is_remainder,
            "its data have zeros between them, as those of a transposed convolution: traces "
            "compute it by phases",
        )
        require(
            kind in _ORDERS and not _reads(condition),
            "an operand of the product is 0 under a condition that is no bound of its indices",
        )
        ((form,),) = evaluate.cases(condition, True)
        if scope.interval(form).low < 0:
            forms.add(form)
    return frozenset(forms)


def _reads(condition: Any) -> bool:
    """Whether a condition depends on data, or compares what is no integer."""
    parts = list(grammar.expressions(condition))
    return any(grammar.is_load(p) or grammar.is_float(grammar.dtype(p)) for p in parts)
