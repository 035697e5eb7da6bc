"""Other uses of gradients than the product's, for `search_ablation` and `search_efficiency`."""

from __future__ import annotations

import collections
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
DESCENT = gradient.GradientOptions(n_before=0, n_polish=8, descent=descent.DescentOptions())


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
        done: set[interface.Key] = set()
        for _ in range(generations):
            parents = pool.best(self.options.n_polished, done)
            done.update(c.key for c in parents)
            groups: dict[tuple[int, coordinates.Structure], list[tuple[int, ...]]]
            groups = collections.defaultdict(list)
            for parent in parents:
                groups[parent.sketch_index, parent.structure].append(parent.decisions)
            for (index, structure), points in sorted(groups.items()):
                pool.add(index, self._promised(index, structure, points, pool),
                         selection.Source.POLISH)  # fmt: skip

    def _promised(
        self, index: int, structure: coordinates.Structure, points: Sequence[tuple[int, ...]],
        pool: selection.Pool,
    ) -> list[tuple[int, ...]]:  # fmt: skip
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
