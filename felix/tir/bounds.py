"""The proof that a program stays inside its buffers.

From the extents of loops: every block iterator is bound to values of its domain, under the
conditions around the block and its predicate; every access has indices inside the buffer for all
iterators of those domains, under the conditions around the access. Schedules may visit a domain
in any other way, so neither a loop nor a predicate limits an access. `IfThenElse` and
`if_then_else` guard what is below them. `Select`, `And` and `Or` evaluate all their operands and
guard nothing.

An index that is loaded from a buffer may be any value of its type, so it must be clamped. What it
is loaded from must not be stored to by the same block: it could change between clamp and access.

Arithmetic of indices must fit its type at every step, and shall not divide by zero. What is not
proved is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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


class UnguardedData(errors.WorkloadError):
    """Data choose an index, a shift or a divisor that is not guarded."""


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
    for buffer in grammar.buffers(func):
        if math.prod(grammar.shape(buffer)) > NARROW_LIMIT:
            _wide(
                all(grammar.dtype(extent) == "int64" for extent in buffer.ty.shape),
                f"buffer {quoted(buffer.name)} has more than 2^30 elements and int32 extents; "
                "use int64",
            )
    for block in grammar.blocks(func.body):
        narrow = any(grammar.dtype(v.var) != "int64" for v in block.iter_vars)
        _wide(
            not narrow or grammar.extent(block) <= NARROW_LIMIT,
            f"block {quoted(block.name_hint)} has more than 2^30 iterations and int32 "
            "iterators; use int64",
        )


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
        if type(item).__name__ == "Bind":
            scopes = _bound(item, scopes)
        else:
            _statement(item, scopes)


def _bound(bind: Any, scopes: list[Scope]) -> list[Scope]:
    """The scopes in which a variable has the values of an expression."""
    _reads(bind.value, scopes)
    dtype = grammar.dtype(bind.value)
    if dtype == "bool" or grammar.is_float(dtype):
        return scopes
    return [scope.with_variable(bind.var, _values(bind.value, scope)) for scope in scopes]


def _values(value: Any, scope: Scope) -> Interval:
    """Where a bound value lies. Data may overflow (a sum of integers), where nothing chooses by
    them: their interval is wider than the type, so that no index that has them is proved.
    """
    try:
        return scope.interval(Evaluation(scope).linear(value))
    except errors.WorkloadError:
        if not grammar.depends_on_data(value):
            raise
        limits = evaluation.limits_of(value)
        return Interval(limits.low - 1, limits.high + 1)


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
            check(
                scope.proves(form, domains[iterator.var]),
                f"block {quoted(block.name_hint)} binds {quoted(iterator.var.name)} to "
                f"{evaluation.text_of(value)}, which is not proved to lie in its domain "
                f"[0, {iterator.dom.extent}): it takes "
                f"{evaluation.values_of(scope, form)}",
            )
    _check_sources(block)
    budget = scopes[0].budget if scopes else Budget(0)
    if block.init is not None:
        _statement(block.init, [Scope(domains, budget=budget)])
    _statement(block.body, [Scope(domains, budget=budget)])


def _check_sources(block: Any) -> None:
    """What a block takes indices from is not what it stores to."""
    parts = list(grammar.statements(block.body))
    stored = {part.buffer for part in parts if type(part).__name__ == "BufferStore"}
    values = [part.value for part in parts if type(part).__name__ in ("BufferStore", "Bind")]
    values += [part.condition for part in parts if type(part).__name__ == "IfThenElse"]
    for value in values:
        check(
            stored.isdisjoint(_sources(value)),
            f"block {quoted(block.name_hint)} takes an index from a buffer that it stores to; "
            "give it a buffer of its own",
        )


def _sources(value: Any) -> Iterator[Any]:
    """The buffers that indices in an expression are loaded from."""
    for load in filter(grammar.is_load, grammar.expressions(value)):
        for index in load.indices:
            for inner in filter(grammar.is_load, grammar.expressions(index)):
                yield inner.source


def _store(store: Any, scopes: list[Scope]) -> None:
    _reads(store.value, scopes)
    _access(store.buffer, store.indices, scopes)


# Accesses


def _access(buffer: Any, indices: Sequence[Any], scopes: list[Scope]) -> None:
    wide = math.prod(grammar.shape(buffer)) > NARROW_LIMIT
    for number, (index, extent) in enumerate(zip(indices, grammar.shape(buffer), strict=True)):
        _reads(index, scopes)
        _wide(
            not wide or grammar.dtype(index) == "int64",
            f"buffer {quoted(buffer.name)} has more than 2^30 elements and an int32 index; "
            "use int64",
        )
        for scope in scopes:
            form = Evaluation(scope).linear(index)
            if not scope.proves(form, Interval(0, extent - 1)):
                raise _outside(buffer, number, index, evaluation.values_of(scope, form))


def _outside(buffer: Any, number: int, index: Any, values: str) -> errors.WorkloadError:
    """The error for an index that is not proved to lie in its buffer."""
    extent = grammar.shape(buffer)[number]
    where = f"index {number} of buffer {quoted(buffer.name)}, {evaluation.text_of(index)},"
    if grammar.depends_on_data(index):
        return UnguardedData(
            f"{where} depends on data and is not proved to lie in [0, {extent}); clamp it: "
            f"T.min(T.max(index, 0), {extent - 1})"
        )
    return errors.WorkloadError(
        f"buffer {quoted(buffer.name)} may be accessed out of bounds: index {number}, "
        f"{evaluation.text_of(index)}, is not proved to lie in [0, {extent}): it takes {values}"
    )


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
    if kind in grammar.DIVISIONS and not grammar.is_float(grammar.dtype(expr)):
        for scope in scopes:
            _check_division(expr, scope)
    if kind in grammar.SHIFTS:
        amounts = Interval(0, grammar.bits(grammar.dtype(expr)) - 1)
        for scope in scopes:
            if not scope.proves(Evaluation(scope).linear(expr.b), amounts):
                raise UnguardedData(
                    f"{evaluation.text_of(expr)} shifts by a value that is not proved to lie in "
                    f"[0, {amounts.high + 1}); clamp it: T.min(T.max(value, 0), {amounts.high})"
                )


def _check_division(expr: Any, scope: Scope) -> None:
    """A processor traps on a division by zero, and on the one quotient that does not fit."""
    if grammar.is_nonzero(expr.b):
        return
    divisor = Evaluation(scope).linear(expr.b)
    positive = Interval(1, evaluation.limits_of(expr).high)
    if not scope.proves(divisor, positive):
        if not scope.proves(divisor, Interval(evaluation.limits_of(expr).low, -1)):
            kind = UnguardedData if grammar.depends_on_data(expr.b) else errors.WorkloadError
            raise kind(
                f"{evaluation.text_of(expr)} divides by a value that may be 0; guard it: "
                "T.Select(value == 0, 1, value)"
            )
        Evaluation(scope).linear(expr)
