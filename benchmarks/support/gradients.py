"""Other uses of gradients than the product's, for `search_ablation` and `search_efficiency`."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from felix.autodiff import torch_function
from felix.search import descent, interface, scoring, selection
from felix.search.strategies import gradient, local
from felix.sketch import coordinates

#: Of the smooth formulas at a point that is polished: that of the end of a descent.
TEMPERATURE = 0.05
#: Neighbours of a polished point that are scored exactly.
N_NEAR = 8
#: A long descent from samples, then polishing.
DESCENT = gradient.GradientOptions(n_before=0, n_polish=16, descent=descent.DescentOptions())
#: Of which `SteepestDescent` takes its first temperature.
FIRST_TEMPERATURES = (0.05, 0.15, 0.5, 1.5)
#: Draws around each seed of `LangevinDescent`; variance of a step in logarithms of tile sizes;
#: nats of ln(latency) that count as one of its potential.
N_DRAWS, STEP, HEAT = 16, 0.25, 0.1


class _SlopedDescent(descent.Descent):
    """A descent that asks for slopes beside its steps."""

    def _slopes(
        self,
        merged: descent.MergedProgram,
        starts: interface.Decisions,
        masks: Sequence[torch.Tensor],
        temperature: float,
        penalty: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Coordinates of starts, their predicted ln(latency), slopes of that and the penalty.

        A slope that is not finite, or of what does not move, counts as 0.
        """
        where = merged.space
        x = where.project(where.encode(starts)).requires_grad_(True)
        outputs = torch_function.smooth(
            merged.program, where.decode(x), temperature, kernel=self.options.kernel
        )
        cost, excess = self._terms(merged, outputs, masks)
        (slope,) = torch.autograd.grad((cost + penalty * excess).sum(), x)
        return x, cost, torch.nan_to_num(slope, nan=0.0, posinf=0.0, neginf=0.0) * where.trainable


class LangevinDescent(_SlopedDescent):
    """Random proposals by gradient: x - STEP/2 * grad(cost / HEAT) + sqrt(STEP) * noise, rounded.

    Zhang, Liu, Liu, "A Langevin-like sampler for discrete distributions" (2022), draw each
    coordinate among its values by such a proposal; here the drawn point is rounded.
    """

    def __init__(self, scorer: scoring.Scorer, options: descent.DescentOptions) -> None:
        super().__init__(scorer, options)
        self._noise = torch.Generator().manual_seed(0)

    def _descend(
        self,
        merged: descent.MergedProgram,
        starts: interface.Decisions,
        masks: Sequence[torch.Tensor],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        where = merged.space
        x, cost, slope = self._slopes(merged, starts, masks, TEMPERATURE, self.options.penalty)
        with torch.no_grad():
            drifted = x - STEP / 2 * slope / HEAT
            points = [
                where.decode(where.project(drifted + STEP**0.5 * self._drawn(x) * where.trainable))
                for _ in range(N_DRAWS)
            ]
        return torch.stack(points).numpy(), cost.detach().repeat(N_DRAWS, 1, 1).numpy()

    def _drawn(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=self._noise, dtype=like.dtype)


class LangevinSearch(gradient.GradientSearch):
    """The gradient search with `LangevinDescent` in place of its descent."""

    descent_kind = LangevinDescent


class FullMatrixAdam(descent.Adam):
    """Adam whose second moments are a matrix a seed, not a diagonal: m (E[g g'])^(-1/2)."""

    def __init__(self, x: torch.Tensor, trainable: torch.Tensor) -> None:
        super().__init__(x, trainable)
        self.second = torch.zeros(*x.shape, x.shape[-1], dtype=x.dtype)

    def scaled(self, mean: torch.Tensor, gradient: torch.Tensor, beta2: float) -> torch.Tensor:
        """See `descent.Adam.scaled`."""
        outer = gradient.unsqueeze(-1) * gradient.unsqueeze(-2)
        self.second.mul_(beta2).add_(outer, alpha=1 - beta2)
        values, vectors = torch.linalg.eigh(self.second / (1 - beta2**self.steps))
        sizes = torch.sqrt(values.clamp(min=0.0)) + 1e-3
        turned = (vectors.transpose(-1, -2) @ mean.unsqueeze(-1)).squeeze(-1) / sizes
        return (vectors @ turned.unsqueeze(-1)).squeeze(-1).clamp(-1.0, 1.0)


class PreconditionedDescent(descent.Descent):
    """The descent with `FullMatrixAdam`."""

    optimizer = FullMatrixAdam


class PreconditionedSearch(gradient.GradientSearch):
    """The gradient search with `PreconditionedDescent` in place of its descent."""

    descent_kind = PreconditionedDescent


class SteepestDescent(_SlopedDescent):
    """The descent from the temperature of `FIRST_TEMPERATURES` at which the predicted ln(latency)
    of the first starts of each program is steepest: the root of the mean square of its slopes,
    without those of penalties."""

    def __init__(self, scorer: scoring.Scorer, options: descent.DescentOptions) -> None:
        super().__init__(scorer, options)
        self._hot = weakref.WeakKeyDictionary[descent.MergedProgram, float]()

    def _descend(
        self,
        merged: descent.MergedProgram,
        starts: interface.Decisions,
        masks: Sequence[torch.Tensor],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if merged not in self._hot:
            slopes = {
                each: self._slope(merged, starts, masks, each) for each in FIRST_TEMPERATURES
            }
            self._hot[merged] = max(slopes, key=slopes.__getitem__)
        self.options = dataclasses.replace(self.options, hot=self._hot[merged])
        return super()._descend(merged, starts, masks)

    def _slope(
        self,
        merged: descent.MergedProgram,
        starts: interface.Decisions,
        masks: Sequence[torch.Tensor],
        temperature: float,
    ) -> float:
        slope = self._slopes(merged, starts, masks, temperature, penalty=0.0)[2]
        return float(slope.square().mean().sqrt())


class SteepestSearch(gradient.GradientSearch):
    """The gradient search with `SteepestDescent` in place of its descent."""

    descent_kind = SteepestDescent


class FirstOrderSearch(local.LocalSearch):
    """Polishing that scores only the neighbours which one gradient at a point ranks first.

    A neighbour's change is predicted to first order, gradient times step, for all of a point's
    neighbours by one reverse pass; the first `N_NEAR` of each point are scored exactly, and those
    of another structure, which have no gradient.
    """

    def __init__(self, sketches: Sequence[Any], *args: Any) -> None:
        super().__init__(sketches, *args)
        self._spaces = [coordinates.Space.of(sketch.variables) for sketch in sketches]
        self._masks: dict[tuple[int, coordinates.Structure], torch.Tensor] = {}

    def _polish(self, pool: selection.Pool, generations: int) -> None:
        for _ in range(generations):
            parents = pool.best(self.options.n_polished, pool.surrounded)
            pool.surrounded.update(c.key for c in parents)
            groups: dict[tuple[int, coordinates.Structure], list[tuple[int, ...]]]
            groups = collections.defaultdict(list)
            for parent in parents:
                groups[parent.sketch_index, parent.structure].append(parent.decisions)
            for (index, structure), points in sorted(groups.items()):
                pool.add(
                    index, self._promised(index, structure, points, pool), selection.Source.POLISH
                )

    def _promised(
        self,
        index: int,
        structure: coordinates.Structure,
        points: Sequence[tuple[int, ...]],
        pool: selection.Pool,
    ) -> list[tuple[int, ...]]:
        """Neighbours of points that are to be scored."""
        slopes = self._slopes(index, structure, np.asarray(points, np.int64))
        columns = coordinates.structural(self.sketches[index].variables)
        space, rows = self._spaces[index], []
        for point, slope in zip(points, slopes, strict=True):
            near = [
                row for row in self._moves[index].around(point) if not _is_known(index, row, pool)
            ]
            alike = [r for r in near if tuple(r[column] for column in columns) == structure]
            if alike:
                start = space.encode(np.asarray([point], np.int64)).numpy()
                steps = space.encode(np.asarray(alike, np.int64)).numpy() - start
                order = np.argsort(steps @ slope, kind="stable")[:N_NEAR]
                rows += [alike[number] for number in order.tolist()]
            rows += [r for r in near if tuple(r[column] for column in columns) != structure]
        return rows

    def _slopes(
        self, index: int, structure: coordinates.Structure, points: interface.Decisions
    ) -> NDArray[np.float64]:
        """Gradients [n, n_free] of predicted ln(latency) at decisions [n, n_variables]."""
        compiled = self.scorer.of_structure(index, structure)
        key = (index, structure)
        if key not in self._masks:
            exact = self.scorer.features(index, structure, points.astype(np.float64))
            self._masks[key] = torch.from_numpy((exact != 0).any(axis=(0, 2)).astype(np.float64))
        x = self._spaces[index].encode(points).requires_grad_(True)
        values = self._spaces[index].decode(x)
        outputs = torch_function.smooth(compiled.program, values, TEMPERATURE)
        model = self.scorer.model_of(self.scorer.kind_of(index))
        rows = outputs.reshape(len(points), compiled.n_rows, -1).to(scoring.dtype_of(model))
        mask = self._masks[key].to(rows.dtype).repeat(len(points), 1)
        (slopes,) = torch.autograd.grad(model(rows, mask).double().sum(), x)
        return torch.nan_to_num(slopes, nan=0.0, posinf=0.0, neginf=0.0).numpy()


def _is_known(index: int, row: tuple[int, ...], pool: selection.Pool) -> bool:
    """Whether a row is a candidate, or was proposed."""
    key = (index, row)
    return key in pool.candidates or key in pool.fallback or key in pool.past
