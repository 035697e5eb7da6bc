"""What TVM compiles of a program for a CPU: NaN kept, functions written out, divisions guarded,
bindings moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural

from felix.builder.elementary import functions
from felix.tir import bfloat16, bindings, grammar, nan

# Changes of the TIR functions of a module, one by one.


def changed(mod: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> tvm.IRModule:
    """The module with every TIR function changed; itself where all stay what they are."""
    old = {name: func for name, func in mod.functions.items() if isinstance(func, tirx.PrimFunc)}
    new = {name: change(func) for name, func in old.items()}
    if all(new[name].same_as(func) for name, func in old.items()):
        return mod
    return tvm.IRModule({**mod.functions, **new}, attrs=mod.attrs, global_infos=mod.global_infos)


def mapped(func: tirx.PrimFunc, rule: Callable[[Any], Any], *kinds: type) -> tirx.PrimFunc:
    """The function with each node of these kinds as a rule has it."""
    rules = tuple((kind, rule) for kind in kinds)
    return func.with_body(structural.structural_map(func.body, rules))


def written_out(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the functions of floats in its TIR functions written out (`elementary`)."""
    return changed(mod, lambda func: mapped(func, functions.written_out, tvm.ir.Call))


# Division of integers that does not end the process.
#
# x86 traps where an integer is divided by 0, and where the least one is divided by -1. Before a
# program is compiled for a CPU, such divisors become 1, and a quotient by -1 is the negative:
#
#     n / d  ->  n / (1 if d in (0, -1) else d) * (-1 if d == -1 else 1)
#
# So the least integer by -1 is itself, with remainder 0, as in PyTorch. It is a product, and
# nothing is compared with the least integer: TVM's simplifier takes no int32 for that one, and
# where a select has chosen d != -1 it drops the guard, though both branches are computed. A
# quotient by 0 means nothing. Divisors that are constants, as those of indices are, stay.

_KINDS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def guarded(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every division of integers in its TIR functions guarded."""
    return changed(
        mod, lambda func: mapped(func, _division_changed, *_KINDS) if divisors(func) else func
    )


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


def _division_changed(operation: Any) -> tvm.ir.Expr:
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


# Sums of floats that stay as they are.
#
# TVM simplifies floats as if they were real numbers, (x + c) - c to x: what may cancel is bound.

_SUMS = (tirx.Add, tirx.Sub)


def _sum_kept(node: Any) -> tvm.ir.Expr:
    operands, dtype = (node.a, node.b), grammar.dtype(node)
    kinds = {type(node), *(type(each) for each in operands)}
    may_cancel = tirx.Sub in kinds or tirx.FloatImm in kinds
    if not may_cancel or not grammar.is_float(dtype):
        return node
    bound = [tirx.Var("sum", dtype) if isinstance(each, _SUMS) else each for each in operands]
    result = type(node)(*bound)
    for variable, value in zip(bound, operands, strict=True):
        result = result if variable is value else tirx.Let(variable, value, result)
    return result


def prepared(mod: tvm.IRModule) -> tvm.IRModule:
    """The module as TVM compiles it; bindings come last, for the others make some."""
    kept = changed(changed(mod, bfloat16.written_out), nan.keeping)
    kept = changed(kept, lambda func: mapped(func, _sum_kept, *_SUMS))
    kept = changed(guarded(written_out(kept)), nan.compared)
    return changed(kept, bindings.at_roots)


#: `prepared` as a pass of TVM.
PREPARED = tvm.transform.module_pass(
    lambda mod, _: prepared(mod), opt_level=0, name="felix.PreparedForCPU"
)
