"""Which functions are written out, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm

from felix.builder.elementary import angles, exponentials, logarithms, powers, terms
from felix.tir import grammar


def written_out(call: tvm.ir.Call) -> tvm.ir.Expr:
    """A call of one of `FUNCTIONS` on float32, or in float32 on float16, or of `OF_DOUBLES` on
    float64; others stay."""
    name = getattr(call.op, "name", "")
    if name not in FUNCTIONS or (dtype := grammar.dtype(call)) not in _FLOATS:
        return call
    is_double = dtype == "float64"
    if is_double and name not in OF_DOUBLES:
        return call
    lets = terms.Lets()
    operands = [lets(each.astype("float64" if is_double else "float32")) for each in call.args]
    return lets.over(FUNCTIONS[name](lets, *operands)).astype(dtype)


_FLOATS = ("float16", "float32", "float64")
#: name of an operator of TVM -> what writes it out
FUNCTIONS: Mapping[str, Callable[..., terms.Value]] = {
    "tirx.exp": exponentials.exp,
    "tirx.exp2": exponentials.exp2,
    "tirx.exp10": exponentials.exp10,
    "tirx.sigmoid": exponentials.sigmoid,
    "tirx.erf": exponentials.erf,
    "tirx.tanh": exponentials.tanh,
    "tirx.sinh": exponentials.sinh,
    "tirx.cosh": exponentials.cosh,
    "tirx.log": logarithms.log,
    "prim.log2": logarithms.log2,
    "tirx.log10": logarithms.log10,
    "tirx.log1p": logarithms.log1p,
    "tirx.asinh": logarithms.asinh,
    "tirx.acosh": logarithms.acosh,
    "tirx.atanh": logarithms.atanh,
    "tirx.pow": powers.power,
    "tirx.sin": angles.sin,
    "tirx.cos": angles.cos,
    "tirx.tan": angles.tan,
    "tirx.asin": angles.asin,
    "tirx.acos": angles.acos,
    "tirx.atan": angles.atan,
    "tirx.atan2": angles.atan2,
}
#: Those that float64 has, too. In the others it would need longer polynomials and, for angles,
#: a thousand bits of 2/pi; LLVM calls the C library there.
OF_DOUBLES = frozenset(f"tirx.{name}" for name in "sinh cosh asin acos atan atan2".split())
