"""Training losses on ln latency: regression, failed schedules, ranking within tasks.

Notation: a step sees T tasks with K schedules each; p, y [T, K] predicted and measured
ln(latency_us), failed [T, K] where y is only a lower bound. Every task weighs the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def regression(p: Tensor, y: Tensor, failed: Tensor) -> Tensor:
    """Huber loss of p - y per schedule; for failed ones only where p lies below the bound y.

    It turns from square to linear where a latency is e times the other.
    """
    error = torch.where(failed, (p - y).clamp(max=0.0), p - y)
    return functional.huber_loss(error, torch.zeros_like(error), reduction="none")


def ranking(p: Tensor, y: Tensor, failed: Tensor, noise: float) -> Tensor:
    """Logistic loss of wrongly ordered pairs within each row of [T, K]; mean per task [T].

    A pair (i, j) with y_j > y_i + noise costs softplus(p_i - p_j), weighted by how far apart
    the two are (at most 1) and by how close the faster one is to its task's best, because a
    search acts on the fast end only. Two failed schedules are no pair.
    """
    gap = y.unsqueeze(-2) - y.unsqueeze(-1)  # [T, i, j] = y_j - y_i
    closeness = torch.exp(-(y - y.amin(dim=-1, keepdim=True))).clamp(min=0.1).unsqueeze(-1)
    both = failed.unsqueeze(-1) & failed.unsqueeze(-2)
    weight = gap.clamp(max=1.0) * closeness * (gap > noise) * ~both
    cost = functional.softplus(p.unsqueeze(-1) - p.unsqueeze(-2)) * weight
    return cost.sum(dim=(-2, -1)) / weight.sum(dim=(-2, -1)).clamp(min=1e-6)
