"""Orders of floats in which NaN is the largest, as in PyTorch: sorting, top k, places of extremes,
and extremes.

TVM's comparisons with NaN are all false, so a sort leaves it where it is and an argmax passes over
it; and its maxima begin with the last finite number, not with minus infinity, or TVM would not
compute them across threads. Integers in the same order are sorted and compared in the place of
the floats: the bits of a positive float are in its order, those of a negative one in the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax, te, tirx, topi

from felix.frontend import torch_forms
from felix.frontend.rewriting import Rewriter, operator_name
from felix.tir import rounding

#: The integers of as many bits.
_KEYS = {"float32": "int32", "float64": "int64"}


def legalizations() -> Mapping[str, torch_forms.Lowering]:
    """Ways to lower Relax's extremes along axes, and their first places."""
    return {f"relax.{name}": _lower for name in (*_EXTREMES, *_PLACES)}


def _lower(builder: relax.BlockBuilder, call: Any) -> Any:
    (x,), dtype, name = call.args, str(call.args[0].ty.dtype), operator_name(call)
    is_ordered = dtype in (*_KEYS, *rounding.HALF)
    if not is_ordered and name not in _PLACES:
        return call.op.get_attr("FLegalize")(builder, call)
    axes, keeps = _axes(call.attrs.axis), bool(call.attrs.keepdims)

    def program(tensor: te.Tensor) -> te.Tensor:
        keys = _key_program(tensor, "max" in name) if is_ordered else tensor
        if name in _PLACES:
            places = _PLACES[name](keys, axes, keeps)
            return places if is_ordered else _from_zero(places)
        made = _EXTREMES[name](keys, axes, keeps)
        return te.compute(made.shape, lambda *i: _of_key(made[i], dtype), name=f"T_{name}")

    return builder.call_te(program, x, primfunc_name_hint=name)


def _from_zero(places: te.Tensor) -> te.Tensor:
    """Places in integers: of rows of the least one TVM's argmax gives its first place, -1."""
    zero = tirx.const(0, str(places.dtype))
    return te.compute(places.shape, lambda *i: tirx.max(places(*i), zero), name="T_place")


def _axes(axis: Any) -> Any:
    """An axis, several of them, or None for all."""
    if axis is None or isinstance(axis, int | tirx.IntImm):
        return None if axis is None else int(axis)
    return [int(each) for each in axis]


_EXTREMES = {"max": topi.max, "min": topi.min}
_PLACES = {"argmax": topi.argmax, "argmin": topi.argmin}


def rule(rewriter: Rewriter, call: Any) -> Any:
    """What stands for a call that orders floats, by their keys; None for another one."""
    name = operator_name(call)
    if name not in _RULES:
        return None
    dtype = str(call.args[0].ty.dtype)
    return _RULES[name](rewriter, call) if dtype in (*_KEYS, *rounding.HALF) else None


def _sorted(rewriter: Rewriter, call: Any) -> Any:
    x, axis = call.args[0], int(call.attrs.axis)
    keys = _keys(rewriter, x)
    order = rewriter.emit(relax.op.argsort(keys, axis, bool(call.attrs.descending), "int64"))
    return relax.op.gather_elements(x, order, axis % len(x.ty.shape))


def _argsorted(rewriter: Rewriter, call: Any) -> Any:
    keys = _keys(rewriter, call.args[0])
    return relax.Call(call.op, [keys], call.attrs, call.ty_args)


def _first(rewriter: Rewriter, call: Any) -> Any:
    """The k largest or smallest: values, places or both."""
    x, attrs = call.args[0], call.attrs
    axis, kind = int(attrs.axis), str(attrs.ret_type)
    keys = _keys(rewriter, x)
    dtype = str(attrs.dtype)
    k, is_largest = int(attrs.k), bool(attrs.largest)
    places = rewriter.emit(relax.op.topk(keys, k, axis, "indices", is_largest, dtype))
    if kind == "indices":
        return places
    wide = places if dtype == "int64" else rewriter.emit(relax.op.astype(places, "int64"))
    values = rewriter.emit(relax.op.gather_elements(x, wide, axis % len(x.ty.shape)))
    return values if kind == "values" else relax.Tuple([values, places])


_RULES = {"sort": _sorted, "argsort": _argsorted, "topk": _first}


def _keys(rewriter: Rewriter, x: Any) -> Any:
    """Integers in the order of floats, NaN the largest."""
    keys = rewriter.builder.call_te(
        lambda tensor: _key_program(tensor, True), x, primfunc_name_hint="order_of"
    )
    return rewriter.emit(keys)


def _key_program(x: te.Tensor, is_most: bool) -> te.Tensor:
    """Integers in the order of floats; NaN is the largest integer, or the smallest."""
    wide = rounding.accumulator(str(x.dtype))
    dtype = _KEYS[wide]
    limits = tirx.max_value(dtype), tirx.min_value(dtype)
    nan = limits[0] if is_most else limits[1]

    def key(*index: Any) -> Any:
        value = x[index].astype(wide)
        is_zero = value == tirx.const(0.0, wide)  # so is -0
        bits = tirx.Select(is_zero, tirx.const(0, dtype), tirx.reinterpret(dtype, value))
        ordered = tirx.Select(bits < tirx.const(0, dtype), bits ^ limits[0], bits)
        return tirx.Select(tirx.isnan(value), nan, ordered)

    return te.compute(x.shape, key, name="T_order", tag="elemwise")


def _of_key(key: Any, dtype: str) -> Any:
    """The float of a key; both of NaN's keys are NaN."""
    wide = rounding.accumulator(dtype)
    kind = _KEYS[wide]
    most, least = tirx.max_value(kind), tirx.min_value(kind)
    bits = tirx.Select(key < tirx.const(0, kind), key ^ most, key)
    value = tirx.reinterpret(wide, tirx.Select(key == least, most, bits))
    return value.astype(dtype)
