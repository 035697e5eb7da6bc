"""The proof that a program stays inside its buffers.

From the extents of loops: every block iterator is bound to values of its domain, under the
conditions around the block and its predicate; every access has indices inside the buffer for all
iterators of those domains, under the conditions around the access. Schedules may visit a domain
in any other way, so neither a loop nor a predicate limits an access. `IfThenElse` and
`if_then_else` guard what is below them. `Select`, `And` and `Or` evaluate all their operands and
guard nothing.

Arithmetic of indices must fit its type at every step, and shall not divide by zero. What is not
proved is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from felix import errors
from felix.tir import evaluation, grammar
from felix.tir.evaluation import Evaluation
from felix.tir.grammar import check
from felix.tir.graph import quoted
from felix.tir.ranges import Budget, Interval, Scope

#: Elements of a buffer or iterations of a block that 32-bit indices may have: TVM fuses loops and
#: pads splits, and the products must stay below 2^31.
NARROW_LIMIT = 2**30


class NarrowIndices(errors.WorkloadError):
    """The program has 32-bit indices where products of its extents need 64."""


def prove(func: tirx.PrimFunc) -> None:
    """Prove a function that `reader.read` made.

    Raises:
        WorkloadError: it leaves a buffer or its index types, or the proof does not succeed.
    """
    _check_index_width(func)
    _statement(func.body, [Scope({})])


def _check_index_width(func: tirx.PrimFunc) -> None:
    """Products of 32-bit extents that TVM forms when it flattens buffers and fuses loops fit."""
    all_blocks = list(grammar.blocks(func.body))
    buffers = [*func.params, *(buffer for block in all_blocks for buffer in block.alloc_buffers)]
    for buffer in buffers:
        if math.prod(grammar.shape(buffer)) > NARROW_LIMIT:
            _wide(all(grammar.dtype(extent) == "int64" for extent in buffer.ty.shape),
                  f"buffer {quoted(buffer.name)} has more than 2^30 elements and int32 extents; "
                  "use int64")  # fmt: skip
    for block in all_blocks:
        points = math.prod(int(v.dom.extent) for v in block.iter_vars)
        narrow = any(grammar.dtype(v.var) != "int64" for v in block.iter_vars)
        _wide(not narrow or points <= NARROW_LIMIT,
              f"block {quoted(block.name_hint)} has more than 2^30 iterations and int32 "
              "iterators; use int64")  # fmt: skip


def _wide(condition: object, message: str) -> None:
    if not condition:
        raise NarrowIndices(message)


# Statements


def _statement(stmt: Any, scopes: list[Scope]) -> None:
    rules: dict[str, Callable[[Any, list[Scope]], None]] = {
        "SBlockRealize": _realize,
        "For": _loop,
        "SeqStmt": _sequence,
        "BufferStore": _store,
        "IfThenElse": _branch,
    }
    rules[type(stmt).__name__](stmt, scopes)


def _sequence(sequence: Any, scopes: list[Scope]) -> None:
    for item in sequence.seq:
        _statement(item, scopes)


def _loop(loop: Any, scopes: list[Scope]) -> None:
    values = Interval(0, int(loop.extent) - 1)
    _statement(loop.body, [scope.with_variable(loop.loop_var, values) for scope in scopes])


def _branch(branch: Any, scopes: list[Scope]) -> None:
    _reads(branch.condition, scopes)
    _statement(branch.then_case, evaluation.assume(branch.condition, True, scopes))
    if branch.else_case is not None:
        _statement(branch.else_case, evaluation.assume(branch.condition, False, scopes))


def _realize(realize: Any, scopes: list[Scope]) -> None:
    block = realize.block
    _reads(realize.predicate, scopes)
    inside = evaluation.assume(realize.predicate, True, scopes)
    domains = {}
    for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True):
        _reads(value, scopes)
        domains[iterator.var] = Interval(0, int(iterator.dom.extent) - 1)
        for scope in inside:
            form = Evaluation(scope).linear(value)
            check(scope.proves(form, domains[iterator.var]),
                  f"block {quoted(block.name_hint)} binds {quoted(iterator.var.name)} to "
                  f"{evaluation.text_of(value)}, which is not proved to lie in its domain "
                  f"[0, {iterator.dom.extent}): it takes "
                  f"{evaluation.values_of(scope, form)}")  # fmt: skip
    budget = scopes[0].budget if scopes else Budget(0)
    if block.init is not None:
        _statement(block.init, [Scope(domains, budget=budget)])
    _statement(block.body, [Scope(domains, budget=budget)])


def _store(store: Any, scopes: list[Scope]) -> None:
    _reads(store.value, scopes)
    _access(store.buffer, store.indices, scopes)


# Accesses


def _access(buffer: Any, indices: Sequence[Any], scopes: list[Scope]) -> None:
    wide = math.prod(grammar.shape(buffer)) > NARROW_LIMIT
    for number, (index, extent) in enumerate(zip(indices, grammar.shape(buffer), strict=True)):
        _reads(index, scopes)
        _wide(not wide or grammar.dtype(index) == "int64",
              f"buffer {quoted(buffer.name)} has more than 2^30 elements and an int32 index; "
              "use int64")  # fmt: skip
        for scope in scopes:
            form = Evaluation(scope).linear(index)
            check(scope.proves(form, Interval(0, extent - 1)),
                  f"buffer {quoted(buffer.name)} may be accessed out of bounds: index {number}, "
                  f"{evaluation.text_of(index)}, is not proved to lie in [0, {extent}): it takes "
                  f"{evaluation.values_of(scope, form)}")  # fmt: skip


def _reads(expr: Any, scopes: list[Scope]) -> None:
    """Prove every load of an expression, that no integer division is by zero, and that shifts
    are by less than the bits there are.
    """
    kind = type(expr).__name__
    if kind == "TensorLoad":
        _access(expr.source, expr.indices, scopes)
        return
    if kind == "Call" and grammar.function_name(expr) == "if_then_else":
        condition, then_value, else_value = expr.args
        _reads(condition, scopes)
        _reads(then_value, evaluation.assume(condition, True, scopes))
        _reads(else_value, evaluation.assume(condition, False, scopes))
        return
    for child in grammar.children(expr):
        _reads(child, scopes)
    if kind in evaluation.DIVISIONS and not grammar.is_float(grammar.dtype(expr)):
        for scope in scopes:
            _check_division(expr, scope)
    if kind in grammar.SHIFTS:
        amounts = Interval(0, grammar.bits(grammar.dtype(expr)) - 1)
        for scope in scopes:
            check(scope.proves(Evaluation(scope).linear(expr.b), amounts),
                  f"{evaluation.text_of(expr)} shifts by a value that is not proved to lie in "
                  f"[0, {amounts.high + 1})")  # fmt: skip


def _check_division(expr: Any, scope: Scope) -> None:
    """A processor traps on a division by zero, and on the one quotient that does not fit."""
    divisor = Evaluation(scope).linear(expr.b)
    positive = Interval(1, evaluation.limits_of(expr).high)
    if not scope.proves(divisor, positive):
        check(scope.proves(divisor, Interval(evaluation.limits_of(expr).low, -1)),
              f"{evaluation.text_of(expr)} divides by a value that may be 0")  # fmt: skip
        Evaluation(scope).linear(expr)
