"""From relaxed points to legal decisions, several a point, nearest first: `Rounder`.

Each perfect tiling and each choice is a *group* whose alternatives are ranked by distance from
the point (squared, in the scale of `coordinates.Space`). The distance of a combination is the sum
over groups, so the k nearest combinations come from folding groups one at a time and keeping
the k best sums: exact, without enumerating the product.

Every result is a legal perfect tiling with choices from their domains; other constraints
(threads, memory) are for the caller to check exactly. Structural values stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from felix.search import interface
from felix.space import coordinates, factorizations
from felix.space.variables import Variable

Array = NDArray[np.float64]


class Rounder:
    """Rounds the points of one sketch."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.variables = tuple(variables)
        self.space = coordinates.Space.of(variables)
        self._tilings = coordinates.tilings(variables)
        self._finders: list[factorizations.Nearest] = []
        for group in self._tilings:
            extent = self.variables[group[0]].extent
            assert extent is not None  # checked by Space.of
            domains = tuple(tuple(self.variables[i].domain) for i in group)
            self._finders.append(factorizations.finder(domains, extent))
        self._choices = [i for i, v in enumerate(variables) if v.kind != "tile"]

    def round(self, values: Array, k: int) -> tuple[interface.Decisions, Array]:
        """The k nearest legal decisions of each point.

        Args:
            values: [n, n_variables] relaxed values.
            k: results a point.

        Returns:
            Decisions [n, m, n_variables] and squared distances [n, m], nearest first; m is k, or
            the number of combinations if that is smaller.
        """
        scaled = self.space.scale(np.asarray(values, np.float64))
        n = len(scaled)
        result = np.zeros((n, 1, len(self.variables)), np.int64)
        total = np.zeros((n, 1))
        for group, finder in zip(self._tilings, self._finders, strict=True):
            options, distance = finder.nearest(scaled[:, group], k)
            result, total = _fold(result, total, group, options, distance, k)
        for position in self._choices:
            options, distance = self._alternatives(scaled, position, k)
            result, total = _fold(result, total, [position], options, distance, k)
        return result, total

    def _alternatives(
        self, scaled: Array, position: int, k: int
    ) -> tuple[NDArray[np.int64], Array]:
        """Values of a choice by distance: [n, m, 1] and [n, m]; a structural one only the nearest.

        A choice that is not on a log scale is measured in shares of its range.
        """
        variable = self.variables[position]
        domain = np.asarray(variable.domain, np.int64)
        c = self.space.coordinates
        levels = np.log(domain + c.shift[position]) if c.is_log[position] else domain.astype(float)
        unit = 1.0 if c.is_log[position] else max(1.0, float(np.ptp(levels)))
        distance = np.square((scaled[:, position, None] - levels) / unit)
        n_nearest = 1 if variable.structural else min(k, len(domain))
        order = np.argsort(distance, axis=1, kind="stable")[:, :n_nearest]
        return domain[order][:, :, None], np.take_along_axis(distance, order, axis=1)


def _fold(
    result: NDArray[np.int64],
    total: Array,
    positions: Sequence[int],
    options: NDArray[np.int64],
    distance: Array,
    k: int,
) -> tuple[NDArray[np.int64], Array]:
    """Combine the best so far with a group's options; keep the k smallest sums of each point."""
    n, m = distance.shape
    sums = (total[:, :, None] + distance[:, None, :]).reshape(n, -1)
    order = np.argsort(sums, axis=1, kind="stable")[:, :k]
    rows = np.arange(n)[:, None]
    combined = result[rows, order // m]
    combined[:, :, list(positions)] = options[rows, order % m]
    return combined, np.take_along_axis(sums, order, axis=1)
