"""The segment-sum MLP: rows of features of one program to ln(latency_us).

Each row (one store of the program) goes through an encoder, the rows of a program are summed,
residual blocks and a linear layer read the sum:

    z = squash((rows - mean) / std);  h = relu(W2 relu(W1 z));  s = sum_r mask_r h_r
    y <- y + relu(V y) for each block;  ln latency_us = head(y) [+ gain * ln prior_us]

Notation: B programs, R rows (padded), F features; rows [B, R, F], mask [B, R], 1 for real rows.
The normaliser's mean and std come from training data and travel in the checkpoint; a feature
that did not vary there has weight 0, so that it cannot surprise a search later. The squash is
smooth (k tanh(z / k)): an optimiser that walks outside the training data meets a bounded model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from costmodel.models import feature_columns
from felix import errors


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Shape of a `SegmentSumMLP`.

    Attributes:
        hidden: width of every layer.
        blocks: residual blocks after the sum.
        squash: bound, in standard deviations, of a normalised feature; None for no bound.
        prior: name of a feature that holds log2(1 + analytic latency in us); the network then
            predicts the residual. None for no prior.
        prior_reduce: "max" where every row has the whole program's latency, "sum" where a row has
            its own.
    """

    hidden: int = 128
    blocks: int = 2
    squash: float | None = 5.0
    prior: str | None = None
    prior_reduce: str = "max"

    def __post_init__(self) -> None:
        if self.prior_reduce not in ("max", "sum"):
            raise ValueError(f"prior_reduce is {self.prior_reduce!r}: use max or sum")


class Normaliser(nn.Module):
    """Per-feature standardisation, fitted once on training rows."""

    mean: Tensor
    weight: Tensor
    fitted: Tensor

    def __init__(self, n_features: int, squash: float | None) -> None:
        super().__init__()
        self.squash = squash
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("weight", torch.ones(n_features))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def fit(self, rows: Tensor, mask: Tensor) -> None:
        """Take mean and 1 / std over the real rows; constant features get weight 0."""
        real = rows[mask > 0].double()
        if len(real) == 0:
            raise errors.CheckpointError("no rows to fit the normaliser on")
        mean = real.mean(dim=0)
        std = (real - mean).square().mean(dim=0).sqrt()
        varies = std > 1e-4
        self.mean.copy_(mean)
        self.weight.copy_(torch.where(varies, 1.0 / std.clamp(min=1e-4), 0.0))
        self.fitted.fill_(True)

    def forward(self, rows: Tensor) -> Tensor:
        """Standardised rows, bounded by +-squash."""
        z = (rows - self.mean) * self.weight
        return z if self.squash is None else self.squash * torch.tanh(z / self.squash)


class Residual(nn.Module):
    """y + relu(V y)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, y: Tensor) -> Tensor:
        """Apply the block to [B, width]."""
        return y + torch.relu(self.linear(y))


class SegmentSumMLP(nn.Module):
    """Rows [B, R, F] and mask [B, R] to predicted ln(latency_us) [B]."""

    kind = "segment_sum_mlp"

    def __init__(self, names: Sequence[str], options: ModelOptions | None = None) -> None:
        super().__init__()
        self.names = tuple(names)
        self.options = options = options or ModelOptions()
        width = options.hidden
        self.normaliser = Normaliser(len(self.names), options.squash)
        self.encoder = nn.Sequential(
            nn.Linear(len(self.names), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(options.blocks)))
        self.head = nn.Linear(width, 1)
        self.prior_index = None
        if options.prior is not None:
            self.prior_index = feature_columns.index_of(self.names, options.prior)
            self.gain = nn.Parameter(torch.ones(()))

    def describe(self) -> dict[str, Any]:
        """What `from_description` needs to build the same architecture (JSON)."""
        return dataclasses.asdict(self.options)

    @classmethod
    def from_description(cls, names: Sequence[str], described: dict[str, Any]) -> SegmentSumMLP:
        """The untrained module that `describe` described."""
        return cls(names, ModelOptions(**described))

    @torch.no_grad()
    def zero_head(self) -> None:
        """Make the network predict 0 (plus the prior) until it is trained."""
        self.head.weight.zero_()
        self.head.bias.zero_()

    @torch.no_grad()
    def rescale(self, slope: float, intercept: float) -> None:
        """Change the weights so that predictions p become slope * p + intercept."""
        self.head.weight.mul_(slope)
        self.head.bias.mul_(slope).add_(intercept)
        if self.prior_index is not None:
            self.gain.mul_(slope)

    def prior(self, rows: Tensor, mask: Tensor) -> Tensor:
        """gain * ln of the prior column [B]; zeros where the model has none."""
        if self.prior_index is None:
            return rows.new_zeros(len(rows))
        ln_us = feature_columns.ln_value(rows[..., self.prior_index])
        return self.gain * feature_columns.over_rows(ln_us, mask, self.options.prior_reduce)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Predicted ln(latency_us) [B]; differentiable in rows."""
        rows = rows.to(self.head.weight.dtype)
        mask = mask.to(rows.dtype)
        encoded = self.encoder(self.normaliser(rows))
        program = torch.einsum("brh,br->bh", encoded, mask)
        out: Tensor = self.head(self.blocks(program)).squeeze(-1)
        return out + self.prior(rows, mask)


def seeded(
    names: Sequence[str], options: ModelOptions | None = None, seed: int = 0
) -> SegmentSumMLP:
    """A `SegmentSumMLP` whose initial weights depend on `seed` only, not on global state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SegmentSumMLP(names, options)


def fit_normalisers(module: nn.Module, rows: Tensor, mask: Tensor) -> bool:
    """Fit every `Normaliser` in `module` that was never fitted; says whether there was one."""
    fresh = [m for m in module.modules() if isinstance(m, Normaliser) and not bool(m.fitted)]
    for normaliser in fresh:
        normaliser.fit(rows, mask)
    return bool(fresh)
