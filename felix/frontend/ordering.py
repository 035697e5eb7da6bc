"""Orders of floats in which NaN is the largest, as in PyTorch: sorting, top k, places of extremes,
and extremes.

TVM's comparisons with NaN are all false, so a sort leaves it where it is and an argmax passes over
it; and its maxima begin with the last finite number, not with minus infinity, or TVM would not
compute them across threads. Integers in the same order are sorted and compared in the place of
the floats: the bits of a positive float are in its order, those of a negative one in the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from felix.frontend import torch_forms
from felix.frontend.rewriting import Rewriter, operator_name

#: The integers of as many bits.
_KEYS = {"float32": "int32", "float64": "int64"}
_HALF = ("float16", "bfloat16")


def legalizations() -> Mapping[str, torch_forms.Lowering]:
    """Ways to lower Relax's largest and smallest elements along axes."""
    return {f"relax.{name}": _lowering(name, reduce) for name, reduce in _EXTREMES.items()}


def _lowering(name: str, reduce: Callable[..., te.Tensor]) -> torch_forms.Lowering:
    def lower(builder: relax.BlockBuilder, call: Any) -> Any:
        (x,), dtype = call.args, str(call.args[0].ty.dtype)
        if dtype not in (*_KEYS, *_HALF):
            return tvm.ir.Op.get(f"relax.{name}").get_attr("FLegalize")(builder, call)
        axes = None if call.attrs.axis is None else [int(axis) for axis in call.attrs.axis]

        def program(tensor: te.Tensor) -> te.Tensor:
            keys = reduce(_key_program(tensor, name == "max"), axes, bool(call.attrs.keepdims))
            return te.compute(keys.shape, lambda *i: _of_key(keys[i], dtype), name=f"T_{name}")

        return builder.call_te(program, x, primfunc_name_hint=name)

    return lower


_EXTREMES = {"max": topi.max, "min": topi.min}


def rule(rewriter: Rewriter, call: Any) -> Any:
    """What stands for a call that orders floats, by their keys; None for another one."""
    name = operator_name(call)
    if name not in _RULES:
        return None
    dtype = str(call.args[0].ty.dtype)
    return _RULES[name](rewriter, call) if dtype in (*_KEYS, *_HALF) else None


def _sorted(rewriter: Rewriter, call: Any) -> Any:
    x, axis = call.args[0], int(call.attrs.axis)
    keys = _keys(rewriter, x, is_most=True)
    order = rewriter.emit(relax.op.argsort(keys, axis, bool(call.attrs.descending), "int64"))
    return relax.op.gather_elements(x, order, axis % len(x.ty.shape))


def _argsorted(rewriter: Rewriter, call: Any) -> Any:
    keys = _keys(rewriter, call.args[0], is_most=True)
    return relax.Call(call.op, [keys], call.attrs, call.ty_args)


def _first(rewriter: Rewriter, call: Any) -> Any:
    """The k largest or smallest: values, places or both."""
    x, attrs = call.args[0], call.attrs
    axis, kind = int(attrs.axis), str(attrs.ret_type)
    keys = _keys(rewriter, x, is_most=True)
    dtype = str(attrs.dtype)
    k, is_largest = int(attrs.k), bool(attrs.largest)
    places = rewriter.emit(relax.op.topk(keys, k, axis, "indices", is_largest, dtype))
    if kind == "indices":
        return places
    wide = places if dtype == "int64" else rewriter.emit(relax.op.astype(places, "int64"))
    values = rewriter.emit(relax.op.gather_elements(x, wide, axis % len(x.ty.shape)))
    return values if kind == "values" else relax.Tuple([values, places])


def _place(rewriter: Rewriter, call: Any) -> Any:
    """The first place of the largest or smallest, or of NaN."""
    is_largest = operator_name(call) == "argmax"
    keys = _keys(rewriter, call.args[0], is_most=is_largest)
    return relax.Call(call.op, [keys], call.attrs, call.ty_args)


_RULES = {
    "sort": _sorted,
    "argsort": _argsorted,
    "topk": _first,
    "argmax": _place,
    "argmin": _place,
}


def _keys(rewriter: Rewriter, x: Any, is_most: bool) -> Any:
    """Integers in the order of floats; NaN is the largest integer, or the smallest."""
    keys = rewriter.builder.call_te(
        lambda tensor: _key_program(tensor, is_most), x, primfunc_name_hint="order_of"
    )
    return rewriter.emit(keys)


def _key_program(x: te.Tensor, is_most: bool) -> te.Tensor:
    wide = "float32" if str(x.dtype) in _HALF else str(x.dtype)
    dtype = _KEYS[wide]
    limits = tirx.max_value(dtype), tirx.min_value(dtype)
    nan = limits[0] if is_most else limits[1]

    def key(*index: Any) -> Any:
        value = x[index].astype(wide) + tirx.const(0.0, wide)  # -0 is 0
        bits = tirx.reinterpret(dtype, value)
        ordered = tirx.Select(bits < tirx.const(0, dtype), bits ^ limits[0], bits)
        return tirx.Select(tirx.isnan(value), nan, ordered)

    return te.compute(x.shape, key, name="T_order", tag="elemwise")


def _of_key(key: Any, dtype: str) -> Any:
    """The float of a key; both of NaN's keys are NaN."""
    wide = "float32" if dtype in _HALF else dtype
    kind = _KEYS[wide]
    most, least = tirx.max_value(kind), tirx.min_value(kind)
    bits = tirx.Select(key < tirx.const(0, kind), key ^ most, key)
    value = tirx.reinterpret(wide, tirx.Select(key == least, most, bits))
    return value.astype(dtype)
