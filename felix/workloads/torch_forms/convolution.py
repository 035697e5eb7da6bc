"""Convolutions in PyTorch.

PyTorch names axes (n, c, spatial...) and kernels (co, ci, taps...) whatever their order in
memory, so tensors with channels last are passed as views, which libraries recognise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from felix import errors
from felix.workloads import common, dtypes
from felix.workloads.torch_forms import form

Convolve = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

#: Number of spatial axes -> PyTorch's convolution.
_LIBRARY: Mapping[int, Callable[..., torch.Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}

CHANNELS_LAST = "channels last, weights in PyTorch's order"


def convolution(params: Mapping[str, Any]) -> form.Form:
    """A convolution over 1, 2 or 3 axes, grouped or depthwise; raises as `_check_types`."""
    _check_types(params)
    rank = len(params["layout"]) - 2
    window = [
        common.per_axis(name, params[name], rank) for name in ("stride", "padding", "dilation")
    ]
    groups = params["groups"] if "groups" in params else params["c"]
    is_last = params["layout"].endswith("C")
    # Only from two axes on PyTorch has channels last: one axis becomes two.
    is_lifted = is_last and rank == 1
    if is_lifted:
        window = [(neutral, *values) for neutral, values in zip((1, 0, 1), window, strict=True)]
    library = _LIBRARY[rank + is_lifted]

    def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not is_last:
            return library(x, w, bias, *window, groups)
        if is_lifted:
            x, w = x.unsqueeze(1), w.unsqueeze(0)
        output = library(x.movedim(-1, 1), w.movedim((-1, -2), (0, 1)), bias, *window, groups)
        output = output.movedim(1, -1)
        return output.squeeze(1) if is_lifted else output

    return _form(params, convolve, (rank + 1, *range(rank), rank))


def conv_transpose2d(params: Mapping[str, Any]) -> form.Form:
    """A transposed convolution over two axes; raises as `_check_types`."""
    _check_types(params)
    stride, padding, output_padding = (
        common.per_axis(name, params[name], 2) for name in ("stride", "padding", "output_padding")
    )
    is_last = params["layout"].endswith("C")

    def convolve(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if is_last:
            x, w = x.movedim(-1, 1), w.movedim((2, 3), (0, 1))
        output = functional.conv_transpose2d(x, w, bias, stride, padding, output_padding)
        return output.movedim(1, -1) if is_last else output

    return _form(params, convolve, (2, 0, 1, 3))


def _check_types(params: Mapping[str, Any]) -> None:
    """Refuse types that PyTorch does not convolve.

    Raises:
        WorkloadError: bytes, or an output of another type than the inputs.
    """
    dtype = params["dtype"]
    if params["out_dtype"] not in (None, dtype) or dtypes.default_output(dtype) != dtype:
        raise errors.WorkloadError(
            "PyTorch's convolutions are of floats of 16 bits and more, and give the type of their "
            "inputs"
        )


def _form(
    params: Mapping[str, Any], convolve: Convolve, weight_order: tuple[int, ...]
) -> form.Form:
    """With the epilogue; the axes of weights with channels last in PyTorch's memory order."""
    is_last = params["layout"].endswith("C")

    def call(x: torch.Tensor, w: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        bias, stages, others = form.split_bias(params["epilogue"], extra)
        return form.epilogue(convolve(x, w, bias), stages, others, -1 if is_last else 1)

    return form.Form(call, {1: weight_order}, CHANNELS_LAST) if is_last else form.Form(call)
