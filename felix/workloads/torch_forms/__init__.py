"""The operators of the catalogue as PyTorch computes them, for comparison with its libraries.

    form = torch_forms.form("conv2d", {"n": 1, "h": 56, "w": 56, "ci": 64, "co": 64})
    output = form.call(data, kernel)

A form takes the inputs of the operator's task in their order, shapes, types and layout. It is
what a PyTorch user would write: one call of the library where there is one, in the types of the
operator. The libraries accumulate narrow floats in float32, as the tasks do, but stages that are
calls of their own round to the output's type in between, where tasks round once. What PyTorch has
no call for has no form.

Importing this package loads torch; `felix.workloads` does not import it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from felix.workloads import catalogue, dtypes
from felix.workloads.torch_forms import contractions, reductions
from felix.workloads.torch_forms.contractions import Form, tensor

__all__ = ["FORMS", "Form", "form", "tensor"]

#: operator -> its form, from all its parameters
FORMS: Mapping[str, Callable[[Mapping[str, Any]], Form]] = {
    "gemm": contractions.gemm,
    "conv1d": contractions.convolution,
    "conv2d": contractions.convolution,
    "conv3d": contractions.convolution,
    "depthwise_conv2d": contractions.convolution,
    "conv_transpose2d": contractions.conv_transpose2d,
    "pool2d": reductions.pool2d,
    "global_pool2d": reductions.global_pool2d,
    "reduce": reductions.reduce,
    "softmax": reductions.softmax,
    "layer_norm": reductions.layer_norm,
    "rms_norm": reductions.rms_norm,
    "elementwise": reductions.elementwise,
}


def form(operator: str, params: Mapping[str, Any]) -> Form:
    """The form of an operator with these parameters, as `catalogue.build` takes them.

    Raises:
        WorkloadError: unknown operator, unknown or missing parameter, a bad value, or PyTorch has
            no such call.
    """
    complete = catalogue.complete(operator, params)
    made = FORMS[operator](complete)
    between = complete.get("out_dtype") or dtypes.default_output(complete["dtype"])
    if between not in ("float16", "bfloat16") or dtypes.wide(complete["dtype"]) == "int32":
        return made
    note = ", ".join(filter(None, [made.note, f"{between} between its calls"]))
    return dataclasses.replace(made, note=note)
