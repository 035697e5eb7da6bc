"""Chains of elementwise operations, with broadcast operands.

A stage is a unary name ("relu") or a binary name ("add"), which takes one more input tensor of
the full shape; "add@1" makes that input vary over axis 1 only (the other axes have extent 1, as
in numpy's rules), "add@0.2" over axes 0 and 2, "add@" over none.

Epilogues follow a product elementwise: bias, residual, activations, scales. Values are in the type
of the product's sums until a scale makes floats of integers; the last tensor is converted to the
output's type.
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


#: Blocks of stages that are not called as their stage is.
_NAMES = {"bias": "bias_add", "residual": "residual_add"}
_NAMES |= {"scale": "scaled", "scalar_scale": "scalar_scaled"}


def add(
    output: common.Tensor, epilogue: Sequence[str], channel_axis: int, dtype: str
) -> tuple[list[common.Tensor], common.Tensor]:
    """Append epilogue stages to `output`.

    Returns the extra inputs (bias and scale [channels], residual [shape of output], scalar_scale
    [1], in the order given) and the last tensor, which has type `dtype`. Biases and residuals
    have it, too, but those of integer sums before a scale, which are int32.
    """
    shape = common.shape_of(output)
    channels = (shape[channel_axis],)
    shapes = {"bias": channels, "residual": shape, "scale": channels, "scalar_scale": (1,)}
    inputs: list[common.Tensor] = []
    for number, stage in enumerate(epilogue):
        again = epilogue[:number].count(stage)
        suffix = f"_{again + 1}" if again else ""
        if stage in shapes:
            of_stage = _type_of_extra(stage, common.dtype_of(output), dtype)
            inputs.append(common.placeholder(f"{stage}{suffix}", shapes[stage], of_stage))
        extra = inputs[-1] if inputs else None
        body = _stage(stage, output, extra, channel_axis)
        output = common.compute(_NAMES.get(stage, stage) + suffix, shape, body)
    return inputs, common.cast(output, dtype)


def _type_of_extra(stage: str, values: str, dtype: str) -> str:
    """The type of a stage's input, where it gets values of one type and the end has another."""
    if stage in dtypes.SCALES:
        return dtypes.scale(values)
    return values if values == "int32" else dtype


def _stage(
    stage: str, x: common.Tensor, extra: common.Tensor, channel_axis: int
) -> Callable[..., Any]:
    bodies: dict[str, Callable[..., Any]] = {
        "bias": lambda *i: x[i] + common.wide(extra[i[channel_axis]]),
        "residual": lambda *i: x[i] + common.wide(extra[i]),
        "relu": lambda *i: te.max(x[i], common.const(0.0, x)),
        "gelu": lambda *i: common.gelu_of(x[i]),
        "scale": lambda *i: x[i].astype(common.dtype_of(extra)) * extra[i[channel_axis]],
        "scalar_scale": lambda *i: x[i].astype(common.dtype_of(extra)) * extra[0],
    }
    return bodies[stage]
