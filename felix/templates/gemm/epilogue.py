"""The elementwise part of a program as C++.

Arithmetic on floats is done in float32 from the sum to the store: casts to narrower floats in the
middle, and the rounding of narrower arithmetic, are dropped, so the result is at least as near to
the exact one as the program's. Casts that the model has (`felix.tir.rounding`), and those to
integers, are done as the program says. Maxima and minima are NaN where an operand is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from felix.tir import grammar, nan, rounding

_OPERATORS = {
    kind: {"and": "&&", "or": "||"}.get(symbol, symbol)
    for kind, symbol in grammar.SYMBOLS.items()
    if kind not in ("FloorDiv", "FloorMod")
}
_OF_ONE = (
    "exp exp2 exp10 erf tanh sinh cosh tan sin cos asin acos atan asinh acosh atanh log log2 "
    "log10 log1p sqrt floor ceil round trunc nearbyint"
).split()
_OF_TWO = "pow atan2 fmod hypot copysign".split()
#: C++ of functions, by their names in the grammar.
FUNCTIONS = {
    **{name: f"{name}f({{}})" for name in _OF_ONE},
    **{name: f"{name}f({{}}, {{}})" for name in _OF_TWO},
    "fabs": "fabsf({})",
    "rsqrt": "(1.0f / sqrtf({}))",
    "sigmoid": "(1.0f / (1.0f + expf(-({}))))",
    "likely": "{}",
    "isnan": "({0} != {0})",
    "isinf": "(fabsf({0}) == (1.0f / 0.0f))",
    "isfinite": "(fabsf({0}) < (1.0f / 0.0f))",
}
#: C++ of integers and bools, by TVM's name; values of all of them are computed as int.
_INTEGERS = {
    "bool": "bool",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
}
_BITS = 32
_FLOAT16_ROUNDED = """\
__device__ __forceinline__ float float16_rounded(float value) {
  unsigned short narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(narrow));
  return value;
}
"""
_BFLOAT16_ROUNDED = """\
__device__ __forceinline__ float bfloat16_rounded(float value) {
  unsigned short narrow;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
  return __uint_as_float((unsigned int)narrow << 16);
}
"""
#: What C++ of `text` may call besides, by its name.
_DEVICE_FUNCTIONS = {
    **nan.DEVICE_FUNCTIONS,
    "float16_rounded": _FLOAT16_ROUNDED,
    "bfloat16_rounded": _BFLOAT16_ROUNDED,
}


class Unsupported(Exception):
    """The expression has no form in C++; the message is the reason."""


def c_type(dtype: str) -> str:
    """What values of a dtype are computed as: float, int or bool.

    Raises:
        Unsupported: 64 bits, or an unsigned 32-bit integer.
    """
    if grammar.is_float(dtype) and grammar.bits(dtype) <= _BITS:
        return "float"
    if dtype in _INTEGERS:
        return "bool" if dtype == "bool" else "int"
    raise Unsupported(f"it computes in {dtype}")


def in_device_code(expression: str) -> tuple[str, str]:
    """What C++ of `text` calls, for the source in front of it, and the expression that calls it.

    Keys of templates have the expression as `text` writes it, with C's `fmaxf`, which loses NaN.
    """
    kept = re.sub(r"\bf(max|min)f\(", r"\1_or_nan(", expression)
    names = set(re.findall(r"\w+_(?:or_nan|rounded)(?=\()", kept))
    return "".join(_DEVICE_FUNCTIONS[name] for name in sorted(names)), kept


def text(expr: Any, load: Callable[[Any], str], index: Callable[[Any], str]) -> str:
    """C++ of an expression; in parentheses unless it is a name, a number or a call.

    Args:
        expr: of the program's grammar.
        load: C++ of an element that is read.
        index: C++ of an integer expression of iterators.

    Raises:
        Unsupported: there is none.
    """
    kind, dtype = type(expr).__name__, grammar.dtype(expr)
    if kind == "TensorLoad":
        return load(expr)
    if _is_index(expr, dtype):
        return index(expr)
    value = c_type(dtype)
    if kind in ("IntImm", "FloatImm"):
        return _number(expr.value, value)
    if (exact := rounding.source(expr)) is not None:
        return f"{dtype}_rounded({text(exact, load, index)})"
    below = [text(child, load, index) for child in grammar.children(expr)]
    if kind == "Cast":
        return _cast(below[0], c_type(grammar.dtype(expr.value)), dtype)
    if kind in ("Min", "Max"):
        name = kind.lower() if value == "int" else f"f{kind.lower()}f"
        return f"{name}({below[0]}, {below[1]})"
    if kind in ("Select", "Call"):
        return _call(expr, kind, below)
    if kind in ("Not", "BitwiseNot"):
        return f"({'!' if kind == 'Not' else '~'}{below[0]})"
    return _operation(expr, kind, below)


def _is_index(expr: Any, dtype: str) -> bool:
    """Whether an expression is an integer that iterators alone determine, or one of 64 bits."""
    if grammar.is_float(dtype) or dtype == "bool" or grammar.depends_on_data(expr):
        return False
    return grammar.bits(dtype) > _BITS or any(
        type(part).__name__ == "Var" for part in grammar.expressions(expr)
    )


def _operation(expr: Any, kind: str, below: Sequence[str]) -> str:
    """An operator between two values; integers must be of 32 bits, or they would wrap."""
    operand = grammar.dtype(expr.a)
    is_float = grammar.is_float(operand)
    if kind == "Div" and is_float:
        return f"({below[0]} / {below[1]})"
    is_narrow = not is_float and operand not in ("int32", "bool")
    if kind not in _OPERATORS or (is_narrow and kind not in grammar.COMPARISONS):
        raise Unsupported(f"its epilogue has the operation {kind} of {operand}")
    return f"({below[0]} {_OPERATORS[kind]} {below[1]})"


def _call(expr: Any, kind: str, below: Sequence[str]) -> str:
    name = "if_then_else" if kind == "Select" else grammar.function_name(expr)
    if name == "if_then_else":
        return f"({below[0]} ? {below[1]} : {below[2]})"
    if name not in FUNCTIONS:
        raise Unsupported(f"its epilogue has the function {name}")
    return FUNCTIONS[name].format(*below)


def _cast(value: str, source: str, dtype: str) -> str:
    target = c_type(dtype)
    if target == "bool":
        return f"({value} != 0)"
    if target == "float":
        return value if source == "float" else f"(float)({value})"
    if dtype == "int32":
        return value if source == "int" else f"(int)({value})"
    return f"(int)({_INTEGERS[dtype]})({value})"


def _number(value: float, kind: str) -> str:
    if kind != "float":
        return str(int(value)) if value >= 0 else f"({int(value)})"
    single = float(np.float32(value))
    if np.isnan(single):
        return "(0.0f / 0.0f)"
    if np.isinf(single):
        return "(1.0f / 0.0f)" if single > 0 else "(-1.0f / 0.0f)"
    digits = f"{single:.9g}"
    digits = digits if any(c in digits for c in ".e") else f"{digits}.0"
    return f"{digits}f" if single >= 0 else f"({digits}f)"


def joined(statements: Sequence[tuple[str, str, str]], value: str) -> str:
    """One expression: the value, after definitions (type, name, value) that it may use."""
    if not statements:
        return value
    definitions = " ".join(f"const {kind} {name} = {text};" for kind, name, text in statements)
    return f"[&] {{ {definitions} return {value}; }}()"
