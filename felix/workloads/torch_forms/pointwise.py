"""Chains of elementwise operations in PyTorch: a call for each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from felix.workloads.torch_forms import form

Stage = Callable[..., torch.Tensor]

UNARY: Mapping[str, Stage] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "erf": torch.erf,
    "abs": torch.abs,
    "negative": torch.neg,
    "square": torch.square,
}
BINARY: Mapping[str, Stage] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "max": torch.maximum,
    "min": torch.minimum,
}


def elementwise(params: Mapping[str, Any]) -> form.Form:
    """A chain of stages; operands broadcast as in the task."""
    stages = [op.partition("@")[0] for op in params["ops"]]

    def call(x: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        others = iter(operands)
        for name in stages:
            x = UNARY[name](x) if name in UNARY else BINARY[name](x, next(others))
        return x

    return form.Form(call)
