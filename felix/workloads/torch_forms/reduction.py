"""Reductions, softmax and normalisations in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from felix.workloads import common
from felix.workloads.torch_forms import form

_REDUCE: Mapping[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
}


def reduce(params: Mapping[str, Any]) -> form.Form:
    """Sum, mean, maximum or minimum over any axes."""
    over = common.resolve_axes("axes", params["axes"], len(params["shape"]))
    library, keepdims = _REDUCE[params["kind"]], params["keepdims"]
    return form.Form(lambda x: library(x, over, keepdims))


def softmax(params: Mapping[str, Any]) -> form.Form:
    """Softmax along one axis."""
    return form.Form(lambda x: torch.softmax(x, params["axis"]))


def layer_norm(params: Mapping[str, Any]) -> form.Form:
    """Layer normalisation, with or without weights."""

    def norm(x: torch.Tensor, extents: list[int], *weights: torch.Tensor) -> torch.Tensor:
        gamma, beta = weights or (None, None)
        return functional.layer_norm(x, extents, gamma, beta, params["epsilon"])

    return _over_last(params, norm)


def rms_norm(params: Mapping[str, Any]) -> form.Form:
    """Normalisation by the root of the mean square."""

    def norm(x: torch.Tensor, extents: list[int], gamma: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, extents, gamma, params["epsilon"])

    return _over_last(params, norm)


def _over_last(params: Mapping[str, Any], norm: Callable[..., torch.Tensor]) -> form.Form:
    """PyTorch normalises the last axes; others are moved there as a view."""
    shape = params["shape"]
    over = common.resolve_axes("axes", params["axes"], len(shape))
    last = tuple(range(len(shape) - len(over), len(shape)))
    extents = [shape[axis] for axis in over]

    def call(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return norm(x.movedim(over, last), extents, *weights).movedim(last, over)

    return form.Form(call)
