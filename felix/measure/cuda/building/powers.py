"""What TVM compiles of a program for CUDA: powers with a whole exponent as products.

With fast math x ** n is exp2(n * log2(x)), NaN for a negative x. A product is right everywhere,
and faster. Exponents that are not whole, or not known, stay powers. So do powers of float64, which
fast math leaves alone.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm_ffi import structural

from felix.tir import grammar

_FLOATS = ("float16", "float32")
#: Roundings of more factors would add up.
_MOST_FACTORS = 64


def _of_function(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    body = structural.structural_map(func.body, ((tvm.ir.Call, _changed),))
    return func.with_body(body)


#: A pass of TVM; called with a module, it gives the module as it is compiled.
PREPARED = tirx.transform.prim_func_pass(_of_function, opt_level=0, name="felix.PreparedForCUDA")


def _changed(call: tvm.ir.Call) -> tvm.ir.Expr:
    """A product of float32, rounded once, in place of a power; the base is computed once."""
    exponent, dtype = _whole_exponent(call), grammar.dtype(call)
    if exponent is None:
        return call
    x, one = tirx.Var("base", "float32"), tirx.const(1.0, "float32")
    product = _product(x, abs(exponent)) if exponent else one
    result = one / product if exponent < 0 else product
    # `astype` gives what has the type already as it is
    return tirx.Let(x, call.args[0].astype("float32"), result).astype(dtype)


def _whole_exponent(call: tvm.ir.Call) -> int | None:
    """The exponent of a power that becomes a product; None for any other call."""
    if getattr(call.op, "name", "") != "tirx.pow" or grammar.dtype(call) not in _FLOATS:
        return None
    exponent = call.args[1]
    if not isinstance(exponent, tirx.FloatImm):
        return None
    is_whole = exponent.value.is_integer() and abs(exponent.value) <= _MOST_FACTORS
    return int(exponent.value) if is_whole else None


def _product(x: tvm.ir.Expr, count: int) -> tvm.ir.Expr:
    """x multiplied `count` times, by squaring."""
    if count == 1:
        return x
    if count % 2:
        return _product(x, count - 1) * x
    square = tirx.Var("square", "float32")
    return tirx.Let(square, x * x, _product(square, count // 2))
