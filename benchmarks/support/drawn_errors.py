"""Latencies that a cost model is wrong about as it is about workloads that it never saw.

The errors of a task are a draw of the process of its correction (`costmodel.online`): a smooth
function of the summaries of the features, and noise that is the same for the same features. The
function is a sum of cosines of random frequencies (Rahimi and Recht, "Random features for
large-scale kernel machines", 2007); those of a Matern 3/2 kernel have Student's t distribution of
three degrees of freedom.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from costmodel.online import gaussian_process
from felix.search import scoring

N_COSINES = 2000
#: Samples of each sketch that say how far schedules are apart.
N_SAMPLES = 64


class DrawnErrors:
    """ln(latency_us) of schedules of a task: what the model predicts, plus its error.

    Args:
        sketches: of the task; random schedules of them say what is near.
        model: predicts ln(latency_us).
        length, amplitude, noise: of the process, as `costmodel evaluate --measured` prints them.
        seed: of the errors.
    """

    def __init__(
        self,
        sketches: Sequence[Any],
        model: Any,
        length: float,
        amplitude: float,
        noise: float,
        seed: int,
    ) -> None:
        self.model, self.seed, self.noise = model, seed, noise
        rows = torch.from_numpy(_sampled(scoring.Scorer(sketches, model)))
        z = gaussian_process.summary(rows, scoring.row_mask(rows))
        self.centre, self.scale = gaussian_process.standardised(z)
        unit = gaussian_process.median_distance((z - self.centre) * self.scale)
        generator = torch.Generator().manual_seed(seed)

        def normals(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        spread = normals(N_COSINES, 3).square().mean(dim=1).sqrt()
        self.frequencies = normals(N_COSINES, z.shape[1]) / spread[:, None] / (length * unit)
        self.phases = 2 * math.pi * torch.rand(N_COSINES, generator=generator, dtype=torch.float64)
        self.weights = normals(N_COSINES) * math.sqrt(2 * amplitude / N_COSINES)

    @torch.no_grad()
    def ln_latency(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """ln(latency_us) of schedules with these features [n, R, F]."""
        rows = torch.from_numpy(features)
        mask = scoring.row_mask(rows)
        predicted = self.model(rows.to(scoring.dtype_of(self.model)), mask).double()
        points = (gaussian_process.summary(rows, mask) - self.centre) * self.scale
        errors = torch.cos(points @ self.frequencies.T + self.phases) @ self.weights
        noise = [
            self._normal(own[real]) for own, real in zip(features, mask.numpy() > 0, strict=True)
        ]
        return np.asarray(predicted + errors) + math.sqrt(self.noise) * np.array(noise)

    def _normal(self, rows: NDArray[np.float32]) -> float:
        """A normal number that belongs to these features."""
        digest = hashlib.sha256(np.ascontiguousarray(rows).tobytes()).digest()
        return float(np.random.default_rng([self.seed, *digest]).standard_normal())


def _sampled(scorer: scoring.Scorer) -> NDArray[np.float32]:
    """Features [n, R, F] of random schedules of all sketches."""
    keys = [
        (index, tuple(row))
        for index, sketch in enumerate(scorer.sketches)
        for row in scoring.legal_samples(sketch, N_SAMPLES, np.random.default_rng(0), 3).tolist()
    ]
    return scorer.padded_features(keys)
