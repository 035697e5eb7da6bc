"""exp of float32 by a polynomial, so that a CPU computes a vector of them at a time.

LLVM has no vector code for exp: it calls the C library's function for each element, which is most
of the time of a softmax. Before a program is compiled for a CPU, each exp is written out:

    exp(x) = 2^n exp(r),    n = floor(x / ln 2 + 1/2),    r = x - n ln 2 in [-ln 2 / 2, ln 2 / 2]

with ln 2 in two parts, so that r is exact to the last bits, and the polynomial of degree 7 of
Cephes' `expf` for exp(r). The error is below one unit in the last place; what would overflow is
infinite, what is too small is 0, and NaN stays NaN.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm_ffi import structural

from felix.measure.cpu import functions
from felix.tir import grammar

#: 1 / ln 2, and ln 2 as a short number and what is left of it.
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
#: Of r^2 and higher powers of r, the highest first.
_COEFFICIENTS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
#: Below and above, the result is 0 and infinite.
_LEAST, _MOST = -104.0, 89.0
_BIAS, _MANTISSA_BITS = 127, 23


def written_out(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every exp and sigmoid of float32 in its TIR functions written out."""
    return functions.changed(mod, _of_function)


def _of_function(func: tirx.PrimFunc) -> tirx.PrimFunc:
    body = structural.structural_map(func.body, ((tvm.ir.Call, _changed),))
    return func.with_body(body)


def _changed(call: tvm.ir.Call) -> tvm.ir.Expr:
    name = getattr(call.op, "name", "")
    if name not in ("tirx.exp", "tirx.sigmoid") or grammar.dtype(call) != "float32":
        return call
    (argument,) = call.args
    if name == "tirx.exp":
        return _exp(argument)
    one = tirx.const(1.0, "float32")
    return one / (one + _exp(-argument))


def _exp(argument: tvm.ir.Expr) -> tvm.ir.Expr:
    """exp of a scalar expression; computed once, however often it is used."""

    def number(value: float) -> tvm.ir.Expr:
        return tirx.const(value, "float32")

    given = tirx.Var("exp_of", "float32")
    x, n, r = (tirx.Var(f"exp_{name}", "float32") for name in ("x", "n", "r"))
    power = tirx.Var("exp_power", "int32")
    polynomial = number(_COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        polynomial = polynomial * r + number(coefficient)
    half = power >> 1  # 2^n may be no float32 where exp(x) is one
    scaled = (polynomial * (r * r) + r + number(1.0)) * _power_of_2(half)
    result = tirx.Select(tirx.isnan(given), given, scaled * _power_of_2(power - half))
    result = tirx.Let(power, tirx.Cast("int32", n), result)
    result = tirx.Let(r, (x - n * number(_LN2_HIGH)) - n * number(_LN2_LOW), result)
    result = tirx.Let(n, tirx.floor(x * number(_LOG2_E) + number(0.5)), result)
    result = tirx.Let(x, tirx.max(tirx.min(given, number(_MOST)), number(_LEAST)), result)
    return tirx.Let(given, argument, result)


def _power_of_2(n: tvm.ir.Expr) -> tvm.ir.Expr:
    return tirx.reinterpret("float32", (n + _BIAS) << _MANTISSA_BITS)
