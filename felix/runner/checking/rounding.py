"""How far a right kernel's outputs may be from the reference: a tolerance from types and lengths.

Two right programs round at different places and add in different orders. So the tolerance has two
parts, of the values that are stored and of the sums:

    t = c · eps(o) + eps(a) · (2 · √n + s · n)

- o is the least precise type that values are rounded to. c is 4 below float32: a value that lies
  between two others rounds to either, at a few places of a chain. For float32 and wider c is 32,
  for the reordered arithmetic of a chain.
- a is the type a sum is kept in and n the number of its terms; the sum with the largest error
  counts. Rounding errors of both signs are a random walk: √n. Tensor cores round towards 0, once
  for 16 terms of 16 bits, so s = 1/32 for sums of such factors, else 0.
- Sums of float8 products are kept with 13 bits below the point of the largest term by tensor cores
  (arXiv:2412.19437, section 3.3.2): eps(a) = 2^-13, and s = 1/64, for 32 terms at once.
- Where products of float32 may be computed in TF32 (`felix.tir.tf32`), each factor loses up to
  eps(TF32) = 2^-10 of itself, always towards 0. A sum shrinks by that much, and terms of both
  signs leave about 0.4 · eps(TF32) of its root mean square. So t grows by 4 · eps(TF32) = 0.0039.

A product of 4096 terms of bfloat16 has t = 0.031 with a bfloat16 output and 3.5e-5 with a float32
one. A kernel that leaves out 64 terms errs by 0.125 times the root mean square of its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from felix.tir import grammar, tf32

#: An eps below it is float32's, or a wider type's.
_NARROW_EPS = 1e-4
_FLOAT8_SUM_EPS = 2.0**-13
_TENSOR_CORE_FLOATS = frozenset(("float16", "bfloat16"))


def tolerance(blocks: Sequence[Any], allows_tf32: bool = False) -> float:
    """The relative tolerance of a program, from its blocks that compute; 0 for exact ones.

    Integers are exact, and so are copies.

    Args:
        allows_tf32: products of float32 may be computed in TF32.
    """
    rounded = [block for block in blocks if not _is_copy(block)]
    floats = {dtype for block in rounded for dtype in _written(block) if grammar.is_float(dtype)}
    if not floats:
        return 0.0
    least = max(map(_eps, floats))
    stored = least * (32.0 if least < _NARROW_EPS else 4.0)
    factors = 4.0 * tf32.EPS if allows_tf32 and any(map(tf32.sums_float32, rounded)) else 0.0
    return stored + factors + max(map(_sum_error, rounded))


def terms(block: Any) -> int:
    """Terms of the sums of a block; 1 if it has none."""
    return math.prod(int(v.dom.extent) for v in block.iter_vars if v.iter_type == grammar.REDUCE)


def _sum_error(block: Any) -> float:
    """Relative error of the sums of a block; 0 if it has none of floats."""
    sums, length = _written(block), terms(block)
    if length == 1 or not all(map(grammar.is_float, sums)):
        return 0.0
    eps = max(map(_eps, sums))
    factors = {str(region.source.dtype) for region in block.reads} - sums
    if factors & set(grammar.STORAGE_DTYPES):
        return max(eps, _FLOAT8_SUM_EPS) * (2.0 * math.sqrt(length) + length / 64)
    bias = length / 32 if factors & _TENSOR_CORE_FLOATS else 0.0
    return eps * (2.0 * math.sqrt(length) + bias)


def _written(block: Any) -> set[str]:
    return {str(region.source.dtype) for region in block.writes}


def _eps(dtype: str) -> float:
    """Distance from 1 to the next larger value of a type."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(np.dtype(getattr(ml_dtypes, dtype, dtype))).eps)


def _is_copy(block: Any) -> bool:
    """Whether a block stores values of others as they are."""
    return type(block.body).__name__ == "BufferStore" and _is_copied(block.body.value)


def _is_copied(value: Any) -> bool:
    match type(value).__name__:
        case "TensorLoad" | "FloatImm" | "IntImm":
            return True
        case "Select":
            return _is_copied(value.true_value) and _is_copied(value.false_value)
        case "Call" if grammar.function_name(value) == "if_then_else":
            return all(map(_is_copied, value.args[1:]))
    return False
