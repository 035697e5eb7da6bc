"""Chains of elementwise operations, with broadcast operands.

A stage is a unary name ("relu") or a binary name ("add"), which takes one more input tensor of
the full shape; "add@1" makes that input vary over axis 1 only (the other axes have extent 1, as
in numpy's rules), "add@0.2" over axes 0 and 2, "add@" over none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from felix import errors, names, task
from felix.workloads import common, dtypes

UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: te.max(x, common.const(0.0, x)),
    "gelu": common.gelu_of,
    "silu": lambda x: x * te.sigmoid(x),
    "sigmoid": te.sigmoid,
    "tanh": te.tanh,
    "exp": te.exp,
    "log": te.log,
    "sqrt": te.sqrt,
    "rsqrt": te.rsqrt,
    "erf": te.erf,
    "abs": tirx.abs,
    "negative": lambda x: common.const(0.0, x) - x,
    "square": lambda x: x * x,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "max": te.max,
    "min": te.min,
}


@common.operator
def elementwise(
    shape: common.Shape,
    ops: Sequence[str] = ("add", "relu"),
    *,
    dtype: dtypes.Float = "float32",
    target: common.TargetLike = "llvm",
) -> task.Task:
    """A chain of elementwise stages on one tensor.

    Args:
        shape: shape of the input and of the result.
        ops: stages in order: relu, gelu, silu, sigmoid, tanh, exp, log, sqrt, rsqrt, erf, abs,
            negative, square, or with one more input add, sub, mul, div, max, min; `add@1` means
            that input varies over axis 1 only, `add@0.2` over axes 0 and 2.
        dtype: type of inputs and output.
    """
    if not ops:
        raise errors.WorkloadError("elementwise: ops must name at least one operation")
    x = common.placeholder("x", shape, dtype)
    inputs, result = [x], x
    for number, op in enumerate(ops):
        name, marked, axes = op.partition("@")
        common.one_of("elementwise: ops", name, (*UNARY, *BINARY))
        if name in UNARY and marked:
            raise errors.WorkloadError(
                f"elementwise: {name} takes no operand, got {names.quoted(op)}"
            )
        operand = None
        if name in BINARY:
            varying = _varying(axes, len(shape)) if marked else tuple(range(len(shape)))
            extents = [e if axis in varying else 1 for axis, e in enumerate(shape)]
            operand = common.placeholder(f"y{len(inputs)}", extents, dtype)
            inputs.append(operand)
        result = common.compute(f"{name}_{number}", shape, _body(name, result, operand))
    label = "_".join(op.replace("@", "").replace(".", "") for op in ops)
    kind = common.name_of("elementwise", shape, label, dtypes.tag(dtype))
    return common.finish(kind, [*inputs, common.cast(result, dtype)], target)


def _varying(text: str, rank: int) -> tuple[int, ...]:
    if not text:
        return ()
    try:
        axes = [int(item) for item in text.split(".")]
    except ValueError:
        raise errors.WorkloadError(
            f"elementwise: operand axes must be integers joined by dots, got {names.quoted(text)}"
        ) from None
    return common.resolve_axes("elementwise: operand axes", axes, rank)


def _body(name: str, x: common.Tensor, operand: common.Tensor | None) -> Callable[..., Any]:
    if operand is None:
        return lambda *i: UNARY[name](common.wide(x[i]))
    ones = [extent == 1 for extent in common.shape_of(operand)]

    def binary(*index: Any) -> Any:
        at = tuple(0 if one else i for one, i in zip(ones, index, strict=True))
        return BINARY[name](common.wide(x[index]), common.wide(operand[at]))

    return binary
