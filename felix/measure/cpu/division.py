"""Division of integers that does not end the process.

x86 traps where an integer is divided by 0, and where the least one is divided by -1. Before a
program is compiled for a CPU, such divisors become 1, and a quotient by -1 is the negative:

    n / d  ->  n / (1 if d in (0, -1) else d) * (-1 if d == -1 else 1)

So the least integer by -1 is itself, with remainder 0, as in PyTorch. It is a product, and nothing
is compared with the least integer: TVM's simplifier takes no int32 for that one, and where a
select has chosen d != -1 it drops the guard, though both branches are computed. A quotient by 0
means nothing. Divisors that are constants, as those of indices are, stay.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural

from felix.measure.cpu import functions
from felix.tir import grammar

_KINDS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def guarded(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every division of integers in its TIR functions guarded."""
    return functions.changed(mod, lambda func: _of_function(func) if divisors(func) else func)


def divisors(func: tirx.PrimFunc) -> list[tvm.ir.Expr]:
    """What a program divides integers by, constants excepted."""
    found: list[tvm.ir.Expr] = []

    def note(operation: Any) -> None:
        if _may_trap(operation):
            found.append(operation.b)

    structural.structural_walk(func.body, tuple((kind, note) for kind in _KINDS))
    return found


def _may_trap(operation: Any) -> bool:
    is_integer = grammar.dtype(operation).startswith(("int", "uint"))
    return is_integer and not isinstance(operation.b, tirx.IntImm)


def _of_function(func: tirx.PrimFunc) -> tirx.PrimFunc:
    rules = tuple((kind, _changed) for kind in _KINDS)
    return func.with_body(structural.structural_map(func.body, rules))


def _changed(operation: Any) -> tvm.ir.Expr:
    """A division by what is neither 0 nor -1; its operands are computed once."""
    if not _may_trap(operation):
        return operation
    dtype = grammar.dtype(operation)
    n, d = tirx.Var("dividend", dtype), tirx.Var("divisor", dtype)
    one, is_signed = tirx.const(1, dtype), dtype.startswith("int")
    is_trap = d == tirx.const(0, dtype)
    if is_signed:
        is_trap = tirx.Or(is_trap, d == tirx.const(-1, dtype))
    result = type(operation)(n, tirx.Select(is_trap, one, d))
    if is_signed and isinstance(operation, tirx.Div | tirx.FloorDiv):
        result = result * tirx.Select(d == tirx.const(-1, dtype), tirx.const(-1, dtype), one)
    return tirx.Let(n, operation.a, tirx.Let(d, operation.b, result))
