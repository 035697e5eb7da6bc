"""Formulas and sketches that look like real ones, without TVM: for programs and the search.

`formulas` builds rows of features over tile variables (products, ceiling divisions, soft "first
non-trivial loop" scans, clipped strides). `FakeSketch` adds what the search reads of a sketch,
and a known cost, so that a search can be judged by the optimum it finds.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import sympy
import torch

from felix.autodiff import program as autodiff_program
from felix.features.kind import FeatureKind
from felix.search import descent, gradient
from felix.space import factorizations
from felix.space.variables import Variable
from felix.symbolic import expr


def divisors(extent: int, limit: int | None = None) -> tuple[int, ...]:
    return tuple(d for d in factorizations.divisors(extent) if limit is None or d <= limit)


def tiles(name: str, group: int, extent: int, parts: int, limit: int = 64) -> list[Variable]:
    """The factors of one perfect tiling, the last one bounded."""
    return [
        Variable(
            f"{name}_{i}",
            "tile",
            divisors(extent, limit if i == parts - 1 else None),
            group,
            extent,
            i,
            structural=False,
            log_scale=True,
        )
        for i in range(parts)
    ]


def choice(
    name: str,
    group: int,
    domain: tuple[int, ...],
    structural: bool = False,
    log_scale: bool = True,
) -> Variable:
    return Variable(name, "choice", domain, group, None, 0, structural, log_scale)


def formulas(
    variables: list[sympy.Symbol], rows: int = 6, features: int = 150, seed: int = 0
) -> list[sympy.Expr]:
    """rows x features expressions with the operators and the sharing of real ones."""
    rng = random.Random(seed)
    one, zero = sympy.Integer(1), sympy.Integer(0)
    threads = sympy.Mul(*variables[:3])
    result: list[sympy.Expr] = []
    for _ in range(rows):
        loops = rng.sample(variables, min(len(variables), 9))
        trip = sympy.Mul(*loops)
        row = [trip, threads, expr.CeilDiv(threads, 32) * 32, expr.CeilDiv(trip, 132) / trip]
        for _ in range(4):
            extents = [
                sympy.Mul(*rng.sample(variables, rng.randint(1, 3))) + rng.choice([0, 2])
                for _ in range(2)
            ]
            total = 4 * extents[0] * extents[1]
            lines = expr.CeilDiv(4 * extents[1], 64) * extents[0]
            distance, is_reused, walked = zero, zero, one
            for loop in loops:
                nontrivial = expr.Less(one, loop)
                walked = walked * loop
                first = expr.And(nontrivial, expr.Not(is_reused))
                distance = distance + expr.Select(first, walked * total, zero)
                is_reused = expr.Or(is_reused, nontrivial)
                row.append(expr.Select(nontrivial, total * loop, lines))
            row += [
                total,
                lines,
                distance,
                is_reused,
                total * trip,
                total / (1 + distance),
                expr.Minimum(total * loops[0], 4 * trip),
                expr.FloorMod(extents[0], 4),
                expr.Maximum(total - 49152, zero),
                expr.FloorDiv(total, 3 * loops[1]),
                sympy.log(1 + total),
                expr.Absolute(total - lines * 64),
                expr.Floor(total / (7 * loops[2])),
                expr.Ceiling(lines / 5),
                expr.Select(expr.Equal(extents[1], one), zero, extents[1]),
                expr.LessEqual(total, 32768) * total,
            ]
        while len(row) < features:
            row.append(expr.Minimum(rng.choice(row), rng.choice(row)) + rng.choice(variables))
        result += row[:features]
    return result


@dataclass(frozen=True)
class StructureFormulas:
    """What `Formulas.of_structure` returns."""

    program: autodiff_program.FormulaProgram
    constraint_program: autodiff_program.FormulaProgram
    n_rows: int


@dataclass
class FakeSketch:
    """A tiled loop nest with a cost that has its optimum at given factors.

    Feature 0 of row 0 is the logarithmic distance from the optimum, squared; features 1.. are
    the loop extents. Constraint: the product of the last two parts is at most `capacity`.
    """

    extents: tuple[int, ...] = (512, 512)
    parts: int = 4
    limit: int = 64
    index: int = 0
    capacity: int = 1024
    with_choices: bool = True
    structural: tuple[int, ...] = ()
    #: compute locations that are modelled but that TVM does not have
    refused: tuple[int, ...] = ()
    n_rows: int = 2
    calls: list[str] = field(default_factory=list)

    is_gpu = False
    kind = FeatureKind.TRACE
    variant = "stock"
    instructions = ()
    n_features = 12
    names = tuple(f"feature{i}" for i in range(12))

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        variables: list[Variable] = []
        for axis, extent in enumerate(self.extents):
            variables += tiles(f"t{axis}", axis, extent, self.parts, self.limit)
        group = len(self.extents)
        if self.with_choices:
            variables.append(choice("unroll", group, (0, 16, 64, 512)))
            variables.append(choice("vector", group + 1, (1, 2, 3, 4)))
        if self.structural:
            variables.append(choice("location", group + 2, self.structural, structural=True))
        return tuple(variables)

    @property
    def key(self) -> str:
        return f"fake-{self.index}-{self.extents}-{self.structural}"

    @property
    def formulas(self) -> FakeSketch:
        return self

    @cached_property
    def symbols(self) -> list[sympy.Symbol]:
        return [expr.variable(v.name) for v in self.variables]

    def of_structure(self, structural_values: tuple[int, ...]) -> StructureFormulas:
        self.calls.append(f"structure{structural_values}")
        tile = [s for s, v in zip(self.symbols, self.variables, strict=True) if v.kind == "tile"]
        penalty = sympy.Integer(0)
        for symbol, best in zip(tile, itertools.cycle((8, 2, 16, 4)), strict=False):
            penalty = penalty + (sympy.log(symbol) - math.log(best)) ** 2
        for value in structural_values:
            penalty = penalty + value
        if self.with_choices:
            unroll, vector = self.symbols[len(tile)], self.symbols[len(tile) + 1]
            penalty = penalty + (sympy.log(1 + unroll) - math.log(65)) ** 2 / 4
            penalty = penalty + expr.Select(expr.Less(vector, 3), 1, 0)
        rows: list[sympy.Expr] = []
        for row in range(self.n_rows):
            extents = (tile * self.n_features)[: self.n_features - 1]
            rows += [penalty if row == 0 else sympy.Integer(0), *extents]
        flags = ([False] + [True] * (self.n_features - 1)) * self.n_rows
        inner = sympy.Mul(*tile[self.parts - 2 : self.parts])
        constraint = autodiff_program.relative_constraint(inner * 4 - 4 * self.capacity)
        return StructureFormulas(
            autodiff_program.FormulaProgram.compile(rows, self.symbols, flags),
            autodiff_program.FormulaProgram.compile([constraint], self.symbols),
            self.n_rows,
        )

    def is_applicable(self, decisions: Sequence[int]) -> bool:
        self.calls.append("is_applicable")
        return decisions[-1] not in self.refused

    def sample(self, n: int, seed: int, max_structures: int = 6) -> np.ndarray:
        rng = np.random.default_rng(seed)
        rows: list[list[int]] = []
        for _ in range(100 * n):
            if len(rows) == n:
                break
            row: list[int] = []
            for extent in self.extents:
                row += random_factors(rng, extent, self.parts, self.limit)
            row += [int(rng.choice(v.domain)) for v in self.variables if v.kind == "choice"]
            inner = row[self.parts - 2] * row[self.parts - 1]
            if inner <= self.capacity:
                rows.append(row)
        return np.asarray(rows, np.int64).reshape(-1, len(self.variables))


def random_factors(rng: np.random.Generator, extent: int, parts: int, limit: int) -> list[int]:
    while True:
        rest, factors = extent, []
        for part in range(parts - 1):
            picked = int(rng.choice(divisors(rest, limit if part == 0 else None)))
            factors.append(picked)
            rest //= picked
        return [rest, *factors[::-1]]


class CostModel(torch.nn.Module):
    """ln(latency_us) of fake sketches: the distance from the optimum, summed over rows."""

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (rows[..., 0] * mask).sum(dim=1)


def two_sketches() -> list[FakeSketch]:
    return [FakeSketch(structural=(-1, 0, 2)), FakeSketch(extents=(512, 197, 64))]


def programs_of_a_task() -> list[FakeSketch]:
    """Two sketches of one program and one of a variant, in that order."""
    sketches = [FakeSketch(extents=extents) for extents in ((64, 64), (32,), (16, 8))]
    sketches[2].variant = "split"
    return sketches


def gradient_search(sketches: list[FakeSketch], **sizes: Any) -> gradient.GradientSearch:
    """A search with short descents."""
    steps = descent.DescentOptions(steps=5, hot=0.5, learning_rate=0.2)
    options = gradient.GradientOptions(**{"n_before": 0, "descent": steps} | sizes)
    return gradient.GradientSearch(sketches, CostModel(), options, 1)
