"""Element types of operators: of inputs, of sums and of outputs.

Sums of narrow types are kept in a wider one (`wide`): those of float16, bfloat16 and float8 in
float32, those of int8 in int32. Values are converted to the output's type once, at the end. A
product of matrices or a convolution may have an output of another type than its inputs (`output`).
Scales make floats of sums of int8, which is how quantised products end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from felix import errors

#: Of operators with divisions, roots or exponentials.
Float: TypeAlias = Literal["float32", "float64", "float16", "bfloat16"]
#: Of maxima and minima as well.
Ordered: TypeAlias = Literal["float32", "float64", "float16", "bfloat16", "int8"]
#: Of the factors of products.
Factor: TypeAlias = Literal[
    "float32", "float64", "float16", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"
]
#: Of products' outputs.
Output: TypeAlias = Literal["float32", "float64", "float16", "bfloat16", "int32"]

#: Type -> the type its sums are kept in; others keep their own.
_WIDE: Mapping[str, str] = {
    "float16": "float32",
    "bfloat16": "float32",
    "float8_e4m3fn": "float32",
    "float8_e5m2": "float32",
    "int8": "int32",
}
#: Type of factors -> possible types of the output, that of no request first.
_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "float32": ("float32",),
    "float64": ("float64",),
    "float16": ("float16", "float32", "bfloat16"),
    "bfloat16": ("bfloat16", "float32", "float16"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32"),
    "float8_e5m2": ("bfloat16", "float16", "float32"),
    "int8": ("int32",),
}
#: Stages of an epilogue whose results are floats whatever they get.
SCALES = ("scale", "scalar_scale")
#: Possible types of the output of scaled integer sums, that of no request first.
_SCALED: tuple[str, ...] = ("bfloat16", "float16", "float32")


def wide(dtype: str) -> str:
    """The type sums of a type are kept in."""
    return _WIDE.get(dtype, dtype)


def scale(dtype: str) -> str:
    """The type of scales of values of a type."""
    return "float64" if dtype == "float64" else "float32"


def output(owner: str, dtype: str, requested: str | None, epilogue: Sequence[str]) -> str:
    """The output's type of a product of this type of factors.

    Raises:
        WorkloadError: products of this type have no output of the requested type, or the epilogue
            needs floats and what it gets are integers.
    """
    is_integer = wide(dtype) == "int32"
    scaled = next((n for n, stage in enumerate(epilogue) if stage in SCALES), len(epilogue))
    if is_integer and "gelu" in epilogue[:scaled]:
        raise errors.WorkloadError(
            f"{owner}: gelu needs floats, and sums of {dtype} are int32: put a scale before it, "
            "like epilogue=scale+gelu"
        )
    is_scaled = scaled < len(epilogue)
    possible = _SCALED if is_scaled and is_integer else _OUTPUTS[dtype]
    if requested is not None and requested not in possible:
        hint = f"; with a scale (epilogue=scale) it is {' or '.join(_SCALED)}"
        raise errors.WorkloadError(
            f"{owner}: out_dtype of dtype={dtype}{' with a scale' if is_scaled else ''} must be "
            f"{' or '.join(possible)}, got {requested}"
            f"{hint if is_integer and not is_scaled else ''}"
        )
    return requested or possible[0]


def default_output(dtype: str) -> str:
    """The output's type for factors of a type without a scale, where none is requested."""
    return _OUTPUTS[dtype][0]


def check_reduced(owner: str, kind: str, dtype: str) -> None:
    """Refuse sums and means in a type that does not hold them.

    Raises:
        WorkloadError: a sum or mean of int8.
    """
    if dtype == "int8" and kind not in ("max", "min"):
        raise errors.WorkloadError(
            f"{owner}: a result of dtype=int8 is a maximum or minimum, not kind={kind}"
        )


def tag(dtype: str, out_dtype: str | None = None) -> str:
    """The types in a task's name; defaults are left out."""
    if out_dtype is not None and out_dtype != default_output(dtype):
        return f"{dtype}_to_{out_dtype}"
    return "" if dtype == "float32" else dtype
