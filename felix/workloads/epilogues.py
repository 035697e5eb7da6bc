"""What follows a product elementwise: bias, residual, activations, scales.

Values are in the type of the product's sums until a scale makes floats of integers; the last
tensor is converted to the output's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te

from felix.workloads import common, dtypes


def add(
    output: common.Tensor, epilogue: Sequence[str], channel_axis: int, dtype: str
) -> tuple[list[common.Tensor], common.Tensor]:
    """Append epilogue stages to `output`.

    Returns the extra inputs (bias and scale [channels], residual [shape of output], scalar_scale
    [1], in the order given) and the last tensor, which has type `dtype`. Biases and residuals
    have it, too, but those of integer sums before a scale, which are int32.
    """
    shape = common.shape_of(output)
    shapes = {
        "bias": (shape[channel_axis],),
        "residual": shape,
        "scale": (shape[channel_axis],),
        "scalar_scale": (1,),
    }
    names = {
        "bias": "bias_add",
        "residual": "residual_add",
        "scale": "scaled",
        "scalar_scale": "scalar_scaled",
    }
    inputs: list[common.Tensor] = []
    for number, stage in enumerate(epilogue):
        again = epilogue[:number].count(stage)
        suffix = f"_{again + 1}" if again else ""
        if stage in shapes:
            of_stage = _type_of_extra(stage, common.dtype_of(output), dtype)
            inputs.append(common.placeholder(f"{stage}{suffix}", shapes[stage], of_stage))
        extra = inputs[-1] if inputs else None
        body = _stage(stage, output, extra, channel_axis)
        output = common.compute(names.get(stage, stage) + suffix, shape, body)
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
        "scale": lambda *i: _as_type(x[i], extra) * extra[i[channel_axis]],
        "scalar_scale": lambda *i: _as_type(x[i], extra) * extra[0],
    }
    return bodies[stage]


def _as_type(value: Any, like: Any) -> Any:
    """The value in the type of `like`."""
    return (
        value
        if common.dtype_of(value) == common.dtype_of(like)
        else value.astype(common.dtype_of(like))
    )
