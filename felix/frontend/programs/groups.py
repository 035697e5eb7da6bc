"""Which operators become one program: groups of the calls of a lowered model.

A call's program is elementwise (each element of the result from elements at the same place, or
broadcast ones), a move of elements (transposition, concatenation, gather), a reduction, or opaque.
Groups are formed in the order of the calls:

- A contraction (matrix product, convolution) begins a group. Elementwise calls of its result's
  shape follow in it, as long as nothing else reads what they read. Nothing else does: what
  follows is in another group.
- Other reductions take elementwise calls before them that only they read, and elementwise calls
  behind them as contractions do. Those of several reductions (softmax, norms) take casts alone.
- Elementwise calls and moves join what they alone read.
- Views, opaque programs and programs of several results are groups of their own.

Inside a group, only the last value is read from outside. So groups have no cycles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir.expr import TensorLoad

from felix.frontend import imported
from felix.frontend.rewriting import bindings, operator_name
from felix.tir import grammar, rounding

#: Calls of a group; a program of many more has no schedule within the limits of a kernel.
MAX_CALLS = 32
#: TVM's kinds of operators: at most this.
ELEMENTWISE, MOVE, OPAQUE = 1, 2, 8


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A call of a program in `main`.

    Attributes:
        var: what it is bound to.
        value: the call itself.
        operands: the variables that it reads.
        pattern: TVM's kind of operator: at most 1 elementwise, 2 a move, 8 opaque.
        n_reductions: blocks of its program that reduce.
        is_contraction: whether a reduction sums products of two tensors.
        is_cast: whether it does nothing but convert the type of elements.
        shape: of the result; None of several results.
    """

    var: Any
    value: Any
    operands: tuple[Any, ...]
    pattern: int
    n_reductions: int
    is_contraction: bool
    is_cast: bool
    shape: tuple[int, ...] | None

    @property
    def is_elementwise(self) -> bool:
        """Whether it may follow a reduction."""
        return self.n_reductions == 0 and self.pattern <= ELEMENTWISE and self.shape is not None

    @property
    def is_simple(self) -> bool:
        """Whether it is elementwise or a move."""
        return self.n_reductions == 0 and self.pattern <= MOVE and self.shape is not None


def plan(mod: tvm.IRModule) -> list[list[Call]]:
    """The groups of a module's calls, each in the order of execution.

    Args:
        mod: with operators lowered, and TVM's kinds of operators on their programs.
    """
    described = calls(mod)
    return by_rules(described, readers(mod, described))


def by_rules(calls: Sequence[Call], readers: dict[Any, set[Any]]) -> list[list[Call]]:
    """The groups of calls, by what reads the result of each."""
    return _Planner(calls, readers).groups()


class _Planner:
    """Groups while they grow: `group_of` is the group of a call, by its variable."""

    def __init__(self, calls: Sequence[Call], readers: dict[Any, set[Any]]) -> None:
        self.calls = calls
        self.readers = readers
        self.group_of: dict[Any, list[Call]] = {}

    def groups(self) -> list[list[Call]]:
        for call in self.calls:
            group = (self._anchored(call) if call.is_elementwise else None) or []
            group.append(call)
            self.group_of[call.var] = group
            is_sum = call.n_reductions > 0 and not call.is_contraction
            if call.is_simple or (is_sum and call.pattern != OPAQUE):
                self._take_producers(group)
        return list({id(group): group for group in self.group_of.values()}.values())

    def _anchored(self, call: Call) -> list[Call] | None:
        """The group of a reduction that an elementwise call follows in."""
        for operand in reversed(call.operands):
            group = self.group_of.get(operand)
            if group is None or len(group) >= MAX_CALLS or group[-1].var != operand:
                continue
            anchor = next((member for member in group if member.n_reductions), None)
            if anchor is None or anchor.shape != call.shape or self.readers[operand] != {call.var}:
                continue
            if _takes(anchor, call):
                return group
        return None

    def _take_producers(self, group: list[Call]) -> None:
        """Move into a group the groups of simple calls that only it reads, until none is left."""
        is_changed = True
        while is_changed:
            is_changed = False
            members = {call.var for call in group}
            for other in self._producers(group):
                outside = set().union(*(self.readers[call.var] for call in other)) - {
                    call.var for call in other
                }
                if outside <= members and self._fits(other, group):
                    group[:0] = other
                    for call in other:
                        self.group_of[call.var] = group
                    is_changed = True
                    break

    def _producers(self, group: list[Call]) -> list[list[Call]]:
        groups = {
            id(other): other
            for call in group
            for operand in call.operands
            if (other := self.group_of.get(operand)) is not None and other is not group
        }
        return list(groups.values())

    def _fits(self, other: list[Call], group: list[Call]) -> bool:
        if len(group) + len(other) > MAX_CALLS or not all(call.is_simple for call in other):
            return False
        anchor = next((call for call in group if call.n_reductions), None)
        return anchor is None or all(_takes(anchor, call) for call in other)


def _takes(anchor: Call, call: Call) -> bool:
    """Whether a simple call may be in the group of a reduction."""
    if (anchor.pattern == OPAQUE and anchor.n_reductions < 2) or not call.is_elementwise:
        return False
    return call.is_cast or anchor.n_reductions == 1


def calls(mod: tvm.IRModule) -> list[Call]:
    """The calls of programs in `main`, in the order of execution."""
    called = [each for each in bindings(mod["main"]) if operator_name(each.value) == "call_tir"]
    programs = [(each.var, each.value, mod[each.value.args[0]]) for each in called]
    return [described(*each) for each in programs if isinstance(each[2], tirx.PrimFunc)]


def described(var: Any, value: Any, func: tirx.PrimFunc) -> Call:
    """A call of a function, bound to a variable."""
    blocks = grammar.nodes(func.body, s_tir.SBlock)
    reductions = [block for block in blocks if block.init is not None]
    is_tensor = isinstance(var.ty, relax.TensorType)
    shape = imported.spec_of_type(var.ty, "").shape if is_tensor else None
    pattern = int(func.attrs.get("op_pattern", OPAQUE)) if func.attrs else OPAQUE
    return Call(
        var=var,
        value=value,
        operands=tuple(item for item in value.args[1].fields if isinstance(item, relax.Var)),
        pattern=pattern,
        n_reductions=len(reductions),
        is_contraction=len(reductions) == 1 and multiplies_two(reductions[0]),
        is_cast=not reductions and _is_cast(blocks),
        shape=shape,
    )


def multiplies_two(block: Any) -> bool:
    """Whether a block multiplies elements of two buffers."""
    return any(
        all(sides := [_sources(item.a), _sources(item.b)]) and sides[0] != sides[1]
        for item in grammar.nodes(block.body, tirx.Mul)
    )


def _sources(expr: Any) -> list[Any]:
    """The buffers that an expression reads."""
    return [load.source for load in grammar.nodes(expr, TensorLoad)]


def _is_cast(blocks: Sequence[Any]) -> bool:
    bodies = [block.body for block in blocks if isinstance(block.body, tirx.BufferStore)]
    if len(bodies) != 1:
        return False
    return type(bodies[0].value).__name__ == "Cast" or rounding.source(bodies[0].value) is not None


def readers(mod: tvm.IRModule, calls: Sequence[Call]) -> dict[Any, set[Any]]:
    """The variables whose values read a call's result; other readers than calls, too."""
    by_var: dict[Any, set[Any]] = {call.var: set() for call in calls}
    main = mod["main"]
    items = [(b.var, b.value) for b in bindings(main)]
    for reader, value in [*items, (None, main.body.body)]:
        for var in relax.analysis.free_vars(value):
            if var in by_var:
                by_var[var].add(reader)
    return by_var
