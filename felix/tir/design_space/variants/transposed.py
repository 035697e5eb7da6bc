"""Transposed convolutions in a program, however they are written.

A program is recognised by its form: a sum of products, one factor of which is a tensor that is 0
unless an index ≡ b mod s, read at y + r or y - r with a constant, where y is an iterator of the
result and r one of the sum. A product with one of those zeros is taken to be 0, as it is unless
the other factor is infinite or no number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import sym, tirx
from tvm.ir.expr import TensorLoad

from felix.tir import grammar
from felix.tir.design_space.variants import nests
from felix.tir.design_space.variants.nests import REDUCE, SPATIAL, Axis, Expr, Nest


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Strided:
    """An axis of the spread tensor: read at y + sign·r + constant, 0 unless that ≡ residue mod s.

    Attributes:
        dimension: of the spread tensor.
        result: y, with its extent.
        tap: r, with its extent.
        phase: the variable p of the phases.
        constant: what is added, less `residue`.
        residue: in [0, stride).
    """

    dimension: int
    stride: int
    result: Axis
    tap: Axis
    phase: tirx.Var
    sign: int
    constant: int
    residue: int

    @property
    def steps(self) -> int:
        """Values of t."""
        return -(-self.result.extent // self.stride)

    @property
    def taps(self) -> int:
        """Values of m."""
        return -(-self.tap.extent // self.stride)

    def tap_of(self, phase: Expr, m: Expr) -> Expr:
        """r as a function of the phase and m: its residue is -sign·(p + constant)."""
        if self.sign < 0:
            return m * self.stride + tirx.floormod(phase + self.constant, self.stride)
        residue = tirx.floormod(phase + (self.constant - 1), self.stride)
        return m * self.stride + (self.stride - 1) - residue

    @property
    def first(self) -> int:
        """Cells that the first phase is moved by: the last one moves by this or one more."""
        return self._moved_by(0)

    @property
    def is_moved(self) -> bool:
        """Whether the phases read different cells."""
        return self._moved_by(self.stride - 1) != self.first

    def _moved_by(self, phase: int) -> int:
        return int((phase + self._rounding) // self.stride) - self._behind

    @property
    def _rounding(self) -> int:
        return self.constant + (self.stride - 1 if self.sign > 0 else 0)

    @property
    def _behind(self) -> int:
        return 0 if self.sign > 0 else self.taps - 1

    def cell_of(self, phase: Expr | None, moved: Expr) -> Expr:
        """The spread tensor's index, for `moved` = t + m, or t + (taps - 1 - m) for sign -1.

        Args:
            phase: None where the phases read the same cells.
        """
        shift: Expr = self.first
        if phase is not None:
            shift = tirx.floordiv(phase + self._rounding, self.stride) - self._behind
        return (moved + shift) * self.stride + self.residue

    def moved(self, t: Expr, m: Expr) -> Expr:
        """Where the phase's cells are read."""
        return t + m if self.sign > 0 else t + (self.taps - 1 - m)


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """A tensor that is `value` where all conditions hold, else 0."""

    axes: tuple[Axis, ...]
    conditions: tuple[Expr, ...]
    value: Expr


@dataclasses.dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution in a function: the nest that sums, and what it reads."""

    nest: Nest
    term: Expr
    load: TensorLoad
    spread: Spread
    strided: tuple[Strided, ...]
    producers: Mapping[Any, Nest]

    def of_dimension(self, dimension: int) -> Strided | None:
        """The strided axis of a dimension of the spread tensor."""
        return next((each for each in self.strided if each.dimension == dimension), None)

    def of_tap(self, variable: tirx.Var) -> Strided | None:
        """The strided axis whose taps the variable goes through."""
        return next((each for each in self.strided if each.tap.variable.same_as(variable)), None)

    def of_result(self, variable: tirx.Var) -> Strided | None:
        """The strided axis of a variable of the result."""
        return next((e for e in self.strided if e.result.variable.same_as(variable)), None)


def of_nest(nest: Nest, program: Sequence[Nest]) -> Transposed | None:
    """The nest as a transposed convolution; None if it is none."""
    term = nests.summed(nest)
    if term is None or any(nests.loads(i) for load in nests.loads(term) for i in load.indices):
        return None
    producers = nests.producers(program)
    for load in nests.loads(term):
        alone = sum(other.source.same_as(load.source) for other in nests.loads(term)) == 1
        if load.source not in producers or not alone or not _is_factor(term, load):
            continue
        spread = _spread(producers[load.source], producers)
        strided = tuple(_strided_axes(nest, load, spread))
        transposed = Transposed(nest, term, load, spread, strided, producers)
        if strided and _others_are_plain(transposed):
            return transposed
    return None


def _is_factor(term: Expr, load: TensorLoad) -> bool:
    """Whether the term is 0 where the load is."""
    if isinstance(term, tirx.Mul):
        return _is_factor(term.a, load) or _is_factor(term.b, load)
    if isinstance(term, tirx.Cast):
        return _is_factor(term.value, load)
    return bool(term.same_as(load))


def _spread(nest: Nest, producers: Mapping[Any, Nest]) -> Spread:
    """What the nest stores, with the guards and copies that it is made of in one."""
    conditions, value = nests.resolved(nest.block.body.value, producers)
    return Spread(tuple(nest.axes), tuple(conditions), value)


def _strided_axes(nest: Nest, load: TensorLoad, spread: Spread) -> Iterator[Strided]:
    """The dimensions of the spread tensor of which a modulus leaves most cells 0."""
    domains = {axis.variable: axis for axis in nest.axes}
    for dimension, index in enumerate(load.indices):
        period = _period(spread.axes[dimension].variable, spread.conditions)
        axes = [domains[v] for v in nests.variables(index) if v in domains]
        ordered = sorted(axes, key=lambda axis: axis.kind == REDUCE)
        if period is None or [axis.kind for axis in ordered] != [SPATIAL, REDUCE]:
            continue
        result, tap = ordered
        linear = _linear(index, [result.variable, tap.variable])
        if linear is None or linear[0] != 1 or linear[1] not in (1, -1):
            continue
        stride, residue = period
        phase = tirx.Var(f"p{dimension}", str(result.variable.ty.dtype))
        yield Strided(
            dimension, stride, result, tap, phase, linear[1], linear[2] - residue, residue
        )


def _period(variable: tirx.Var, conditions: Sequence[Expr]) -> tuple[int, int] | None:
    """(stride, residue) of a condition that the variable ≡ residue mod stride."""
    for condition in conditions:
        if not isinstance(condition, tirx.EQ) or not grammar.is_constant(condition.b, 0):
            continue
        remainder = condition.a
        if not isinstance(remainder, tirx.FloorMod) or not isinstance(remainder.b, tirx.IntImm):
            continue
        linear = _linear(remainder.a, [variable])
        if linear is not None and linear[0] == 1:
            stride = int(remainder.b)
            return stride, -linear[1] % stride
    return None


def _linear(expr: Expr, variables: Sequence[tirx.Var]) -> list[int] | None:
    """Integer coefficients of the variables, and the constant; None if it has another form."""
    coefficients = sym.detect_linear_equation(expr, list(variables))
    analyzer = sym.Analyzer()
    values = [analyzer.simplify(each) for each in coefficients]
    plain = values and all(isinstance(value, tirx.IntImm) for value in values)
    return [int(value) for value in values] if plain else None


def _others_are_plain(transposed: Transposed) -> bool:
    """Whether strided iterators are where they can be replaced.

    Those of the result index nothing but their own dimensions. Those of the sum index other
    tensors, too, alone in a dimension.
    """
    results = [each.result.variable for each in transposed.strided]
    taps = [each.tap.variable for each in transposed.strided]
    if len(set(results)) < len(results) or len(set(taps)) < len(taps):
        return False
    for load in nests.loads(transposed.term):
        for dimension, index in enumerate(load.indices):
            used = [v for v in nests.variables(index) if v in (*results, *taps)]
            is_element = load.same_as(transposed.load) and transposed.of_dimension(dimension)
            if used and not is_element and not (used[0] in taps and _linear(index, used[:1])):
                return False
    loaded = {
        v
        for load in nests.loads(transposed.term)
        for i in load.indices
        for v in nests.variables(i)
    }
    outside = set(nests.variables(transposed.term)) - loaded
    return outside.isdisjoint((*results, *taps))
