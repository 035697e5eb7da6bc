"""Inverses of index maps: where a consumer's element goes, as a function of the producer's.

A reshape reads its producer at computed indices. TVM inlines it into the producer all the same,
because the map from the iterators of the reshape to the indices it reads can be inverted; the
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
from felix.symbolic import expr, index_expr

_BINARY = {expr.FloorDiv: tirx.floordiv, expr.FloorMod: tirx.floormod}

_LEVEL = sym.iter_affine_map.IterMapLevel

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
        indices: expressions in the iterators, a bijection onto a buffer's elements or onto a part
            of them (a tensor cut in blocks that its extent is no multiple of).
        targets: expressions in the iterators of `outer`, one for each index.

    Returns:
        Each iterator as an expression in the iterators of `outer`.

    Raises:
        UnsupportedSchedule: TVM has no inverse of the indices.
    """
    inner, others = _variables(iters), _variables(outer)
    analyzer = sym.Analyzer()
    for symbol, extent in outer:
        analyzer.bind(others[symbol], tvm.ir.Range(0, extent))
    domains = {inner[symbol]: tvm.ir.Range(0, extent) for symbol, extent in iters}
    bindings = [_to_tir(index, inner) for index in indices]
    iter_map = _iter_map(bindings, domains)
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


def _iter_map(
    bindings: Sequence[tirx.PrimExpr], domains: Mapping[tirx.Var, tvm.ir.Range]
) -> Sequence[sym.IterSumExpr]:
    """TVM's iterator map of the bindings, which take every value once or some never; or none."""
    for level in (_LEVEL.Bijective, _LEVEL.NoCheck):
        detected = sym.detect_iter_map(
            bindings, domains, check_level=level, simplify_trivial_iterators=False
        )
        iter_map = list(detected.indices)
        if iter_map and (level == _LEVEL.Bijective or _inverts(iter_map, bindings, domains)):
            return iter_map
    return []


def _inverts(
    iter_map: Sequence[sym.IterSumExpr],
    bindings: Sequence[tirx.PrimExpr],
    domains: Mapping[tirx.Var, tvm.ir.Range],
) -> bool:
    """Whether the inverse of the map gives the iterators back for what is bound to them."""
    analyzer = sym.Analyzer()
    for variable, domain in domains.items():
        analyzer.bind(variable, domain)
    inverted = sym.inverse_affine_iter_map(iter_map, bindings)
    return all(
        variable in inverted and analyzer.can_prove_equal(inverted[variable], variable)
        for variable in domains
    )


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
        return functools.reduce(tirx.Add, args)
    if isinstance(index, sympy.Mul):
        return functools.reduce(tirx.Mul, args)
    if type(index) in _BINARY:
        return _BINARY[type(index)](*args)
    raise UnsupportedSchedule(f"reverse inlining through the index {index}")
