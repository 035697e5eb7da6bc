"""Making programs anew: loop nests of one block each, the function around them, and values that
are 0 unless conditions hold, as padding and spreading make them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import stmt as s_stmt
from tvm_ffi import structural

from felix.tir import grammar

SPATIAL, REDUCE = grammar.SPATIAL, grammar.REDUCE
#: An expression of TIR.
Expr = Any
#: Expressions at one point of a domain.
AtPoint = Callable[[Sequence[Expr]], Expr]


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """An iterator of a block, 0 <= variable < extent, of type SPATIAL or REDUCE."""

    variable: tirx.Var
    extent: int
    kind: int = SPATIAL

    @property
    def range(self) -> tvm.ir.Range:
        return tvm.ir.Range(0, tirx.IntImm(self.variable.ty.dtype, self.extent))


@dataclasses.dataclass(frozen=True, slots=True)
class Nest:
    """A statement of the root block: plain loops around a block with one store.

    A reduction begins with one store, too.

    Attributes:
        statement: the outermost loop, or the block itself.
    """

    statement: Any
    realize: s_stmt.SBlockRealize

    @property
    def block(self) -> s_stmt.SBlock:
        return self.realize.block

    @property
    def buffer(self) -> tirx.Buffer:
        """What the block stores to."""
        return self.block.body.buffer

    @property
    def name(self) -> str:
        return str(self.block.name_hint)

    @property
    def axes(self) -> list[Axis]:
        return [
            Axis(each.var, int(each.dom.extent), int(each.iter_type))
            for each in self.block.iter_vars
        ]

    @property
    def is_plain(self) -> bool:
        """Whether it is no reduction, and each element is stored by the iterators' values."""
        variables = [axis.variable for axis in self.axes]
        is_direct = tvm_ffi.structural_equal(list(self.block.body.indices), variables)
        return self.block.init is None and bool(is_direct)


def of_function(func: tirx.PrimFunc) -> list[Nest] | None:
    """The nests of a function, in order; None if a statement is none."""
    body = func.body.block.body
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    nests = [_nest(statement) for statement in statements]
    return [nest for nest in nests if nest] if all(nests) else None


def producers(program: Sequence[Nest]) -> dict[Any, Nest]:
    """The nests that compute each element of a buffer for itself, by their buffers."""
    return {nest.buffer: nest for nest in program if nest.is_plain}


def _nest(statement: Any) -> Nest | None:
    inner = statement
    while isinstance(inner, tirx.For):
        inner = inner.body
    if not isinstance(inner, s_stmt.SBlockRealize):
        return None
    stores = [inner.block.body, *([] if inner.block.init is None else [inner.block.init])]
    is_plain = all(isinstance(each, tirx.BufferStore) for each in stores)
    return Nest(statement, inner) if is_plain else None


def make(
    target: tirx.Buffer,
    axes: Sequence[Axis],
    indices: Sequence[Expr],
    value: Expr,
    init: Expr = None,
    name: str | None = None,
) -> Nest:
    """A nest that stores a value of its axes; regions are left to be derived.

    Args:
        init: what a reduction begins with.
        name: of the block; the buffer's when left out.
    """
    iter_vars = [tirx.IterVar(axis.range, axis.variable, axis.kind) for axis in axes]
    first = None if init is None else tirx.BufferStore(target, init, indices)
    body = tirx.BufferStore(target, value, indices)
    block = s_tir.SBlock(iter_vars, [], [], name or str(target.name), body, first)
    loops = [tirx.Var(axis.variable.name, axis.variable.ty.dtype) for axis in axes]
    realize = s_tir.SBlockRealize(loops, True, block)
    statement: Any = realize
    for variable, axis in reversed(list(zip(loops, axes, strict=True))):
        statement = tirx.For(
            variable, axis.range.min, axis.range.extent, tirx.ForKind.SERIAL, statement
        )
    return Nest(statement, realize)


def computed(name: str, like: tirx.Buffer, shape: Sequence[int], value: AtPoint) -> Nest:
    """A nest that fills a new buffer of `like`'s type with a value at each of its indices."""
    return filled(buffer_like(name, like, shape), shape, value)


def filled(
    buffer: tirx.Buffer, shape: Sequence[int], value: AtPoint, name: str | None = None
) -> Nest:
    """A nest that fills a buffer of this shape with a value at each of its indices.

    Args:
        name: of the block; the buffer's when left out.
    """
    dtype = index_dtype(buffer)
    axes = [Axis(tirx.Var(f"v_{i}", dtype), extent) for i, extent in enumerate(shape)]
    variables = [axis.variable for axis in axes]
    return make(buffer, axes, variables, value(variables), name=name)


def buffer_like(name: str, like: tirx.Buffer, shape: Sequence[int]) -> tirx.Buffer:
    """A new compact buffer of the types of another."""
    dtype = index_dtype(like)
    extents = [tirx.IntImm(dtype, extent) for extent in shape]
    return tirx.decl_buffer(extents, like.dtype, name, layout=None)


def index_dtype(buffer: tirx.Buffer) -> str:
    """The type of a buffer's indices."""
    return str(buffer.shape[0].ty.dtype)


def function(func: tirx.PrimFunc, nests: Sequence[Nest]) -> tirx.PrimFunc:
    """The function with these nests; those whose results nobody reads are left out."""
    used = _used(func, nests)
    root = func.body.block
    params = list(func.params)
    allocated = [nest.buffer for nest in used if nest.buffer not in params]
    statements = [nest.statement for nest in used]
    body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
    block = s_tir.SBlock(
        [], [], [], root.name_hint, body, None, allocated, annotations=root.annotations
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _used(func: tirx.PrimFunc, nests: Sequence[Nest]) -> list[Nest]:
    """The nests that store to parameters or to what later ones of them read."""
    read: list[Any] = list(func.params)
    used = []
    for nest in reversed(nests):
        if nest.buffer in read:
            used.append(nest)
            read += [load.source for load in loads(nest.block.body.value)]
    return used[::-1]


# ---------------------------------------------------------------- expressions


def summed(nest: Nest) -> Expr | None:
    """What a nest sums into each element of its result, from a number on; None if it does not."""
    store, init = nest.block.body, nest.block.init
    kinds = [axis.kind for axis in nest.axes]
    if init is None or kinds != sorted(kinds, key=[SPATIAL, REDUCE].index):
        return None
    if not isinstance(init.value, tirx.IntImm | tirx.FloatImm):
        return None
    spatial = [axis.variable for axis in nest.axes if axis.kind == SPATIAL]
    plain = tvm_ffi.structural_equal(list(store.indices), spatial)
    if not plain or not isinstance(store.value, tirx.Add):
        return None
    left = store.value.a
    accumulates = isinstance(left, TensorLoad) and left.source.same_as(store.buffer)
    return store.value.b if accumulates else None


def is_product(term: Expr) -> bool:
    """Whether a term is a product of loads, so that it is 0 where one of them is.

    What is loaded does not say where another load reads.
    """
    if isinstance(term, tirx.Mul):
        return is_product(term.a) and is_product(term.b)
    if isinstance(term, tirx.Cast):
        return is_product(term.value)
    return isinstance(term, TensorLoad) and not any(map(loads, term.indices))


def analyzer(variables: Sequence[tirx.Var], extents: Sequence[int]) -> sym.Analyzer:
    """That knows the domains [0, extent) of the variables."""
    made = sym.Analyzer()
    for variable, extent in zip(variables, extents, strict=True):
        made.bind(variable, tvm.ir.Range(0, extent))
    return made


def loads(expr: Expr) -> list[TensorLoad]:
    """The loads in an expression."""
    return grammar.nodes(expr, TensorLoad)


def variables(expr: Expr) -> list[tirx.Var]:
    """The variables in an expression, each once."""
    return list(dict.fromkeys(grammar.nodes(expr, tirx.Var)))


def with_loads(expr: Expr, replace: Callable[[TensorLoad], Expr | None]) -> Expr:
    """The expression with loads replaced for which `replace` gives another expression."""

    def mapped(load: TensorLoad) -> Expr:
        other = replace(load)
        return load if other is None else other

    return structural.structural_map(expr, (TensorLoad, mapped))


def zero_unless(
    conditions: Sequence[Expr], inside: Sequence[Expr], value: Expr, analyzer: sym.Analyzer
) -> Expr:
    """The value where all conditions hold, else 0; of `inside`, those that the others do not
    imply."""
    value, left = _simplified(value, analyzer), _remaining(conditions, inside, analyzer)
    if not left:
        return value
    whole = functools.reduce(tirx.And, left)
    return tirx.if_then_else(whole, value, tirx.const(0, value.ty.dtype))


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
            return resolved(grammar.substituted(stored, at), producers)
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


def _remaining(
    conditions: Sequence[Expr], inside: Sequence[Expr], analyzer: sym.Analyzer
) -> list[Expr]:
    """The conditions that are not always true, and of `inside` those that they do not imply."""
    simple = [analyzer.simplify(condition) for condition in conditions]
    remaining = [condition for condition in simple if not grammar.is_constant(condition, 1)]
    for condition in inside:
        holds = analyzer.can_prove(condition)
        if not holds and remaining:
            with analyzer.constraint_scope(tirx.all(*remaining)):
                holds = analyzer.can_prove(condition)
        if not holds:
            remaining.append(analyzer.simplify(condition))
    return remaining


def _simplified(value: Expr, analyzer: sym.Analyzer) -> Expr:
    """The value with simple indices."""

    def simple(load: TensorLoad) -> Expr:
        return tirx.BufferLoad(load.source, [analyzer.simplify(index) for index in load.indices])

    return with_loads(value, simple)
