"""Maxima and minima that are NaN where an operand is, as PyTorch's and ONNX's are, and `!=`, which
is true there.

TVM's are one operand or the other: `a > b ? a : b` on a CPU, `fmaxf` in CUDA. For a CPU each is
written out before a program is compiled; where one operand is a number, a comparison the right
way round is enough, which costs what TVM's does. In CUDA C++ they are functions, from sm_80 on an
instruction each. Not in the program: TVM makes cross-thread reductions of maxima that it knows.
"""

from __future__ import annotations

import math
import re
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural

from felix.tir import bfloat16, bindings, grammar

_COMPARISONS = {tirx.Max: tirx.GT, tirx.Min: tirx.LT}
_KINDS = (*_COMPARISONS, tirx.NE)


def keeping(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function whose maxima and minima of floats keep NaN, and where NaN is not what it is
    compared with; itself if it has none of them."""
    found = (node for kind in _KINDS for node in grammar.nodes(func.body, kind))
    if not any(grammar.is_float(grammar.dtype(node.a)) for node in found):
        return func
    rules = tuple((kind, _written_out) for kind in _KINDS)
    return func.with_body(structural.structural_map(func.body, rules))


#: A pass of TVM that makes programs keep NaN.
KEPT = tirx.transform.prim_func_pass(
    lambda func, _mod, _context: bindings.at_roots(keeping(bfloat16.written_out(func))),
    opt_level=0,
    name="felix.KeepNaN",
)


def _written_out(node: Any) -> Any:
    dtype = grammar.dtype(node.a)
    if not grammar.is_float(dtype):
        return node
    if dtype == "bfloat16":  # TVM legalizes no bindings of it
        wide = [tirx.Cast("float32", operand) for operand in (node.a, node.b)]
        result = _result(type(node), *wide)
        return result if isinstance(node, tirx.NE) else tirx.Cast(dtype, result)
    bound: dict[Any, Any] = {}
    operands = []
    for value in (node.a, node.b):
        operands.append(value if _is_short(value) else tirx.Var("operand", dtype))
        if operands[-1] is not value:
            bound[operands[-1]] = value
    result = _result(type(node), *operands)
    for variable, value in bound.items():
        result = tirx.Let(variable, value, result)
    return result


#: Integers of a float's bits, all of them but the sign, and those of infinity.
_BITS = {
    "float16": ("uint16", 0x7FFF, 0x7C00),
    "float32": ("uint32", 0x7FFFFFFF, 0x7F800000),
    "float64": ("uint64", 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
}


def compared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with `isnan` as a comparison of bits: TVM's vectorizer gives up where it is
    called."""
    return func.with_body(structural.structural_map(func.body, ((tvm.ir.Call, _compared),)))


def _compared(call: Any) -> Any:
    if getattr(call.op, "name", "") != "tirx.isnan":
        return call
    (x,) = call.args
    if grammar.dtype(x) not in _BITS or isinstance(x, tirx.FloatImm):
        return call
    integer, magnitude, infinity = _BITS[grammar.dtype(x)]
    bits = tirx.reinterpret(integer, x)
    return (bits & tirx.const(magnitude, integer)) > tirx.const(infinity, integer)


def _is_short(expr: Any) -> bool:
    """Whether an expression is read as easily as a variable that is bound to it."""
    return isinstance(expr, tirx.Var | tirx.FloatImm) or grammar.is_load(expr)


def _result(kind: Any, first: Any, second: Any) -> Any:
    if kind is not tirx.NE:
        return _extreme(_COMPARISONS[kind], first, second)
    unlike = tirx.NE(first, second)  # false on a CPU where an operand is NaN
    for operand in (first, second):
        if not isinstance(operand, tirx.FloatImm) or math.isnan(operand.value):
            unlike = tirx.Or(unlike, tirx.isnan(operand))
    return unlike


def _extreme(compare: Any, first: Any, second: Any) -> Any:
    for number, x in ((first, second), (second, first)):
        if isinstance(number, tirx.FloatImm):
            is_nan = math.isnan(number.value)
            return number if is_nan else tirx.Select(compare(number, x), number, x)
    return tirx.Select(tirx.Or(compare(first, second), tirx.isnan(first)), first, second)


_FUNCTION = """\
__device__ __forceinline__ float {name}_or_nan(float a, float b) {{
#if __CUDA_ARCH__ >= 800
  float result;
  asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a {symbol} b || a != a ? a : b;
#endif
}}
"""
_SYMBOLS = {"max": ">", "min": "<"}
#: CUDA C++ of `max_or_nan` and `min_or_nan` of float, by name.
DEVICE_FUNCTIONS = {
    f"{name}_or_nan": _FUNCTION.format(name=name, symbol=symbol)
    for name, symbol in _SYMBOLS.items()
}
_FURTHER = """\
template <typename A, typename B>
__device__ __forceinline__ auto {name}_or_nan(A a, B b) {{ return {name}(a, b); }}
__device__ __forceinline__ double {name}_or_nan(double a, double b) {{
  return a {symbol} b || a != a ? a : b;
}}
"""
_OF_16_BITS = """\
__device__ __forceinline__ {dtype} {name}_or_nan({dtype} a, {dtype} b) {{
#if __CUDA_ARCH__ >= 800
  return __h{name}_nan(a, b);
#else
  return __hisnan(a) ? a : {name}(a, b);
#endif
}}
"""
_CALL = re.compile(r"\b(max|min)\(")
_KERNELS = 'extern "C" __global__ '


def in_cuda(source: str) -> str:
    """TVM's CUDA source with functions that keep NaN in the place of `max` and `min`."""
    prelude, mark, kernels = source.partition(_KERNELS)
    names = sorted(set(_CALL.findall(kernels)))
    functions = "".join(_functions(name, prelude) for name in names)
    return "".join([prelude, functions, mark, _CALL.sub(r"\1_or_nan(", kernels)])


def _functions(name: str, prelude: str) -> str:
    """What stands for `max` or `min` of all types that the prelude has one for."""
    further = _FURTHER.format(name=name, symbol=_SYMBOLS[name])
    halves = [
        _OF_16_BITS.format(name=name, dtype=dtype)
        for dtype in ("half", "nv_bfloat16")
        if f"{dtype} {name}({dtype} a" in prelude
    ]
    return "".join([DEVICE_FUNCTIONS[f"{name}_or_nan"], further, *halves])
