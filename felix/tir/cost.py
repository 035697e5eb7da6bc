"""FLOPs, minimal bytes and size of a checked program, counted from its TIR.

FLOPs: executions of every float addition, subtraction, multiplication, division, modulus,
minimum, maximum and math function; casts, comparisons and selections count none. Of integer work
additions, subtractions and multiplications count where narrower data are widened for them: sums of
products of int8 in int32, which vendors state rates of.
The branches of if_then_else cost what the dearer one costs (one of them runs), those of Select
cost both (both are evaluated). A block's init counts once per spatial point.

Minimal bytes: walking the stores backwards from the outputs, the elements of each parameter that
some needed element depends on, plus the elements written. Sets are kept per dimension, so a
strided access counts only the rows it touches; where the indices of two dimensions depend on
each other the product of the per-dimension sets is an upper bound. A parameter that is only loaded
at indices which depend on data counts with at most one element a load.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx

from felix.tir import grammar, numeric

#: Index values enumerated for one dimension of one access; above, the dimension counts in full.
_MAX_ENUMERATED = 2**22

_FLOAT_OPS = frozenset(("Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"))
_WIDENED_OPS = frozenset(("Add", "Sub", "Mul"))
_FREE_CALLS = frozenset(("likely", "if_then_else", "isnan", "isinf", "isfinite"))

#: The values an iterator or dimension takes; None means all of them.
Values = npt.NDArray[np.int64] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Operations by the module's rule, and bytes of distinct parameter elements used."""

    flops: int
    min_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Store:
    """One store of the program: how often it runs, and the domains of its block's iterators.

    `values` are what it stores, and what was bound to variables before it; `flops` those of one
    execution, what was bound counted with the first store that follows.
    """

    buffer: Any
    indices: tuple[Any, ...]
    values: tuple[Any, ...]
    flops: int
    trips: int
    domains: Mapping[Any, int]


def count(func: tirx.PrimFunc) -> Cost:
    """The cost of a function that `validate.normalise` returned."""
    stores = list(_stores(func.body, 1, {}))
    flops = sum(store.trips * store.flops for store in stores)
    return Cost(flops, _min_bytes(func, stores))


def float_ops(expr: Any) -> int:
    """Float operations of one evaluation of an expression."""
    kind = type(expr).__name__
    if kind == "Call" and grammar.function_name(expr) == "if_then_else":
        condition, then_value, else_value = expr.args
        return float_ops(condition) + max(float_ops(then_value), float_ops(else_value))
    below = sum(float_ops(child) for child in grammar.children(expr))
    is_free = (
        grammar.function_name(expr) in _FREE_CALLS if kind == "Call" else kind not in _FLOAT_OPS
    )
    return below + int(grammar.is_float(grammar.dtype(expr)) and not is_free)


def _operations(expr: Any) -> int:
    """Operations of one evaluation of a stored or bound value."""
    return float_ops(expr) + _widened_ops(expr)[0]


def _widened_ops(expr: Any) -> tuple[int, bool]:
    """Operations of an expression on widened integers, and whether it is made of such integers."""
    kind = type(expr).__name__
    if kind == "TensorLoad":
        return 0, False
    below = [_widened_ops(child) for child in grammar.children(expr)]
    count, is_widened = sum(ops for ops, _ in below), any(widened for _, widened in below)
    if grammar.is_float(grammar.dtype(expr)):
        return count, False
    if kind == "Cast" and _widens(expr):
        return count, True
    return count + int(is_widened and kind in _WIDENED_OPS), is_widened


def _widens(cast: Any) -> bool:
    """Whether a cast makes wider integers of integer data."""
    narrow, wide = grammar.dtype(cast.value), grammar.dtype(cast)
    is_of_integers = narrow != "bool" and not grammar.is_float(narrow)
    widens = is_of_integers and grammar.bits(narrow) < grammar.bits(wide)
    return widens and grammar.depends_on_data(cast.value)


def _stores(stmt: Any, trips: int, domains: Mapping[Any, int]) -> Iterator[_Store]:
    match type(stmt).__name__:
        case "For":
            extent = int(stmt.extent)
            inside = {**domains, stmt.loop_var: extent}
            yield from _stores(stmt.body, trips * extent, inside)
        case "SeqStmt":
            bound: tuple[Any, ...] = ()
            flops = 0
            for item in stmt.seq:
                if type(item).__name__ == "Bind":
                    bound, flops = (*bound, item.value), flops + _operations(item.value)
                    continue
                for store in _stores(item, trips, domains):
                    yield dataclasses.replace(
                        store, values=(*store.values, *bound), flops=store.flops + flops
                    )
                    flops = 0
        case "IfThenElse":
            yield from _stores(stmt.then_case, trips, domains)
            if stmt.else_case is not None:
                yield from _stores(stmt.else_case, trips, domains)
        case "BufferStore":
            stored = stmt.buffer, tuple(stmt.indices), (stmt.value,)
            yield _Store(*stored, _operations(stmt.value), trips, domains)
        case "SBlockRealize":
            block = stmt.block
            inside = {**domains, **{v.var: int(v.dom.extent) for v in block.iter_vars}}
            if block.init is not None:
                points = grammar.extent(block, grammar.SPATIAL)
                yield from _stores(block.init, points, inside)
            yield from _stores(block.body, trips, inside)


def _min_bytes(func: tirx.PrimFunc, stores: list[_Store]) -> int:
    written = {store.buffer for store in stores}
    elements: dict[Any, list[Values]] = {}
    for parameter in func.params:
        if parameter in written:
            elements[parameter] = [None] * len(grammar.shape(parameter))
    total: float = sum(_bytes(buffer, values) for buffer, values in elements.items())
    for store in reversed(stores):
        if store.buffer in elements:
            _propagate(store, elements)
    gathers = _gathers(stores)
    for buffer in func.params:
        if buffer in elements and buffer not in written:
            size = grammar.element_bytes(grammar.dtype(buffer))
            total += min(_bytes(buffer, elements[buffer]), gathers.get(buffer, math.inf) * size)
    return int(total)


def _gathers(stores: list[_Store]) -> dict[Any, int]:
    """Loads of each buffer whose loads all have an index that depends on data."""
    counts: dict[Any, int] = {}
    others = set()
    for store in stores:
        for expr in (*store.values, *store.indices):
            for load in filter(grammar.is_load, grammar.expressions(expr)):
                if any(map(grammar.depends_on_data, load.indices)):
                    counts[load.source] = counts.get(load.source, 0) + store.trips
                else:
                    others.add(load.source)
    return {buffer: count for buffer, count in counts.items() if buffer not in others}


def _bytes(buffer: Any, values: list[Values]) -> int:
    extents = grammar.shape(buffer)
    counts = [extent if v is None else len(v) for extent, v in zip(extents, values, strict=True)]
    return math.prod(counts) * grammar.element_bytes(grammar.dtype(buffer))


def _propagate(store: _Store, elements: dict[Any, list[Values]]) -> None:
    """Add to `elements` what the store of those of its buffer reads."""
    limits: dict[Any, Values] = {}
    for index, values in zip(store.indices, elements[store.buffer], strict=True):
        if values is not None and index in store.domains:
            limits[index] = values
    for expr in (*store.values, *store.indices):
        for item in grammar.expressions(expr):
            if grammar.is_load(item) and item.source != store.buffer:
                _add(item, store.domains, limits, elements)


def _add(
    load: Any,
    domains: Mapping[Any, int],
    limits: Mapping[Any, Values],
    elements: dict[Any, list[Values]],
) -> None:
    buffer = load.source
    touched = [
        _touched(index, extent, domains, limits)
        for index, extent in zip(load.indices, grammar.shape(buffer), strict=True)
    ]
    before = elements.get(buffer)
    if before is None:
        elements[buffer] = touched
        return
    elements[buffer] = [
        None if old is None or new is None else np.union1d(old, new)
        for old, new in zip(before, touched, strict=True)
    ]


def _touched(
    index: Any, extent: int, domains: Mapping[Any, int], limits: Mapping[Any, Values]
) -> Values:
    """The values of an index expression that lie in [0, extent); None when it is all of them."""
    parts = list(grammar.expressions(index))
    if not all(_is_evaluable(part) for part in parts):
        return None
    variables = list(dict.fromkeys(p for p in parts if type(p).__name__ == "Var"))
    if any(variable not in domains for variable in variables):
        return None
    if index in variables and limits.get(index) is None and domains[index] == extent:
        return None
    sizes = [_size(variable, domains, limits) for variable in variables]
    if math.prod(sizes) > _MAX_ENUMERATED:
        return None
    with np.errstate(all="ignore"):
        values = np.unique(numeric.evaluate(index, _grid(variables, domains, limits)))
    values = values[(values >= 0) & (values < extent)]
    return None if len(values) == extent else values


def _size(variable: Any, domains: Mapping[Any, int], limits: Mapping[Any, Values]) -> int:
    limit = limits.get(variable)
    return domains[variable] if limit is None else len(limit)


def _grid(
    variables: list[Any], domains: Mapping[Any, int], limits: Mapping[Any, Values]
) -> dict[Any, npt.NDArray[np.int64]]:
    """Every variable's values on an axis of its own."""
    grid = {}
    for axis, variable in enumerate(variables):
        limit = limits.get(variable)
        values = np.arange(domains[variable], dtype=np.int64) if limit is None else limit
        grid[variable] = values.reshape([-1 if a == axis else 1 for a in range(len(variables))])
    return grid


def _is_evaluable(expr: Any) -> bool:
    name = numeric.operation(expr)
    return name in ("IntImm", "Var") or name in numeric.INTEGER_OPERATIONS


def buffer_bytes(func: tirx.PrimFunc) -> int:
    """Bytes of all inputs, outputs and intermediate buffers of the unscheduled program."""
    return sum(
        math.prod(grammar.shape(buffer)) * grammar.element_bytes(grammar.dtype(buffer))
        for buffer in grammar.buffers(func)
    )


def executions(func: tirx.PrimFunc) -> int:
    """How often blocks compute an element in one run; integer and copying programs count, too."""
    every = grammar.blocks(func.body)
    return sum(grammar.extent(block) for block in every if len(block.iter_vars))
