"""Programs of constants alone are run when the model is lowered: TVM's `FoldConstant`, in one go.

TVM compiles each such program by itself, some 40 ms each; a network of windows and masks has
hundreds. Here all are compiled as one module. What this leaves, TVM's pass does.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import tvm
from tvm import relax, tirx

from felix.frontend.rewriting import Rewriter, bindings, operator_name
from felix.tir import grammar

#: A program without operands is not run if it makes more elements, as in TVM's pass.
_MOST_MADE = 1024


def folded(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with calls of programs whose operands are constants made constants."""
    names = _foldable(mod)
    if not names:
        return mod
    functions = {name: mod[name].with_attr("global_symbol", name) for name in names}
    try:
        built = tvm.tirx.build(tvm.IRModule(functions), tvm.target.Target("llvm"))
    except grammar.TVM_ERRORS:  # TVM's pass leaves out those that it cannot build
        return mod

    def run(rewriter: Rewriter, value: Any) -> Any:
        if not _is_foldable(value, ()):
            return None
        (kind,) = value.ty_args
        result = tvm.runtime.empty(_extents(kind), str(kind.dtype), tvm.cpu())
        built[value.args[0].name_hint](*(each.value for each in value.args[1].fields), result)
        return relax.const(result)

    return Rewriter(mod).run(run)


def _foldable(mod: tvm.IRModule) -> set[str]:
    """The programs of which `main` has calls with constants alone."""
    found: dict[Any, str] = {}
    for binding in bindings(mod["main"]):
        if _is_foldable(binding.value, found):
            found[binding.var] = binding.value.args[0].name_hint
    return set(found.values())


def _is_foldable(call: Any, constants: Container[Any]) -> bool:
    """Whether this is the call of a program of constants, beside those that are in variables."""
    if operator_name(call) != "call_tir" or len(call.args) != 2 or len(call.ty_args) != 1:
        return False
    (kind,), operands = call.ty_args, call.args[1].fields
    if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
        return False
    if not all(isinstance(each, tirx.IntImm) for each in kind.shape):
        return False
    is_small = bool(operands) or math.prod(_extents(kind)) <= _MOST_MADE
    return is_small and all(
        isinstance(each, tvm.ir.GenericConst) or each in constants for each in operands
    )


def _extents(kind: Any) -> list[int]:
    return [int(extent) for extent in kind.shape]
