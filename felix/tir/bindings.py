"""Bindings of expressions at the root of a value, where TVM's vectorizer reads them once.

The vectorizer visits both sides of a product twice where neither changes, as in a sum of
products whose first factor is the same for all lanes, and refuses a `Let` that it visits
again. So

    (let v = x in f(v)) * w  ->  let v = x in f(v) * w

and alike through all that evaluates its operands anyhow. What only one branch of
`if_then_else` evaluates stays there: its loads may be outside of a buffer elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural

from felix.tir import grammar


def at_roots(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with its Lets as far out as they may be; itself if it has none."""
    if not grammar.nodes(func.body, tirx.Let):
        return func
    rules = [
        (kind, lambda node: _around(node, (node.a, node.b), type(node)))
        for kind in grammar.BINARY_NODES
    ]
    rules += [(tirx.Cast, _of_cast), (tirx.Select, _of_select), (tvm.ir.Call, _of_call)]
    return func.with_body(structural.structural_map(func.body, (*rules, (tirx.Let, _of_let))))


def _of_cast(node: Any) -> Any:
    return _around(node, (node.value,), lambda value: tirx.Cast(grammar.dtype(node), value))


def _of_select(node: Any) -> Any:
    return _around(node, (node.condition, node.true_value, node.false_value), tirx.Select)


def _of_call(node: Any) -> Any:
    if not isinstance(node.op, tvm.ir.Op) or grammar.function_name(node) == "if_then_else":
        return node
    return _around(
        node, node.args, lambda *args: tirx.call_intrin(grammar.dtype(node), node.op, *args)
    )


def _of_let(node: Any) -> Any:
    """let v = (let u = a in b) in c  ->  let u = a in let v = b in c."""
    return _around(node, (node.value,), lambda value: tirx.Let(node.var, value, node.body))


def _around(node: Any, operands: Sequence[Any], made: Callable[..., Any]) -> Any:
    """A node of bare operands within all that these bind; a variable is bound once."""
    if not any(isinstance(each, tirx.Let) for each in operands):
        return node
    bound: dict[Any, Any] = {}
    bare = []
    for operand in operands:
        inner = operand
        while isinstance(inner, tirx.Let):
            bound.setdefault(inner.var, inner.value)
            inner = inner.body
        bare.append(inner)
    result = made(*bare)
    for var, value in reversed(bound.items()):
        result = tirx.Let(var, value, result)
    return result
