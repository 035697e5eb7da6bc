"""Pooling in PyTorch.

Its pooling takes padding of at most half the kernel, and averages no dilated windows. Other
padding is a call of its own, and a dilated average is a depthwise convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from felix.workloads import convolution
from felix.workloads.torch_forms import form

Pool = Callable[[torch.Tensor], torch.Tensor]


def pool2d(params: Mapping[str, Any]) -> form.Form:
    """Maximum or average over a sliding window."""
    window = convolution.window(
        "pool2d",
        (params["h"], params["w"]),
        *(params[name] for name in ("kernel", "stride", "padding", "dilation")),
    )
    pool = _maximum(window) if params["kind"] == "max" else _average(window, params)
    if not params["layout"].endswith("C"):
        return form.Form(pool)
    return form.Form(lambda x: pool(x.movedim(-1, 1)).movedim(1, -1), note="channels last")


def global_pool2d(params: Mapping[str, Any]) -> form.Form:
    """Maximum or average over the whole image."""
    axes = (1, 2) if params["layout"].endswith("C") else (2, 3)
    if params["kind"] == "max":
        return form.Form(lambda x: torch.amax(x, axes, True))
    return form.Form(lambda x: torch.mean(x, axes, True))


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
