"""PyTorch modules for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Called(nn.Module):
    """A function of tensors as a model, and the modules whose parameters it reads."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)
