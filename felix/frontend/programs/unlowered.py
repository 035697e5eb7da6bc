"""The operator for which TVM makes no program, for an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from felix.frontend import imported
from felix.frontend.rewriting import operator_name
from felix.tir import grammar

#: Calls of programs and functions that are there already.
_NO_OPERATORS = frozenset({"", "call_tir", "call_dps_packed", "call_pure_packed"})


def find(mod: tvm.IRModule, lower: Callable[[tvm.IRModule], Any]) -> str | None:
    """The first operator of `main` that alone cannot be lowered, with its operands, in words.

    Args:
        mod: an imported module that cannot be lowered.
        lower: lowers a module, or raises an error of TVM.
    """
    seen = set()
    for block in imported.main_of(mod).body.blocks:
        for binding in block.bindings:
            call = binding.value
            if operator_name(call) in _NO_OPERATORS:
                continue
            alone = _alone(call)
            key = tvm_ffi.structural_hash(alone["main"])
            if key not in seen and not _is_lowered(alone, lower):
                return _in_words(call)
            seen.add(key)
    return None


def _alone(call: Any) -> tvm.IRModule:
    """A module that has one call of an operator and nothing else."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(relax.analysis.free_vars(call))):
        with builder.dataflow():
            value = builder.emit(call)
            result = builder.emit_output(relax.Tuple([value]) if _is_tensor(value) else value)
        builder.emit_func_output(result)
    return builder.get()


def _is_lowered(mod: tvm.IRModule, lower: Callable[[tvm.IRModule], Any]) -> bool:
    try:
        lower(mod)
    except (*grammar.TVM_ERRORS, AssertionError):
        return False
    return True


def _in_words(call: Any) -> str:
    specs = [imported.spec_of_type(each.ty, "") for each in call.args if _is_tensor(each)]
    operands = [f"{spec.dtype} {spec.shape or 'of no or open shape'}" for spec in specs]
    return f"{operator_name(call)!r} of {', '.join(operands) or 'no tensors'}"


def _is_tensor(value: Any) -> bool:
    return isinstance(value.ty, relax.TensorType)
