"""Elementwise programs: math, arithmetic with broadcasts, integers, comparisons, dtypes."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx, topi

from tests.corpus.programs.build import Builder, apply, chain, gelu

_SHAPE = (37, 130)
_UNARY = (
    "exp sqrt rsqrt tanh sigmoid erf floor ceil trunc round abs negative sign log cos sinh "
    "fast_exp fast_tanh fast_erf isnan isfinite"
).split()
_BINARY = "add subtract multiply divide power maximum minimum mod floor_mod log_add_exp".split()
_INTEGER = "add multiply maximum floor_divide floor_mod mod divide".split()
_BITS = "bitwise_and bitwise_or bitwise_xor left_shift right_shift".split()
_COMPARISONS = "equal less greater_equal not_equal".split()


def programs() -> dict[str, Builder]:
    """Name -> builder."""
    result = {name: apply(getattr(topi, name), _SHAPE) for name in _UNARY}
    result |= {f"{name}_broadcast": apply(getattr(topi, name), _SHAPE, (130,)) for name in _BINARY}
    result |= {
        f"{name}_int32": apply(getattr(topi, name), _SHAPE, _SHAPE, dtype="int32")
        for name in _INTEGER + _BITS
    }
    result |= {f"{name}_bool": apply(getattr(topi, name), _SHAPE, _SHAPE) for name in _COMPARISONS}
    result |= {
        f"logical_{name}": apply(getattr(topi, f"logical_{name}"), _SHAPE, _SHAPE, dtype="bool")
        for name in ("and", "or", "xor")
    }
    result |= {
        f"add_{dtype}": apply(topi.add, _SHAPE, _SHAPE, dtype=dtype)
        for dtype in ("float16", "bfloat16", "float64", "int8", "uint8", "int64")
    }
    result |= {
        "shift_and_mask": apply(
            lambda x: topi.bitwise_and(topi.right_shift(x, 3), 15), _SHAPE, dtype="uint8"
        ),
        "bitwise_not_int32": apply(topi.bitwise_not, _SHAPE, dtype="int32"),
        "logical_not": apply(topi.logical_not, _SHAPE, dtype="bool"),
        "clip": apply(topi.clip, _SHAPE, a_min=-1.0, a_max=1.0),
        "leaky_relu": apply(topi.nn.leaky_relu, _SHAPE, alpha=0.1),
        "prelu": apply(topi.nn.prelu, (1, 8, 15, 17), (8,)),
        "scale_shift": apply(topi.nn.scale_shift_nchw, (1, 8, 15, 17), (8,), (8,)),
        "softplus": apply(topi.nn.softplus, _SHAPE),
        "where": apply(topi.where, _SHAPE, _SHAPE, _SHAPE, dtypes=["bool", "float32", "float32"]),
        "elemwise_sum": apply(lambda *xs: topi.elemwise_sum(list(xs)), *[_SHAPE] * 4),
        "full_like": apply(topi.full_like, _SHAPE, fill_value=2.0),
        "relu_twice": chain(_SHAPE, topi.nn.relu, topi.nn.relu),
        "gelu": chain(_SHAPE, gelu),
        "add_of_add": apply(lambda x, y, z: topi.add(topi.add(x, y), z), *[_SHAPE] * 3),
        "cast_to_int8": apply(lambda x: topi.cast(x, "int8"), _SHAPE),
        "cast_from_bool": apply(lambda x: topi.cast(x, "float32"), _SHAPE, dtype="bool"),
        "popcount": apply(_popcount, _SHAPE, dtype="uint32"),
        "truncated_division": apply(_truncated, _SHAPE, dtype="int32"),
        "one_element": apply(topi.exp, (1,)),
        "no_dimension": apply(topi.exp, ()),
        "prime_vector": apply(topi.exp, (10007,)),
    }
    return result


def _popcount(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: tirx.popcount(x(*i)), name="count")


def _truncated(x: Any) -> Any:
    return te.compute(
        x.shape, lambda *i: tirx.truncdiv(x(*i), 3) + tirx.truncmod(x(*i), 5), name="divided"
    )
