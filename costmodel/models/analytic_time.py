"""A model that believes a formula: ln of the time that the rows themselves state.

For features that hold an estimate of their own time (`felix.templates.spec`, `analytic_us`) while
there is no checkpoint for them. It has no weights; measurements correct it from outside
(`costmodel.online.gaussian_process`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from costmodel.models import feature_columns

#: No program is faster than this.
SHORTEST_US = 0.01


class AnalyticTime(nn.Module):
    """Rows [B, R, F] and mask [B, R] to ln(latency_us) [B]: ln of the sum of a time over rows.

    Args:
        names: features, in column order.
        feature: of them the one that holds log2(1 + microseconds) of a row.
    """

    kind = "analytic-time"

    def __init__(self, names: Sequence[str], feature: str) -> None:
        super().__init__()
        self.names = tuple(names)
        self._column = feature_columns.index_of(self.names, feature)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Predicted ln(latency_us) [B]; differentiable in rows."""
        times_us = torch.expm1(rows[..., self._column] * math.log(2.0)) * mask
        return torch.log(times_us.sum(dim=1).clamp(min=SHORTEST_US))
