"""Powers with a constant exponent as products and roots.

CUDA builds use fast math, TVM's own as well, where x ** 2 of a negative x is NaN: it is
exp2(2 * log2(x)). A product is right everywhere, and faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from felix.frontend.rewriting import Rewriter

#: Whole exponents up to this become products.
MAX_EXPONENT = 16
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def expanded(rewriter: Rewriter, call: Any, exponent: np.ndarray | None) -> Any:
    """What stands for a power of floats, or None where it stays one.

    Args:
        rewriter: of the function that has the call.
        call: relax.op.power(base, exponent), with new operands.
        exponent: its value if it is known.
    """
    base = call.args[0]
    dtype = str(base.ty.dtype)
    if exponent is None or exponent.size != 1 or dtype not in _FLOATS:
        return None
    result = rewriter.builder.normalize(call).ty
    if str(result.dtype) != dtype or list(result.shape) != list(base.ty.shape):
        return None
    number = float(exponent.reshape(()))
    half = abs(number) == 0.5
    if not half and (number != int(number) or not 1 <= abs(number) <= MAX_EXPONENT):
        return None
    # PyTorch rounds a power of 16 bits once
    is_wide = dtype in ("float32", "float64") or number in (1, 2)
    x = base if is_wide else rewriter.emit(relax.op.astype(base, "float32"))
    y = rewriter.emit(relax.op.sqrt(x)) if half else _product(rewriter, x, abs(int(number)))
    if number < 0:
        one = relax.const(np.ones((), str(x.ty.dtype)), str(x.ty.dtype))
        y = rewriter.emit(relax.op.divide(one, y))
    return y if is_wide else rewriter.emit(relax.op.astype(y, dtype))


def _product(rewriter: Rewriter, x: Any, count: int) -> Any:
    """x multiplied `count` times, by squaring."""
    result, square = None, x
    while True:
        if count % 2:
            product = None if result is None else relax.op.multiply(result, square)
            result = square if product is None else rewriter.emit(product)
        count //= 2
        if not count:
            return result
        square = rewriter.emit(relax.op.multiply(square, square))
