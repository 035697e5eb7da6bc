"""Reductions, softmax, normalisations, elementwise chains and pooling in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from felix.torch_calls import functions
from felix.workloads import common, convolution, pointwise
from felix.workloads.torch_forms import contractions

#: What differs from PyTorch's name of a kind of reduction, or of an elementwise operation.
_REDUCTIONS = {"max": "amax", "min": "amin"}
_ELEMENTWISE = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "max": "maximum",
    "min": "minimum",
}


def reduce(params: Mapping[str, Any]) -> contractions.Form:
    """Sum, mean, maximum or minimum over any axes."""
    over = common.resolve_axes("axes", params["axes"], len(params["shape"]))
    library = functions.function(_REDUCTIONS.get(params["kind"], params["kind"]))
    keepdims = params["keepdims"]
    return contractions.Form(lambda x: library(x, over, keepdims))


def softmax(params: Mapping[str, Any]) -> contractions.Form:
    """Softmax along one axis."""
    return contractions.Form(lambda x: torch.softmax(x, params["axis"]))


def layer_norm(params: Mapping[str, Any]) -> contractions.Form:
    """Layer normalisation, with or without weights."""

    def norm(x: torch.Tensor, extents: list[int], *weights: torch.Tensor) -> torch.Tensor:
        gamma, beta = weights or (None, None)
        return functional.layer_norm(x, extents, gamma, beta, params["epsilon"])

    return _over_last(params, norm)


def rms_norm(params: Mapping[str, Any]) -> contractions.Form:
    """Normalisation by the root of the mean square."""

    def norm(x: torch.Tensor, extents: list[int], gamma: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, extents, gamma, params["epsilon"])

    return _over_last(params, norm)


def _over_last(params: Mapping[str, Any], norm: Callable[..., torch.Tensor]) -> contractions.Form:
    """PyTorch normalises the last axes; others are moved there as a view."""
    shape = params["shape"]
    over = common.resolve_axes("axes", params["axes"], len(shape))
    last = tuple(range(len(shape) - len(over), len(shape)))
    extents = [shape[axis] for axis in over]

    def call(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return norm(x.movedim(over, last), extents, *weights).movedim(last, over)

    return contractions.Form(call)


# Pooling in PyTorch.
#
# Its pooling takes padding of at most half the kernel, and averages no dilated windows. Other
# padding is a call of its own, and a dilated average is a depthwise convolution.

Pool = Callable[[torch.Tensor], torch.Tensor]


def pool2d(params: Mapping[str, Any]) -> contractions.Form:
    """Maximum or average over a sliding window."""
    window = convolution.window(
        "pool2d",
        (params["h"], params["w"]),
        *(params[name] for name in ("kernel", "stride", "padding", "dilation")),
    )
    pool = _maximum(window) if params["kind"] == "max" else _average(window, params)
    if not params["layout"].endswith("C"):
        return contractions.Form(pool)
    return contractions.Form(lambda x: pool(x.movedim(-1, 1)).movedim(1, -1), note="channels last")


def global_pool2d(params: Mapping[str, Any]) -> contractions.Form:
    """Maximum or average over the whole image."""
    axes = (1, 2) if params["layout"].endswith("C") else (2, 3)
    if params["kind"] == "max":
        return contractions.Form(lambda x: torch.amax(x, axes, True))
    return contractions.Form(lambda x: torch.mean(x, axes, True))


def _maximum(window: convolution.Window) -> Pool:
    kernel, stride, dilation = window.kernel, window.stride, window.dilation
    # With taps no farther apart than the image is long, every window has a cell of it, and what
    # is outside never wins; else it does, and PyTorch's would be -inf.
    is_inside = all(d <= e for d, e in zip(dilation, window.extents, strict=True))
    if is_inside and _is_half(window):
        padding = window.padding
        return lambda x: functional.max_pool2d(x, kernel, stride, padding, dilation)

    def pool(x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x, _borders(window), value=torch.finfo(x.dtype).min)
        return functional.max_pool2d(padded, kernel, stride, 0, dilation)

    return pool


def _average(window: convolution.Window, params: Mapping[str, Any]) -> Pool:
    kernel, stride, counts_padding = window.kernel, window.stride, params["count_padding"]
    if any(d > 1 for d in window.dilation):
        return _dilated_average(window, params["c"])
    if _is_half(window):
        padding = window.padding
        return lambda x: functional.avg_pool2d(x, kernel, stride, padding, False, counts_padding)

    def average(x: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(functional.pad(x, _borders(window)), kernel, stride)

    def of_cells(x: torch.Tensor) -> torch.Tensor:
        return average(x) / average(x.new_ones((1, 1, *window.extents)))

    return average if counts_padding else of_cells


def _dilated_average(window: convolution.Window, channels: int) -> Pool:
    share = 1.0 / math.prod(window.kernel)

    def pool(x: torch.Tensor) -> torch.Tensor:
        weights = x.new_full((channels, 1, *window.kernel), share)
        return functional.conv2d(
            x, weights, None, window.stride, window.padding, window.dilation, channels
        )

    return pool


def _is_half(window: convolution.Window) -> bool:
    """Whether PyTorch's pooling takes the padding."""
    return all(2 * p <= k for p, k in zip(window.padding, window.kernel, strict=True))


def _borders(window: convolution.Window) -> list[int]:
    """The padding as `functional.pad` takes it: the last axis first, both ends."""
    return [p for p in reversed(window.padding) for _ in range(2)]


def elementwise(params: Mapping[str, Any]) -> contractions.Form:
    """A chain of stages, a call for each; operands broadcast as in the task."""
    names = [op.partition("@")[0] for op in params["ops"]]
    stages = [
        (functions.function(_ELEMENTWISE.get(name, name)), name in pointwise.BINARY)
        for name in names
    ]

    def call(x: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        others = iter(operands)
        for stage, is_binary in stages:
            x = stage(x, next(others)) if is_binary else stage(x)
        return x

    return contractions.Form(call)
