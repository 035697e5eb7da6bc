"""The graph of a lowered module."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from felix.frontend import rewriting
from felix.frontend.programs import groups, outlining
from felix.frontend.programs.planning.graph import Graph, Operator, PossibleGroup, Read, Role
from felix.tir import cost, grammar


@dataclasses.dataclass(frozen=True)
class Reading:
    """A module's calls, its graph, and other ways' groups.

    Attributes:
        mod: the module.
        calls: in the order of execution; the operators of the graph. Calls of one variable
            compute the same.
        graph: what they do.
        external: the variables of the graph's inputs and parameters, by their numbers.
        by_rules, by_fuseops: numbers of the calls of each group, in the order of execution, of the
            fixed rules and of TVM's pass.
    """

    mod: tvm.IRModule
    calls: tuple[groups.Call, ...]
    graph: Graph
    external: Mapping[int, Any]
    by_rules: tuple[tuple[int, ...], ...]
    by_fuseops: tuple[tuple[int, ...], ...]

    def group(self, candidate: PossibleGroup) -> list[groups.Call]:
        """The calls of a candidate, in the order of execution."""
        return [self.calls[number] for number in sorted(candidate.members)]

    def variable(self, value: int) -> Any:
        """What a value is bound to."""
        return self.external[value] if value < 0 else self.calls[value].var

    @functools.cached_property
    def constants(self) -> frozenset[Any]:
        """The variables of the model's parameters, and of what depends on them alone."""
        return rewriting.constants(self.mod)


def signature(group: Sequence[groups.Call]) -> tuple[Any, ...]:
    """Equal for groups of the same programs with the same operands."""
    numbers: dict[Any, str] = {}
    lines: list[Any] = []
    for call in group:
        operands = []
        for operand in call.value.args[1].fields:
            numbers.setdefault(operand, f"{len(numbers)}:{operand.ty}")
            operands.append(numbers[operand])
        lines.append((_program(call), *operands))
        numbers[call.var] = f"of {len(lines)}"
    return tuple(lines)


def read(mod: tvm.IRModule) -> Reading:
    """The graph of a module with operators lowered, and TVM's kinds of operators on them."""
    calls = [_without_views(mod, call) for call in groups.calls(mod)]
    numbers = {call.var: number for number, call in enumerate(calls)}
    graph, external = _graph(mod, calls, frozenset(), {})
    chosen = groups.by_rules(calls, groups.readers(mod, calls))
    return Reading(
        mod=mod,
        calls=tuple(calls),
        graph=graph,
        external=external,
        by_fuseops=_by_fuseops(mod, graph, {str(var.name): n for var, n in numbers.items()}),
        by_rules=tuple(tuple(numbers[call.var] for call in group) for group in chosen),
    )


def extended(
    read: Reading, mod: tvm.IRModule, calls: Sequence[groups.Call], extra: Collection[Any]
) -> Reading:
    """The reading of a module that computes more.

    Args:
        read: of the module as it was.
        mod: with more calls.
        calls: those that were read before, and new ones: stand-ins behind what they stand for, and
            of new variables. Calls of the module that are not among them cost nothing.
        extra: the new variables.
    """
    known = frozenset({*extra, *(read.calls[number].var for number in read.graph.extra)})
    operators = zip(read.calls, read.graph.operators, strict=True)
    flops = {_program(call): operator.flops for call, operator in operators}
    graph, external = _graph(mod, calls, known, flops)
    numbers: dict[Any, int] = {}
    for number, call in enumerate(calls):
        numbers.setdefault(call.var, number)

    def moved(ways: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(numbers[read.calls[n].var] for n in group) for group in ways)

    return Reading(
        mod=mod,
        calls=tuple(calls),
        graph=graph,
        external=external,
        by_fuseops=moved(read.by_fuseops),
        by_rules=moved(read.by_rules),
    )


def _graph(
    mod: tvm.IRModule,
    calls: Sequence[groups.Call],
    extra: Collection[Any],
    flops: Mapping[str, int],
) -> tuple[Graph, dict[int, Any]]:
    """The graph of calls, and the variables of its inputs by their numbers; `flops` of programs by
    name, as far as they were counted before."""
    numbers: dict[Any, int] = {}
    stands_for: dict[int, int] = {}
    for number, call in enumerate(calls):
        if numbers.setdefault(call.var, number) != number:
            stands_for[number] = numbers[call.var]
    values = {b.var: b.value for b in rewriting.bindings(mod["main"])}
    owners = numbers | _items(values, numbers)
    external: dict[Any, int] = {}
    counted = dict(flops)
    for call in calls:
        if _program(call) not in counted:
            counted[_program(call)] = cost.count(mod[call.value.args[0]]).flops
    operators = [_operator(mod, call, owners, external, counted[_program(call)]) for call in calls]
    outside = frozenset(_read_outside(mod, numbers, owners))
    news = frozenset(numbers[var] for var in extra)
    graph = Graph(tuple(operators), outside, stands_for, news)
    return graph, {number: var for var, number in external.items()}


def _by_fuseops(
    mod: tvm.IRModule, graph: Graph, numbers: Mapping[str, int]
) -> tuple[tuple[int, ...], ...]:
    """The groups of FuseOps, which leaves views alone.

    Args:
        numbers: of the calls, by the names of their variables; those inside of a group keep them.
    """
    opaque = {
        variable: func.with_attr("op_pattern", groups.OPAQUE)
        if isinstance(func, tirx.PrimFunc) and _is_view(func)
        else func
        for variable, func in mod.functions_items()
    }
    made = relax.transform.FuseOps()(tvm.IRModule(opaque, attrs=mod.attrs))
    several: list[tuple[int, ...]] = []
    for _, func in made.functions_items():
        if not isinstance(func, relax.Function) or "Primitive" not in (func.attrs or {}):
            continue
        names = [str(b.var.name) for b in rewriting.bindings(func)]
        inner = [numbers[name] for name in names[:-1]]
        (last,) = set().union(*(graph.readers[number] for number in inner)) - set(inner)
        several.append((*sorted(inner), last))
    grouped = {number for group in several for number in group}
    alone = [(number,) for number in range(len(graph.operators)) if number not in grouped]
    return tuple(sorted([*several, *alone], key=max))


def _program(call: groups.Call) -> str:
    """The name of what is called."""
    return str(call.value.args[0].name_hint)


def _without_views(mod: tvm.IRModule, call: groups.Call) -> groups.Call:
    """A call as the fixed rules see it, to which a view is a group of its own."""
    is_view = _is_view(mod[call.value.args[0]])
    return dataclasses.replace(call, pattern=groups.OPAQUE) if is_view else call


def _is_view(func: tirx.PrimFunc) -> bool:
    return bool(relax.analysis.has_reshape_pattern(func))


def _items(values: dict[Any, Any], numbers: dict[Any, int]) -> dict[Any, int]:
    """The calls that items of tuples are results of."""
    return {
        var: numbers[value.tuple_value]
        for var, value in values.items()
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in numbers
    }


def _read_outside(mod: tvm.IRModule, numbers: dict[Any, int], owners: dict[Any, int]) -> set[int]:
    """Calls whose results something else than a call reads: what the model returns, say."""
    main = mod["main"]
    known = numbers.keys() | owners.keys()
    others = [b.value for b in rewriting.bindings(main) if b.var not in known]
    read = {var for value in (*others, main.body.body) for var in relax.analysis.free_vars(value)}
    return {owners[var] for var in read if var in owners}


def _operator(
    mod: tvm.IRModule,
    call: groups.Call,
    owners: dict[Any, int],
    external: dict[Any, int],
    flops: int,
) -> Operator:
    func = mod[call.value.args[0]]
    role, n_rows = _role(func, call)
    result_bytes = _bytes(call.var.ty)
    n_results = math.prod(call.shape) if call.shape is not None else 0
    reads = []
    for operand in call.value.args[1].fields:
        number = owners.get(operand)
        if number is None:
            number = external.setdefault(operand, -1 - len(external))
        n_bytes = _bytes(operand.ty)
        if role in (Role.MOVE, Role.ELEMENTWISE, Role.CAST, Role.VIEW):
            n_bytes = min(n_bytes, n_results * grammar.element_bytes(str(operand.ty.dtype)))
        reads.append(Read(number, n_bytes))
    dtypes = [str(operand.ty.dtype) for operand in call.value.args[1].fields]
    is_narrow = all(grammar.element_bytes(dtype) <= 2 for dtype in dtypes)
    return Operator(role, tuple(reads), call.shape, result_bytes, flops, n_rows, is_narrow)


def _role(func: tirx.PrimFunc, call: groups.Call) -> tuple[Role, int]:
    """What a call does, and the rows that it reduces."""
    if call.shape is None:
        return Role.OPAQUE, 0
    if _is_view(func):
        return Role.VIEW, 0
    if call.n_reductions:
        rows = _rows(func)
        if rows is not None and not call.is_contraction:
            return Role.ROWS, rows
        is_plain = call.n_reductions == 1 and call.pattern != groups.OPAQUE
        return (Role.CONTRACTION if is_plain else Role.OPAQUE), 0
    if call.pattern > groups.MOVE:
        return Role.OPAQUE, 0
    if call.is_cast:
        return Role.CAST, 0
    if len(call.operands) == 1 and _only_moves(func):
        return Role.MOVE, 0
    return (Role.ELEMENTWISE if call.pattern <= groups.ELEMENTWISE else Role.GATHER), 0


def _only_moves(func: tirx.PrimFunc) -> bool:
    return all(map(outlining.is_move, (b for b in grammar.blocks(func.body) if len(b.iter_vars))))


def _rows(func: tirx.PrimFunc) -> int | None:
    """Rows that every reduction of a program reduces, along the last axes of what it reads."""
    counts = set()
    for block in grammar.blocks(func.body):
        if block.init is None:
            continue
        reduced = {
            each.var for each in block.iter_vars if each.iter_type == tirx.IterVar.CommReduce
        }
        if not _are_last(block, reduced):
            return None
        spatial = [int(each.dom.extent) for each in block.iter_vars if each.var not in reduced]
        counts.add(math.prod(spatial))
    return counts.pop() if len(counts) == 1 else None


def _are_last(block: Any, reduced: set[Any]) -> bool:
    """Whether variables are the last indices of every tensor that they are an index of."""
    flags = (
        [index in reduced for index in load.indices]
        for store in grammar.statements(block.body)
        if isinstance(store, tirx.BufferStore)
        for load in filter(grammar.is_load, grammar.expressions(store.value))
    )
    return all(each == sorted(each) for each in flags)


def _bytes(kind: Any) -> int:
    if isinstance(kind, relax.TupleType):
        return sum(_bytes(field) for field in kind.fields)
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        return 0
    extents: Sequence[Any] = list(kind.shape)
    return math.prod(map(int, extents)) * grammar.element_bytes(str(kind.dtype))
