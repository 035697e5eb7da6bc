"""Reading quantities out of feature rows: by name, undoing the log transform, over the rows.

Notation: rows [B, R, F] are features as models see them, log2(1 + v) of a quantity v >= 0 where
the feature is a size or a time; mask [B, R] is 1 where the row's store exists. Everything here
stays in the log domain, so that 1e12 bytes neither overflow nor lose their gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from felix import errors

#: Smallest transformed value that differs from zero: v = 2**0.01 - 1, about 0.007.
SMALLEST = 0.01


def index_of(names: Sequence[str], feature: str) -> int:
    """The column of `feature`; raises CheckpointError with the name when it is absent."""
    try:
        return list(names).index(feature)
    except ValueError:
        raise errors.CheckpointError(
            f"the features do not have {feature!r}, which the model needs"
        ) from None


def ln_value(column: Tensor) -> Tensor:
    """ln v of a column that holds log2(1 + v); v below 0.007 counts as 0.007.

    ln(2**x - 1) = z + ln(1 - exp(-z)) with z = x ln 2, finite for every x.
    """
    z = column.clamp(min=SMALLEST) * math.log(2.0)
    return z + torch.log(-torch.expm1(-z))


def over_rows(ln_values: Tensor, mask: Tensor, reduce: str) -> Tensor:
    """[B, R] of ln v to [B]: ln of the sum ("sum") or of the maximum ("max") over real rows."""
    hidden = ln_values.masked_fill(mask == 0, -math.inf)
    lowest = torch.full_like(hidden[:, :1], math.log(2.0**SMALLEST - 1.0))
    if reduce == "sum":  # the lowest value keeps a program without rows finite
        return torch.logsumexp(torch.cat([hidden, lowest], dim=1), dim=1)
    return torch.cat([hidden, lowest], dim=1).amax(dim=1)
