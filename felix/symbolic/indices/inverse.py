"""Inverses of index maps: where a consumer's element goes, as a function of the producer's.

A reshape reads its producer at computed indices. TVM inlines it into the producer all the same,
because the map from the iterators of the reshape to the indices it reads is a bijection; the
inverse gives the indices at which the producer stores the reshape's result. TVM's own inversion is
used, so that the expressions come out as in its schedules.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import sympy
import tvm
from tvm import sym, tirx

from felix.errors import UnsupportedSchedule
from felix.symbolic import expr
from felix.symbolic.indices import index_expr

_BINARY = {expr.FloorDiv: tirx.floordiv, expr.FloorMod: tirx.floormod}

#: Iterators with the extents of their domains.
Domains = tuple[tuple[sympy.Symbol, int], ...]


@functools.lru_cache(256)
def inverse(
    iters: Domains,
    indices: tuple[sympy.Expr, ...],
    targets: tuple[sympy.Expr, ...],
    outer: Domains,
) -> Mapping[sympy.Symbol, sympy.Expr]:
    """The iterators for which the indices have the values of the targets.

    Args:
        iters: of the indices.
        indices: expressions in the iterators, together a bijection onto a buffer's elements.
        targets: expressions in the iterators of `outer`, one for each index.

    Returns:
        Each iterator as an expression in the iterators of `outer`.

    Raises:
        UnsupportedSchedule: the indices are not such a bijection.
    """
    inner, others = _variables(iters), _variables(outer)
    analyzer = sym.Analyzer()
    for symbol, extent in outer:
        analyzer.bind(others[symbol], tvm.ir.Range(0, extent))
    iter_map = sym.detect_iter_map(
        [_to_tir(index, inner) for index in indices],
        {inner[symbol]: tvm.ir.Range(0, extent) for symbol, extent in iters},
        check_level=sym.iter_affine_map.IterMapLevel.Bijective,
        simplify_trivial_iterators=False,
    ).indices
    if not iter_map:
        raise UnsupportedSchedule("reverse inlining through indices that are no bijection")
    inverted = sym.inverse_affine_iter_map(
        iter_map, [_to_tir(target, others) for target in targets]
    )
    symbols = {variable: symbol for symbol, variable in others.items()}
    return {
        symbol: index_expr.load_index(analyzer.simplify(inverted[variable]), symbols)
        for symbol, variable in inner.items()
        if variable in inverted
    }


def _variables(iters: Domains) -> dict[sympy.Symbol, tirx.Var]:
    return {symbol: tirx.Var(f"v{i}", "int32") for i, (symbol, _) in enumerate(iters)}


def _to_tir(index: sympy.Expr, variables: Mapping[sympy.Symbol, tirx.Var]) -> tirx.PrimExpr:
    """An index expression as TVM's."""
    if index in variables:
        return variables[index]
    if index.is_Integer:
        return tirx.IntImm("int32", int(index))
    args = [_to_tir(argument, variables) for argument in index.args]
    if isinstance(index, sympy.Add):
        return _folded(args, tirx.Add)
    if isinstance(index, sympy.Mul):
        return _folded(args, tirx.Mul)
    if type(index) in _BINARY:
        return _BINARY[type(index)](*args)
    raise UnsupportedSchedule(f"reverse inlining through the index {index}")


def _folded(args: Sequence[tirx.PrimExpr], operation: type) -> tirx.PrimExpr:
    return functools.reduce(operation, args)
