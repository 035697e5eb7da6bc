"""The analytic prior: ln(latency_us) from a few features by name, when nothing was measured yet.

Every term is a time: a quantity (bytes, operations, or microseconds already) over a rate. The
terms overlap imperfectly, so they are combined by a power mean between their sum (p = 1) and
their maximum (p = inf), and a launch overhead is added:

    ln T = bias + gain * ln( (sum_k (exp(s_k) t_k)**p)**(1/p) + exp(s_0) t_0 )

Notation: t_k time of term k [B] in us, s_k learnable log scales (0 at first), gain 1 and bias 0
at first: a handful of parameters that the first measurements calibrate. `Corrected` adds an MLP
with a zero last layer, so that the hand-over from formula to network is smooth: before training
it equals the formula.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.models import feature_columns, segment_mlp
from felix import errors


@dataclass(frozen=True, slots=True)
class Term:
    """One time of the model: sum over `features` of value / `per_us`.

    Attributes:
        label: name of the learnable scale ("compute", "memory", ...).
        features: feature names, each holding log2(1 + v).
        per_us: what passes in one microsecond at the device's peak; 1 for features in us.
        reduce: "sum" adds the program's rows; "max" takes a kernel feature, equal in all rows.
    """

    label: str
    features: tuple[str, ...]
    per_us: float = 1.0
    reduce: str = "sum"

    def __post_init__(self) -> None:
        if self.per_us <= 0 or self.reduce not in ("sum", "max") or not self.features:
            raise errors.CheckpointError(f"the analytic term {self.label!r} is malformed")


@dataclass(frozen=True, slots=True)
class AnalyticOptions:
    """Terms of the model, launch overhead in us, and the power p of their overlap."""

    terms: tuple[Term, ...]
    overhead_us: float = 1.0
    power: float = 4.0


class AnalyticModel(nn.Module):
    """Rows [B, R, F] and mask [B, R] to ln(latency_us) [B] by formula."""

    kind = "analytic"

    def __init__(self, names: Sequence[str], options: AnalyticOptions) -> None:
        super().__init__()
        if not options.terms:
            raise errors.CheckpointError("the analytic model has no terms")
        self.names = tuple(names)
        self.options = options
        self.indices = [
            [feature_columns.index_of(self.names, feature) for feature in term.features]
            for term in options.terms
        ]
        self.log_scales = nn.Parameter(torch.zeros(len(options.terms)))
        self.log_overhead = nn.Parameter(torch.zeros(()))
        self.gain = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(()))

    def describe(self) -> dict[str, Any]:
        """What `from_description` needs to build the same model (JSON)."""
        return dataclasses.asdict(self.options)

    @classmethod
    def from_description(cls, names: Sequence[str], described: dict[str, Any]) -> AnalyticModel:
        """The uncalibrated module that `describe` described."""
        terms = tuple(Term(**{**t, "features": tuple(t["features"])}) for t in described["terms"])
        return cls(names, AnalyticOptions(**{**described, "terms": terms}))

    def ln_times(self, rows: Tensor, mask: Tensor) -> Tensor:
        """ln t_k of every term, unscaled: [B, n_terms]."""
        times = []
        for term, indices in zip(self.options.terms, self.indices, strict=True):
            ln_values = feature_columns.ln_value(rows[..., indices])
            per_row = torch.logsumexp(ln_values, dim=-1)
            times.append(
                feature_columns.over_rows(per_row, mask, term.reduce) - math.log(term.per_us)
            )
        return torch.stack(times, dim=-1)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Predicted ln(latency_us) [B]; differentiable in rows."""
        rows = rows.to(self.bias.dtype)
        power = self.options.power
        scaled = self.ln_times(rows, mask) + self.log_scales
        busy = torch.logsumexp(power * scaled, dim=-1) / power
        overhead = self.log_overhead + math.log(self.options.overhead_us)
        return self.bias + self.gain * torch.logaddexp(busy, overhead.expand_as(busy))


class Corrected(nn.Module):
    """A formula plus a network that starts at zero: the hand-over once measurements exist."""

    kind = "corrected"

    def __init__(self, base: AnalyticModel, correction: segment_mlp.SegmentSumMLP) -> None:
        super().__init__()
        if base.names != correction.names:
            raise errors.CheckpointError("formula and correction read different features")
        self.names = base.names
        self.base = base
        self.correction = correction
        correction.zero_head()

    def describe(self) -> dict[str, Any]:
        """What `from_description` needs to build the same model (JSON)."""
        return {"base": self.base.describe(), "correction": self.correction.describe()}

    @classmethod
    def from_description(cls, names: Sequence[str], described: dict[str, Any]) -> Corrected:
        """The untrained module that `describe` described."""
        return cls(
            AnalyticModel.from_description(names, described["base"]),
            segment_mlp.SegmentSumMLP.from_description(names, described["correction"]),
        )

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Predicted ln(latency_us) [B]; differentiable in rows."""
        out: Tensor = self.base(rows, mask) + self.correction(rows, mask)
        return out


def corrected(
    names: Sequence[str],
    options: AnalyticOptions,
    shape: segment_mlp.ModelOptions | None = None,
    seed: int = 0,
) -> Corrected:
    """Formula plus fresh zero correction; the correction's hidden weights follow `seed`."""
    shape = dataclasses.replace(shape or segment_mlp.ModelOptions(hidden=64, blocks=1), prior=None)
    return Corrected(AnalyticModel(names, options), segment_mlp.seeded(names, shape, seed))
