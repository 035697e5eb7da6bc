"""Functions whose plain formulas lose digits or have no program: values near 0, remainders,
largest elements, powers, sums of 16-bit floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.tirx import op
from tvm_ffi import structural

from felix.frontend import norms, ordering, torch_forms
from felix.frontend.rewriting import Rewriter, operator_name
from felix.tir import grammar, rounding

# Functions whose results near 0 must not be lost, as programs of their own.
#
# log(1 + x) and exp(x) - 1 lose a small x beside the 1. Up to `SMALL` these programs take a
# series, beyond it the plain formula, whose rounding matters little there. Nothing here depends
# on the order of roundings, so builds with fast math, which change it, compute the same.

#: Absolute values up to which the series are taken.
SMALL = 0.1
#: Terms by type; what is cut off is below 2e-6 of the result in float32, 1e-16 in float64.
_LOG_TERMS = {"float32": 5, "float64": 16}
_EXP_TERMS = {"float32": 4, "float64": 10}
_ATANH_TERMS = {"float32": 3, "float64": 8}


def emit(builder: relax.BlockBuilder, function: str, x: Any) -> Any:
    """The value of "atanh", "expm1" or "log1p" of a tensor of floats, as a call of a program."""
    return builder.emit(_call(builder, function, x))


def emit_remainder(builder: relax.BlockBuilder, x: Any, y: Any) -> Any:
    """What is left of x after whole multiples of y, of the sign of x: C's fmod.

    Exact for floats of 16 and 32 bits whose ratio is below 2**84.
    """
    emit, dtype, wide = builder.emit, str(x.ty.dtype), "float64"

    def times(value: Any, factor: Any) -> Any:
        return emit(relax.op.multiply(value, factor))

    x, y = (emit(relax.op.astype(each, wide)) for each in (x, y))
    rest = x
    for step in (2, 1, 0):  # each quotient and its product fit in 53 bits
        multiple = times(y, relax.const(2.0 ** (28 * step), wide))
        whole = emit(relax.op.trunc(emit(relax.op.divide(rest, multiple))))
        rest = emit(relax.op.subtract(rest, times(whole, multiple)))
    zero = relax.const(0.0, wide)
    back = times(emit(relax.op.abs(y)), emit(relax.op.sign(x)))
    is_beyond = emit(relax.op.less(times(rest, x), zero))
    rest = emit(relax.op.where(is_beyond, emit(relax.op.add(rest, back)), rest))
    is_all = emit(relax.op.logical_and(emit(relax.op.isinf(y)), emit(relax.op.isfinite(x))))
    return emit(relax.op.astype(emit(relax.op.where(is_all, x, rest)), dtype))


def emit_modulo(builder: relax.BlockBuilder, x: Any, y: Any) -> Any:
    """What is left of x after whole multiples of y, of the sign of y."""
    rest = emit_remainder(builder, x, y)
    moved = builder.emit(relax.op.add(rest, y))
    return builder.emit(relax.op.where(has_other_sign(builder, rest, y), moved, rest))


def has_other_sign(builder: relax.BlockBuilder, rest: Any, y: Any) -> Any:
    """Whether what is left is not 0, and has not the sign of y."""
    zero = relax.const(0.0, str(rest.ty.dtype))
    signs = [builder.emit(relax.op.less(each, zero)) for each in (rest, y)]
    is_other = builder.emit(relax.op.logical_xor(*signs))
    is_left = builder.emit(relax.op.not_equal(rest, zero))
    return builder.emit(relax.op.logical_and(is_other, is_left))


def legalizations() -> Mapping[str, torch_forms.Lowering]:
    """Ways to lower Relax operators that TVM lowers to the plain formulas."""
    return {
        "relax.atanh": lambda builder, call: _call(builder, "atanh", call.args[0]),
        "relax.nn.softplus": _lower_softplus,
        "relax.take": _lower_take,
        **{f"relax.nn.max_pool{n}d": _from_infinity for n in (1, 2, 3)},
        "relax.equal": _comparing(_equal),
        "relax.not_equal": _comparing(_not_equal),
        **ordering.legalizations(),
        **norms.legalizations(),
    }


def _call(builder: relax.BlockBuilder, function: str, x: Any) -> Any:
    operator = {"operator": f"{function}.default", "arguments": [{"tensor": 0}]}
    dtype = str(x.ty.dtype)
    return builder.call_te(
        lambda tensor: _program(function, _FORMULAS[function], tensor),
        x,
        primfunc_name_hint=function,
        primfunc_attrs=torch_forms.attributes(
            "aten", 1, dtype, **operator, keywords={}, result=None
        ),
    )


def _lower_take(builder: relax.BlockBuilder, call: Any) -> Any:
    """TVM's program, without a warning for each that indices are not checked: tasks check them."""
    axis, mode = call.attrs.axis, call.attrs.mode
    has_axis = axis is not None and all(isinstance(e.ty, relax.TensorType) for e in call.args)
    if mode != "fast" or not has_axis:
        return builder.call_te(tvm.topi.take, *call.args, axis, mode=mode)
    return builder.call_te(_taken, *call.args, int(axis), primfunc_name_hint="take")


def _taken(x: te.Tensor, indices: te.Tensor, axis: int) -> te.Tensor:
    """Slices of `x` along an axis, by number."""
    first = axis % len(x.shape)
    last = first + len(indices.shape)

    def element(*at: tirx.Var) -> Any:
        return x(*at[:first], indices(*at[first:last]), *at[last:])

    shape = [*x.shape[:first], *indices.shape, *x.shape[first + 1 :]]
    names = [f"ax{number}" for number in range(len(shape))]
    return te.compute(shape, element, name="T_take", tag="injective", varargs_names=names)


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


def _comparing(rule: Callable[[Any], Any]) -> torch_forms.Lowering:
    """TVM's program of a comparison that asks for NaN besides: TVM takes a number for equal to
    itself, also where programs are fused later."""

    def lower(builder: relax.BlockBuilder, call: Any) -> Any:
        left, right = call.args
        if not left.same_as(right) or "float" not in str(left.ty.dtype):
            return _changed(builder, call, ((tirx.EQ, tirx.NE), rule))

        def program(x: te.Tensor) -> te.Tensor:
            kind = tirx.EQ if rule is _equal else tirx.NE
            # Not made by `==`, which is simplified.
            return te.compute(x.shape, lambda *i: rule(kind(x(*i), x(*i))), tag="elemwise")

        return builder.call_te(program, left, primfunc_name_hint=operator_name(call))

    return lower


def _changed(builder: relax.BlockBuilder, call: Any, rule: tuple[Any, Any]) -> Any:
    """A call of TVM's program of an operator, of which a rule changes nodes of some kinds."""
    lowered = call.op.get_attr("FLegalize")(builder, call)
    variable = lowered.args[0]
    func = builder.get()[variable]
    builder.update_func(variable, func.with_body(structural.structural_map(func.body, (rule,))))
    return lowered


def _equal(node: Any) -> Any:
    return node if (is_nan := _asks_nan(node)) is None else tirx.And(node, tirx.Not(is_nan))


def _not_equal(node: Any) -> Any:
    return node if (is_nan := _asks_nan(node)) is None else tirx.Or(node, is_nan)


def _asks_nan(node: Any) -> Any | None:
    """Whether the first operand of a comparison of floats is NaN; None of other types."""
    x, dtype = node.a, str(grammar.dtype(node.a))
    if "float" not in dtype:
        return None
    return tirx.isnan(x.astype("float32") if dtype == "bfloat16" else x)


def _from_infinity(builder: relax.BlockBuilder, call: Any) -> Any:
    """TVM's program of the largest elements of windows, begun with an infinity: TVM's begins with
    the last finite number, which is wrong where nothing is beyond it."""
    return _changed(builder, call, (tirx.FloatImm, _infinite))


def _infinite(number: tirx.FloatImm) -> tirx.FloatImm:
    """An infinity in the place of the last finite number."""
    dtype = str(number.ty.dtype)
    largest = tirx.max_value(dtype).value
    if abs(number.value) != largest:
        return number
    return tirx.const(math.copysign(math.inf, number.value), dtype)


def _program(name: str, formula: Callable[[Any], Any], x: te.Tensor) -> te.Tensor:
    dtype = str(x.dtype)
    wide = rounding.accumulator(dtype)
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


_FORMULAS: Mapping[str, Callable[[Any], Any]] = {"atanh": _atanh, "expm1": _expm1, "log1p": _log1p}


# Powers with a constant exponent as products and roots.
#
# CUDA builds use fast math, TVM's own as well, where x ** 2 of a negative x is NaN: it is exp2(2
# * log2(x)). A product is right everywhere, and faster.

#: Whole exponents up to this become products.
MAX_EXPONENT = 16
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def expanded_power(rewriter: Rewriter, call: Any, exponent: np.ndarray | None) -> Any:
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


# Products with 0 and the like, which TVM takes for 0 whatever the operand is.


def of_zero(rewriter: Rewriter, call: Any) -> Any:
    """What stands for x * 0, 0 * x, 0 / x and x - x of floats, by a constant 0; None for others.

    It is 0 or NaN; a 0 has not its sign.
    """
    name = operator_name(call)
    if name not in ("multiply", "divide", "subtract"):
        return None
    x, other = call.args
    if name != "subtract" and _is_zero(x):
        x, other = other, x
    elif name == "divide":
        return None
    is_fit = x.same_as(other) if name == "subtract" else _is_zero(other)
    dtype, result = str(x.ty.dtype), rewriter.builder.normalize(call).ty
    if not is_fit or dtype not in _FLOATS or list(result.shape) != list(x.ty.shape):
        return None
    x = _in_float32(rewriter, x)
    is_zero = relax.op.isfinite(x)
    if name == "divide":
        least = relax.const(0.0, str(x.ty.dtype))
        is_zero = relax.op.greater(rewriter.emit(relax.op.abs(x)), least)
    zero, nan = (relax.const(number, dtype) for number in (0.0, math.nan))
    return relax.op.where(rewriter.emit(is_zero), zero, nan)


def _is_zero(value: Any) -> bool:
    """Whether an expression is the constant 0, a single one."""
    if not isinstance(value, tvm.ir.GenericConst):
        return False
    number = value.value.numpy()
    return bool(number.size == 1 and not number.any())


# Sums of 16-bit floats in float32, rounded once, whoever wrote them.

_SUMS = frozenset(
    """
    cumprod cumsum einsum matmul mean median nn.group_norm nn.instance_norm nn.layer_norm
    nn.log_softmax nn.rms_norm nn.softmax prod std sum variance
    """.split()
)
#: Largest elements are found in float32, too: TVM writes no infinity of 16 bits in CUDA.
_WINDOWS = ("nn.avg_pool", "nn.adaptive_avg_pool", "nn.conv", "nn.max_pool")


def widened_sum(rewriter: Rewriter, call: Any) -> Any:
    """What stands for an operator that sums values of 16 bits as such; None for others.

    Its operands are cast where they are read: the cast is fused into the operator's program.
    """
    name = operator_name(call)
    if name not in _SUMS and not name.startswith(_WINDOWS):
        return None
    dtype = str(getattr(rewriter.builder.normalize(call).ty, "dtype", ""))
    if dtype not in rounding.HALF:
        return None
    operands = [_in_float32(rewriter, operand) for operand in call.args]
    if name in ("cumprod", "cumsum"):
        scan = getattr(relax.op, name)
        wide = scan(operands[0], call.attrs.axis, "float32", call.attrs.exclusive)
    elif name == "matmul":
        wide = relax.op.matmul(*operands, out_dtype="float32")
    else:
        wide = relax.Call(call.op, operands, call.attrs, call.ty_args)
    return relax.op.astype(rewriter.emit(wide), dtype)


def _in_float32(rewriter: Rewriter, operand: Any) -> Any:
    """An operand, or tensors of a tuple, of 16 bits as float32."""
    if isinstance(operand, relax.Tuple):
        return relax.Tuple([_in_float32(rewriter, field) for field in operand.fields])
    is_half = isinstance(operand.ty, relax.TensorType) and str(operand.ty.dtype) in rounding.HALF
    return rewriter.emit(relax.op.astype(operand, "float32")) if is_half else operand
