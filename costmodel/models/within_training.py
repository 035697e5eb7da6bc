"""A network for the kernels that it was trained on, and a formula for all others.

The shipped networks for templates have seen products on tensor cores alone. What a network says of
other products is an accident of its weights, so those are predicted by the time that the rows
themselves state (`analytic_time`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from costmodel.models import analytic_time, feature_columns


class WithinTraining(nn.Module):
    """Rows [B, R, F] and mask [B, R] to ln(latency_us) [B], by either of two models.

    Args:
        network: for programs all of whose products run on tensor cores.
        formula: for programs with a kernel that multiplies without them.
        names: features, in column order.
    """

    kind = "within-training"

    def __init__(
        self, network: nn.Module, formula: analytic_time.AnalyticTime, names: Sequence[str]
    ) -> None:
        super().__init__()
        self.names = tuple(names)
        self.network, self.formula = network, formula
        self._products = feature_columns.index_of(self.names, "problem_ops")
        self._instructions = feature_columns.index_of(self.names, "tensor_instructions")

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Predicted ln(latency_us) [B]; differentiable in rows."""
        multiplies, on_cores = rows[..., self._products] > 0, rows[..., self._instructions] > 0
        is_foreign = (multiplies & ~on_cores & (mask > 0)).any(dim=1)
        predicted: Tensor = self.network(rows, mask)
        return torch.where(is_foreign, self.formula(rows, mask).to(predicted.dtype), predicted)
