"""Correction of a cost model by a run's measurements: a Gaussian process over its errors.

A network of tens of thousands of weights follows 16 measurements of one task slowly; a Gaussian
process over the network's errors follows them at once, stays near the network where nothing was
measured, and takes milliseconds. For the schedules of one task

    ln latency = f(s) + c + b (f(s) - mean f) + g(z(s)) + noise,   c ~ N(0, C),  b ~ N(0, B),
    g ~ GP(0, a (1 + r) exp(-r)),  r = sqrt(3) |z - z'| / (l m)

with f the cost model, c what this machine shifts all latencies by, b what it stretches them by, z
the standardised sums and maxima over rows of the features, and m the median distance between
measured schedules. Length l, amplitude a and noise are the best of a small grid by marginal
likelihood times a weak prior, anew at each update. Everything is differentiable in the rows, so
that descents see the correction as well.

Notation: N records, rows [N, R, F], mask [N, R], ln_latency [N] of us (NaN for failures, which are
ignored), task_ids [N] any integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from costmodel.online import finetune
from felix import errors

#: Kind of a stored state.
KIND = "correction"
#: Prior means of l, a and the noise variance, and the standard deviations of their logarithms.
_PRIOR = ((0.5, 1.0), (0.2, 1.4), (0.0025, 1.0))
#: A feature that varied less than this among the measured counts as if it varied so much.
_FLOOR = 0.5
#: Variance that keeps the covariance of like programs positive definite.
_JITTER = 1e-6


@dataclass(frozen=True, slots=True)
class CorrectionOptions:
    """Sizes of the process.

    Attributes:
        lengths, amplitudes, noises: the grid of l, a and the noise variance.
        shift, stretch: prior variances C and B of c and b.
        max_records: records of one task that are used: its fastest, and the latest.
    """

    lengths: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    amplitudes: tuple[float, ...] = (0.05, 0.2, 0.8)
    noises: tuple[float, ...] = (0.0025, 0.01, 0.04, 0.16)
    shift: float = 4.0
    stretch: float = 0.05
    max_records: int = 384


@dataclass(frozen=True, slots=True)
class Fit:
    """The process given the records of one task; all float64.

    Attributes:
        centre, scale: of the summaries [D]; points: standardised summaries [N, D].
        inverse: of the covariance of the errors [N, N]; weights: it times the errors [N].
        f, mean_f: the model's predictions [N], and their mean.
        length, amplitude: kernel, `length` in units of the points; the rest of it is in `options`.
        shift: posterior mean of c.
        loss_before, loss_after: RMS errors of leave-one-out predictions of ln latency, of the
            model with its shift alone and of the process.
    """

    centre: Tensor
    scale: Tensor
    points: Tensor
    inverse: Tensor
    weights: Tensor
    f: Tensor
    mean_f: float
    length: float
    amplitude: float
    options: CorrectionOptions
    shift: float
    loss_before: float
    loss_after: float


class CorrectedModel(nn.Module):
    """A cost model with the correction of one task; same call as the model itself."""

    def __init__(self, base: nn.Module, fit: Fit) -> None:
        super().__init__()
        self.base = base
        self.fit = fit

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Predicted ln(latency_us) [B] on this machine."""
        uncorrected: Tensor = self.base(rows, mask)
        f = uncorrected.double()
        corrected = f + self._covariance(rows, mask, f) @ self.fit.weights
        return corrected.to(uncorrected.dtype)

    @torch.no_grad()
    def deviations(self, rows: Tensor, mask: Tensor, normals: Tensor) -> Tensor:
        """Draws of programs' ln latencies from the posterior, less its mean, [B, n].

        Args:
            normals: standard normal numbers [B, n]. Each column is one draw, of all B at once.
        """
        fit, f = self.fit, self.base(rows, mask).double()
        points = (summary(rows, mask) - fit.centre) * fit.scale
        linear = fit.options.stretch * torch.outer(f - fit.mean_f, f - fit.mean_f)
        prior = fit.options.shift + linear + fit.amplitude * _matern(points, points, fit.length)
        covariance = self._covariance(rows, mask, f)
        return _root(prior - covariance @ fit.inverse @ covariance.T) @ normals.double()

    def _covariance(self, rows: Tensor, mask: Tensor, f: Tensor) -> Tensor:
        """Of errors of programs with those of the records [B, N]; f [B] is what `base` says."""
        fit, options = self.fit, self.fit.options
        points = (summary(rows, mask) - fit.centre) * fit.scale
        linear = options.stretch * torch.outer(f - fit.mean_f, fit.f - fit.mean_f)
        return options.shift + linear + fit.amplitude * _matern(points, fit.points, fit.length)


class UnmeasuredModel(finetune.OffsetModel):
    """A cost model of a task of which nothing was measured; same call as the model itself."""

    @torch.no_grad()
    def deviations(self, rows: Tensor, mask: Tensor, normals: Tensor) -> Tensor:
        """Draws of programs' errors from the prior of the process [B, n].

        All programs have the same shift. What counts as near is by the spread of these programs:
        there should be random ones among them.

        Args:
            normals: standard normal numbers [B, n]. Each column is one draw, of all B at once.
        """
        z = summary(rows, mask)
        centre, scale = standardised(z)
        points = (z - centre) * scale
        (length, _), (amplitude, _), _ = _PRIOR
        similarity = _matern(points, points, length * median_distance(points))
        return _root(amplitude * similarity) @ normals.double()


class Corrector:
    """Owns the records of a tuning run; the model's weights are never changed.

    The same calls in the same order give the same predictions.
    """

    def __init__(self, model: nn.Module, options: CorrectionOptions | None = None) -> None:
        self.model = model.eval()
        self.options = options or CorrectionOptions()
        self._records: dict[int, _Records] = {}
        self._fits: dict[int, Fit] = {}

    def __len__(self) -> int:
        """Records measured so far."""
        return sum(len(records.y) for records in self._records.values())

    def for_task(self, task_id: int) -> nn.Module:
        """The model for one task, corrected; a new task gets the mean shift of the others."""
        fit = self._fits.get(task_id)
        if fit is not None:
            return CorrectedModel(self.model, fit).eval()
        shifts = [other.shift for other in self._fits.values()]
        shift = sum(shifts) / len(shifts) if shifts else 0.0
        return UnmeasuredModel(self.model, shift).eval()

    def update(
        self,
        rows: NDArray[np.floating[Any]],
        mask: NDArray[np.generic],
        ln_latency: NDArray[np.floating[Any]],
        task_ids: NDArray[np.integer[Any]],
    ) -> finetune.LearningReport:
        """Add records and fit their tasks anew."""
        ran = np.isfinite(ln_latency)
        tasks = np.unique(task_ids[ran])
        for task in tasks.tolist():
            of_task = ran & (task_ids == task)
            new = self.summarised(rows[of_task], mask[of_task], ln_latency[of_task])
            old = self._records.get(task)
            self._records[task] = new if old is None else old.joined(new)
            self._fits[task] = fit(self._records[task], self.options)
        if not len(tasks):
            return finetune.LearningReport(len(self), math.nan, math.nan, False)
        fits = [self._fits[task] for task in tasks.tolist()]
        before = math.sqrt(sum(f.loss_before**2 for f in fits) / len(fits))
        after = math.sqrt(sum(f.loss_after**2 for f in fits) / len(fits))
        return finetune.LearningReport(len(self), before, after, True)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: the records; the fits follow from them."""
        flat = {
            f"{task}/{name}": getattr(records, name)
            for task, records in self._records.items()
            for name in ("z", "f", "y")
        }
        return {"kind": KIND, "records": flat}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; raises CheckpointError if it does not fit."""
        flat: dict[str, Tensor] = dict(state.get("records") or {})
        if state.get("kind") != KIND:
            raise errors.CheckpointError("the stored state is of another way of learning")
        try:
            numbers = sorted({int(name.partition("/")[0]) for name in flat})
            self._records = {
                n: _Records(flat[f"{n}/z"], flat[f"{n}/f"], flat[f"{n}/y"]) for n in numbers
            }
            self._fits = {n: fit(r, self.options) for n, r in self._records.items()}
        except (KeyError, ValueError, RuntimeError) as error:
            raise errors.CheckpointError("the stored corrections are of another model") from error

    @torch.no_grad()
    def summarised(
        self,
        rows: NDArray[np.floating[Any]],
        mask: NDArray[np.generic],
        ln_latency: NDArray[np.floating[Any]],
    ) -> _Records:
        """What is kept of measured schedules."""
        values = torch.from_numpy(np.asarray(rows, np.float32))
        real = torch.from_numpy((np.asarray(mask) != 0).astype(np.float32))
        f = self.model(values, real).double()
        y = torch.from_numpy(np.asarray(ln_latency, np.float64))
        return _Records(summary(values, real), f, y)


@dataclass(frozen=True, slots=True)
class _Records:
    """Records of one task: summaries z [N, D], predictions f and measured ln latency y [N]."""

    z: Tensor
    f: Tensor
    y: Tensor

    def joined(self, new: _Records) -> _Records:
        return _Records(*(torch.cat([getattr(r, n) for r in (self, new)]) for n in "zfy"))

    def limited(self, count: int) -> _Records:
        """The fastest half and the latest half of `count`; all if there are no more."""
        if len(self.y) <= count:
            return self
        chosen = set(torch.argsort(self.y, stable=True)[: count // 2].tolist())
        for latest in range(len(self.y) - 1, -1, -1):
            if len(chosen) >= count:
                break
            chosen.add(latest)
        index = torch.tensor(sorted(chosen))
        return _Records(self.z[index], self.f[index], self.y[index])


def summary(rows: Tensor, mask: Tensor) -> Tensor:
    """Sums and maxima over the rows that exist: [B, 2 F], float64."""
    real = rows.double() * mask.double().unsqueeze(-1)
    return torch.cat([real.sum(dim=1), real.amax(dim=1)], dim=1)


@torch.no_grad()
def fit(records: _Records, options: CorrectionOptions) -> Fit:
    """The process given the records of one task."""
    records = records.limited(options.max_records)
    n, error = len(records.y), records.y - records.f
    centre, scale = standardised(records.z)
    points = (records.z - centre) * scale
    processes = _processes(records, points, options)
    best = max(processes, key=lambda each: each.ln_likelihood + _ln_prior(*each.values))
    length, amplitude, _ = best.values
    weights = best.inverse @ error
    return Fit(
        centre=centre,
        scale=scale,
        points=points,
        inverse=best.inverse,
        weights=weights,
        f=records.f,
        mean_f=float(records.f.mean()),
        length=length * median_distance(points),
        amplitude=amplitude,
        options=options,
        shift=options.shift * float(weights.sum()),
        loss_before=_rms((error - error.mean()) * n / max(1, n - 1)),
        loss_after=_rms(weights / best.inverse.diagonal()),
    )


@torch.no_grad()
def likelihoods(
    model: nn.Module,
    rows: NDArray[np.floating[Any]],
    mask: NDArray[np.generic],
    ln_latency: NDArray[np.floating[Any]],
    options: CorrectionOptions,
) -> dict[tuple[float, float, float], float]:
    """(l, a, noise variance) of the grid -> ln of how likely the model's errors of a task are."""
    records = Corrector(model, options).summarised(rows, mask, ln_latency)
    records = records.limited(options.max_records)
    centre, scale = standardised(records.z)
    processes = _processes(records, (records.z - centre) * scale, options)
    return {each.values: each.ln_likelihood for each in processes}


@dataclass(frozen=True, slots=True)
class _Process:
    """A process of the grid.

    Attributes:
        values: l, a and the noise variance.
        ln_likelihood: of the errors of the records, without its constant.
        inverse: of their covariance [N, N].
    """

    values: tuple[float, float, float]
    ln_likelihood: float
    inverse: Tensor


def _processes(
    records: _Records, points: Tensor, options: CorrectionOptions
) -> Iterator[_Process]:
    """All processes of the grid, given records and their standardised summaries."""
    error, centred_f = records.y - records.f, records.f - records.f.mean()
    linear = options.shift + options.stretch * torch.outer(centred_f, centred_f)
    identity = torch.eye(len(error), dtype=torch.float64)
    unit = median_distance(points)
    for length in options.lengths:
        similarity = _matern(points, points, length * unit)
        for amplitude, noise in itertools.product(options.amplitudes, options.noises):
            covariance = linear + amplitude * similarity + noise * identity
            yield _Process((length, amplitude, noise), *_evidence(covariance, error))


def standardised(z: Tensor) -> tuple[Tensor, Tensor]:
    """Centre and scale [D] of the summaries of programs [B, D]."""
    deviation = z.std(dim=0, correction=0).clamp(min=_FLOOR)
    return z.mean(dim=0), 1.0 / (deviation * math.sqrt(z.shape[1]))


def _root(covariance: Tensor) -> Tensor:
    """A matrix whose product with its transpose is a covariance, but for a small noise."""
    noise = _JITTER * torch.eye(len(covariance), dtype=covariance.dtype)
    root: Tensor = torch.linalg.cholesky((covariance + covariance.T) / 2 + noise)
    return root


def _matern(a: Tensor, b: Tensor, length: float) -> Tensor:
    """Matern 3/2 similarities [A, B] of points [A, D] and [B, D]."""
    squares = a.square().sum(1)[:, None] + b.square().sum(1)[None, :] - 2.0 * a @ b.T
    r = torch.sqrt(3.0 * squares.clamp(min=1e-12)) / length
    return (1.0 + r) * torch.exp(-r)


def median_distance(points: Tensor) -> float:
    """Median distance between different points; 1 if there are none."""
    distances = torch.pdist(points)
    distances = distances[distances > 1e-6]
    return float(distances.median()) if len(distances) else 1.0


def _evidence(covariance: Tensor, error: Tensor) -> tuple[float, Tensor]:
    """Ln of the marginal likelihood, without its constant, and the inverse covariance."""
    root = torch.linalg.cholesky(covariance)
    inverse = torch.cholesky_inverse(root)
    return float(-0.5 * error @ inverse @ error - root.diagonal().log().sum()), inverse


def _ln_prior(*values: float) -> float:
    """Weak log-normal priors of length, amplitude and noise."""
    terms = zip(values, _PRIOR, strict=True)
    return sum(-0.5 * (math.log(value / mean) / width) ** 2 for value, (mean, width) in terms)


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
