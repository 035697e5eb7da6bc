"""bfloat16 of a CPU's programs, written out in float32 and bits before TVM legalizes it.

TVM's passes look at no value that a `Let` binds, where a bfloat16 would become the integer that
its bits are; what they round they write several times, which vectors refuse of a `Let`; and a NaN
of ones alone becomes -0. So here everything is float32 but for the parameters:

    an element that is read    its bits above 16 zeros
    one that is written        the upper half, rounded to the nearest, ties to even; or a NaN

Buffers between are float32, and a cast to bfloat16 is none, as with TVM's passes: what a model
casts is written so that it stays (`felix.tir.rounding`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural

from felix.tir import grammar

_NARROW, _WIDE = "bfloat16", "float32"
#: The upper half of a NaN.
_NAN = 0x7FC0


def written_out(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with bfloat16 in its parameters alone; itself if it has none."""
    variables = [*func.params, *grammar.nodes(func.body, tvm.ir.Var)]
    has_views = any(block.match_buffers for block in grammar.nodes(func.body, s_tir.SBlock))
    if has_views or not any(_dtype(each) == _NARROW for each in variables):
        return func
    writing = _Writing(func.params)
    rules = (
        (tvm.ir.Var, writing.variable),
        (tvm.ir.TensorLoad, writing.load),
        (tirx.BufferStore, writing.store),
        (tirx.FloatImm, writing.number),
        (tirx.Cast, writing.cast),
        (tvm.ir.Call, writing.call),
        (tirx.Select, lambda node: tirx.Select(node.condition, node.true_value, node.false_value)),
        (tirx.Let, lambda node: tirx.Let(node.var, node.value, node.body)),
        *((kind, lambda node: type(node)(node.a, node.b)) for kind in grammar.BINARY_NODES),
    )
    return func.with_body(structural.structural_map(func.body, rules))


class _Writing:
    """The rules of one function; operands are written out before what they are of."""

    def __init__(self, parameters: Sequence[Any]) -> None:
        self._parameters = list(parameters)
        self._wide: dict[Any, Any] = {}

    def variable(self, node: Any) -> Any:
        """A variable or buffer that is no parameter is float32."""
        if _dtype(node) != _NARROW or any(node.same_as(each) for each in self._parameters):
            return node
        if node not in self._wide:
            self._wide[node] = _widened(node)
        return self._wide[node]

    def load(self, node: Any) -> Any:
        """An element in float32."""
        if grammar.dtype(node) != _NARROW:
            return node
        load = tirx.BufferLoad(node.source, node.indices)
        return _from_bits(load) if grammar.dtype(load) == _NARROW else load

    def store(self, node: Any) -> Any:
        """An element of float32; of a parameter it is rounded, unless it is only moved."""
        buffer = node.buffer
        if _dtype(buffer) == _NARROW:
            return tirx.BufferStore(buffer, _narrowed(node.value), node.indices)
        if any(buffer.same_as(each) for each in self._wide.values()):
            return tirx.BufferStore(buffer, _as(_WIDE, node.value), node.indices)
        return node

    def number(self, node: Any) -> Any:
        """A constant in float32."""
        return tirx.const(node.value, _WIDE) if grammar.dtype(node) == _NARROW else node

    def cast(self, node: Any) -> Any:
        """A cast from float32, or to it."""
        dtype = grammar.dtype(node)
        return _as(_WIDE if dtype == _NARROW else dtype, node.value)

    def call(self, node: Any) -> Any:
        """A function of float32."""
        dtype, name = grammar.dtype(node), getattr(node.op, "name", "")
        if name == grammar.REINTERPRET:
            (x,) = node.args
            if dtype == _NARROW:
                return _from_bits(x)
            is_widened = grammar.bits(dtype) == 16 and grammar.dtype(x) == _WIDE
            return tirx.reinterpret(dtype, _narrowed(x)) if is_widened else node
        if name not in grammar.FUNCTIONS or dtype != _NARROW:
            return node
        return tirx.call_intrin(_WIDE, node.op, *node.args)


def _dtype(variable: Any) -> str:
    """The type of a variable, or of a buffer's elements; empty of a handle."""
    return str(getattr(variable, "dtype", ""))


def _widened(variable: Any) -> Any:
    if not isinstance(variable.ty, tirx.BufferType):
        return tirx.Var(variable.name, _WIDE)
    return tirx.decl_buffer(
        variable.shape,
        _WIDE,
        variable.name,
        strides=variable.strides or None,
        elem_offset=variable.elem_offset,
        scope=variable.scope(),
        data_alignment=variable.data_alignment,
        offset_factor=variable.offset_factor,
    )


def _from_bits(expr: Any) -> Any:
    """A bfloat16, or another expression of its bits, as float32."""
    upper = tirx.Cast("uint32", tirx.reinterpret("uint16", expr))
    return tirx.reinterpret(_WIDE, upper << tirx.const(16, "uint32"))


def _narrowed(value: Any) -> Any:
    """A float32 as bfloat16; it is computed once, and what `_from_bits` widened is as it was."""
    upper: Any = grammar.reinterpreted(value)
    if type(upper).__name__ == "LShift" and type(upper.a).__name__ == "Cast":
        narrow = grammar.reinterpreted(upper.a.value)
        if narrow is not None and grammar.dtype(narrow) == _NARROW:
            return narrow

    def number(of: int) -> Any:
        return tirx.const(of, "uint32")

    x = tirx.Var("to_round", _WIDE)
    bits = tirx.reinterpret("uint32", x)
    is_odd = (bits >> number(16)) & number(1)
    upper = (bits + number(0x7FFF) + is_odd) >> number(16)
    upper = tirx.Select(tirx.isnan(x), number(_NAN), upper)
    narrow = tirx.reinterpret(_NARROW, tirx.Cast("uint16", upper))
    return tirx.Let(x, _as(_WIDE, value), narrow)


def _as(dtype: str, expr: Any) -> Any:
    return expr if grammar.dtype(expr) == dtype else tirx.Cast(dtype, expr)
