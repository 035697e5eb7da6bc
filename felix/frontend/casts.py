"""Casts to 16-bit floats that a model has, whose rounding stays whatever they are fused with.

Other casts between operators are the import's, which keeps to the types that a framework says;
programs may compute in float32 there. A cast of a value to the type that it has marks a model's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te

from felix.frontend import torch_forms
from felix.frontend.rewriting import Rewriter, operator_name
from felix.tir import rounding


def emit_cast(emit: Callable[[Any], Any], x: Any, dtype: str) -> Any:
    """A value in a type, as the model asks for it."""
    if str(x.ty.dtype) == dtype:
        return x
    result = emit(relax.op.astype(x, dtype))
    return emit(relax.op.astype(result, dtype)) if dtype in rounding.HALF else result


def rule(rewriter: Rewriter, call: Any) -> Any:
    """What stands for a model's cast: the program that rounds; None for another call."""
    if operator_name(call) != "astype":
        return None
    (narrow,), dtype = call.args, str(call.attrs.dtype)
    if dtype not in rounding.HALF or str(narrow.ty.dtype) != dtype:
        return None
    cast = rewriter.value(narrow, "astype")
    if cast is None:
        return narrow
    return rewriter.builder.call_te(
        _program,
        cast.args[0],
        dtype,
        primfunc_name_hint="cast",
        primfunc_attrs=torch_forms.attributes("to", 1, dtype),
    )


def _program(x: te.Tensor, dtype: str) -> te.Tensor:
    return te.compute(
        x.shape, lambda *index: rounding.rounded(x[index], dtype), name="T_cast", tag="elemwise"
    )
