"""Functions whose results near 0 must not be lost, as programs of their own.

log(1 + x) and exp(x) - 1 lose a small x beside the 1. Up to `SMALL` these programs take a series,
beyond it the plain formula, whose rounding matters little there. Nothing here depends on the order
of roundings, so builds with fast math, which change it, compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.tirx import op

from felix.frontend.torch_calls import annotation
from felix.frontend.torch_calls.form import TorchCall, TorchForm

#: Absolute values up to which the series are taken.
SMALL = 0.1
#: Types that are computed in float32.
_HALF = ("float16", "bfloat16")
#: Terms by type; what is cut off is below 2e-6 of the result in float32, 1e-16 in float64.
_LOG_TERMS = {"float32": 5, "float64": 16}
_EXP_TERMS = {"float32": 4, "float64": 10}
_ATANH_TERMS = {"float32": 3, "float64": 8}


def emit(builder: relax.BlockBuilder, function: str, x: Any) -> Any:
    """The value of "atanh", "expm1" or "log1p" of a tensor of floats, as a call of a program."""
    return builder.emit(_call(builder, function, x))


def legalizations() -> Mapping[str, annotation.Lowering]:
    """Ways to lower Relax operators that TVM lowers to the plain formulas."""
    return {
        "relax.atanh": lambda builder, call: _call(builder, "atanh", call.args[0]),
        "relax.nn.softplus": _lower_softplus,
    }


def _call(builder: relax.BlockBuilder, function: str, x: Any) -> Any:
    options: dict[str, Any] = {
        "operator": f"{function}.default",
        "arguments": [{"tensor": 0}],
        "keywords": {},
        "result": None,
    }
    form = TorchForm(1, [TorchCall("aten", [0], options, str(x.ty.dtype))])
    return builder.call_te(
        lambda tensor: _program(function, _FORMULAS[function], tensor),
        x,
        primfunc_name_hint=function,
        primfunc_attrs={annotation.ATTRIBUTE: form.to_json()},
    )


def _lower_softplus(builder: relax.BlockBuilder, call: Any) -> Any:
    """x where x * beta > threshold, else log(1 + exp(x * beta)) / beta."""
    beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)

    def formula(x: Any) -> Any:
        scaled = x if beta == 1 else x * _number(beta, x)
        small = _log1p(op.exp(_number(0, x) - op.abs(scaled)))
        soft = tirx.max(scaled, _number(0, x)) + small
        soft = soft if beta == 1 else soft * _number(1 / beta, x)
        return tirx.Select(scaled > _number(threshold, x), x, soft)

    return builder.call_te(
        lambda tensor: _program("softplus", formula, tensor),
        call.args[0],
        primfunc_name_hint="softplus",
    )


def _program(name: str, formula: Callable[[Any], Any], x: te.Tensor) -> te.Tensor:
    dtype = str(x.dtype)
    wide = "float32" if dtype in _HALF else dtype
    return te.compute(
        x.shape,
        lambda *index: formula(x[index].astype(wide)).astype(dtype),
        name=f"T_{name}",
        tag="elemwise",
    )


def _log1p(x: Any) -> Any:
    signs = [(-1) ** n / (n + 1) for n in range(_LOG_TERMS[str(x.ty.dtype)])]
    plain = op.log(_number(1, x) + x)
    return _near_zero(x, x * _series(signs, x), plain)


def _expm1(x: Any) -> Any:
    factors, factorial = [], 1
    for n in range(_EXP_TERMS[str(x.ty.dtype)]):
        factorial *= n + 1
        factors.append(1 / factorial)
    return _near_zero(x, x * _series(factors, x), op.exp(x) - _number(1, x))


def _atanh(x: Any) -> Any:
    factors = [1 / (2 * n + 1) for n in range(_ATANH_TERMS[str(x.ty.dtype)])]
    ratio = (_number(1, x) + x) / (_number(1, x) - x)
    return _near_zero(x, x * _series(factors, x * x), op.log(ratio) * _number(0.5, x))


def _near_zero(x: Any, small: Any, plain: Any) -> Any:
    return tirx.Select(op.abs(x) < _number(SMALL, x), small, plain)


def _series(factors: Sequence[float], x: Any) -> Any:
    """factors[0] + factors[1] * x + ..., by Horner's rule."""
    total = _number(factors[-1], x)
    for factor in reversed(factors[:-1]):
        total = total * x + _number(factor, x)
    return total


def _number(value: float, x: Any) -> Any:
    return tirx.const(value, str(x.ty.dtype))


_FORMULAS: Mapping[str, Callable[[Any], Any]] = {
    "atanh": _atanh,
    "expm1": _expm1,
    "log1p": _log1p,
}
