"""Values that are 0 unless conditions hold: what padding and spreading make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.ir.expr import TensorLoad

from felix.tir.design_space.variants import nests
from felix.tir.design_space.variants.nests import Expr, Nest

_IF = "prim.if_then_else"


def resolved(value: Expr, producers: Mapping[Any, Nest]) -> tuple[list[Expr], Expr]:
    """(conditions, value): `value` where all conditions hold, else 0."""
    guarded = _guarded(value)
    if guarded is not None:
        conditions, inner = resolved(guarded[1], producers)
        return [*_conjuncts(guarded[0]), *conditions], inner
    if isinstance(value, TensorLoad) and value.source in producers:
        nest = producers[value.source]
        stored = nest.block.body.value
        if _guarded(stored) is not None or isinstance(stored, TensorLoad):
            at = {a.variable: i for a, i in zip(nest.axes, value.indices, strict=True)}
            return resolved(nests.substituted(stored, at), producers)
    return [], value


def _guarded(value: Expr) -> tuple[Expr, Expr] | None:
    """(condition, value) of an expression that is 0 where the condition does not hold."""
    if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == _IF:
        condition, inner, other = value.args
        if isinstance(other, tirx.IntImm | tirx.FloatImm) and float(other.value) == 0:
            return condition, inner
    return None


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, tirx.And):
        yield from _conjuncts(condition.a)
        yield from _conjuncts(condition.b)
    else:
        yield condition


def remaining(
    conditions: Sequence[Expr], inside: Sequence[Expr], analyzer: sym.Analyzer
) -> list[Expr]:
    """The conditions that are not always true, and of `inside` those that they do not imply."""
    simple = [analyzer.simplify(condition) for condition in conditions]
    remaining = [condition for condition in simple if not _is_true(condition)]
    for condition in inside:
        holds = analyzer.can_prove(condition)
        if not holds and remaining:
            with analyzer.constraint_scope(tirx.all(*remaining)):
                holds = analyzer.can_prove(condition)
        if not holds:
            remaining.append(analyzer.simplify(condition))
    return remaining


def _is_true(condition: Expr) -> bool:
    return isinstance(condition, tirx.IntImm) and int(condition) == 1


def simplified(value: Expr, analyzer: sym.Analyzer) -> Expr:
    """The value with simple indices."""

    def simple(load: TensorLoad) -> Expr:
        return tirx.BufferLoad(load.source, [analyzer.simplify(index) for index in load.indices])

    return nests.with_loads(value, simple)
