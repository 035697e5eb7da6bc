"""Small legal changes of decisions: mutation, neighbours.

All of them keep every tiling a perfect one within its domains and every choice within its
domain; other constraints are for the caller to check. A random generator is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from felix.space import coordinates, factorizations
from felix.space.variables import Variable


class Moves:
    """Moves within the decisions of one sketch."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.variables = tuple(variables)
        self.tilings = coordinates.tilings(variables)
        #: groups that move together: the parts of a tiling, or one choice
        self.groups = [*self.tilings, *([i] for i, v in enumerate(variables) if v.kind != "tile")]
        movable = [self._alternatives(g) > 1 for g in self.groups]
        self.movable = [g for g, can in zip(self.groups, movable, strict=True) if can]

    def _alternatives(self, group: list[int]) -> int:
        first = self.variables[group[0]]
        if first.kind != "tile" or first.extent is None:
            return len(first.domain)
        return factorizations.finder(self._domains(group), first.extent).total

    def _domains(self, group: list[int]) -> factorizations.Domains:
        return tuple(tuple(self.variables[i].domain) for i in group)

    def mutate(self, row: Sequence[int], rng: np.random.Generator) -> list[int]:
        """One or two groups changed a little: a prime moved, or another choice taken."""
        result = [int(v) for v in row]
        if not self.movable:
            return result
        for _ in range(1 + int(rng.random() < 0.3)):
            group = self.movable[int(rng.integers(len(self.movable)))]
            options = self._steps(result, group)
            if options:
                chosen = options[int(rng.integers(len(options)))]
                for position, value in zip(group, chosen, strict=True):
                    result[position] = int(value)
        return result

    def _steps(self, row: Sequence[int], group: list[int]) -> list[tuple[int, ...]]:
        if self.variables[group[0]].kind == "tile":
            return factorizations.neighbours([row[i] for i in group], self._domains(group))
        (position,) = group
        return [(v,) for v in self.variables[position].domain if v != row[position]]

    def around(self, row: Sequence[int]) -> list[tuple[int, ...]]:
        """All rows one small change away."""
        rows = []
        start = [int(v) for v in row]
        for group in self.movable:
            for chosen in self._steps(start, group):
                moved = start.copy()
                for position, value in zip(group, chosen, strict=True):
                    moved[position] = value
                rows.append(tuple(moved))
        return rows

    def neighbours(
        self, row: Sequence[int], n: int, rng: np.random.Generator
    ) -> list[tuple[int, ...]]:
        """Up to n distinct rows one or two small changes away."""
        neighbours: dict[tuple[int, ...], None] = {}
        start = tuple(int(v) for v in row)
        for _ in range(3 * n):
            mutated = tuple(self.mutate(row, rng))
            if mutated != start:
                neighbours[mutated] = None
            if len(neighbours) == n:
                break
        return list(neighbours)
