"""Transposed convolutions by phases: no zero between the cells of the input is multiplied.

A transposed convolution of stride s spreads its input, s - 1 zeros between two cells, and
convolves that with stride 1. An output cell s·t + p meets cells of the input only at the kernel's
taps r ≡ q(p) mod s, so that each *phase* p in [0, s) is a dense convolution of the input with each
s-th tap. The variant is one convolution with an axis of phases for each strided axis,

    result[p, ..., t] = sum over m of  cells[p, ..., t + m] · taps[p, m, ...],

of which `cells` are the input moved for the phase, `taps` the kernel's taps s·m + q(p), and a copy
that joins the phases follows. All three are inlined like any elementwise program. The taps of a
kernel whose extent is no multiple of s are filled up with zeros.

A program is recognised by its form: a sum of products, one factor of which is a tensor that is 0
unless an index ≡ b mod s, read at y + r or y - r with a constant, where y is an iterator of the
result and r one of the sum. A product with one of those zeros is taken to be 0, as it is unless
the other factor is infinite or no number.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.ir.expr import TensorLoad

from felix import errors
from felix.tir import validate
from felix.tir.design_space.variants import nests
from felix.tir.design_space.variants.nests import REDUCE, SPATIAL, Axis, Expr, Nest
from felix.tir.design_space.variants.variant import Prefix, Variant

_LOGGER = logging.getLogger(__name__)
_IF = "prim.if_then_else"


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

    @property
    def overhangs(self) -> bool:
        """Whether some phase has fewer taps."""
        return self.taps * self.stride != self.tap.extent

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


def prefixes(mod: tvm.IRModule) -> Sequence[Prefix]:
    """The program by phases, where it is a transposed convolution; not if it is not proved.

    TVM cannot compute a second reduction where the phases are joined of results whose extent is
    no multiple of the stride.
    """
    made = rewritten(mod["main"])
    if made is None:
        return []
    func, strided = made
    try:
        checked = validate.normalise(func)
    except errors.WorkloadError as error:
        _LOGGER.debug("phases are refused: %s", error)
        return []
    strides = tuple((f"stride{i}", each.stride) for i, each in enumerate(strided))
    divides = all(each.result.extent % each.stride == 0 for each in strided)
    return [
        Prefix(
            Variant("phases", strides),
            _nothing,
            mod=tvm.IRModule({"main": checked}),
            can_split=divides,
        )
    ]


def _nothing(schedule: tvm.s_tir.Schedule) -> None:
    """What is left to primitives of a program that was made anew."""


def rewritten(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, tuple[Strided, ...]] | None:
    """The function with a transposed convolution by phases, and its axes; None without one."""
    program = nests.of_function(func)
    if program is None:
        return None
    for position, nest in enumerate(program):
        transposed = _transposed(nest, program)
        if transposed is not None:
            made = [*program[:position], *_phased(transposed), *program[position + 1 :]]
            return nests.function(func, made), transposed.strided
    return None


# ---------------------------------------------------------------- recognising


def _transposed(nest: Nest, program: Sequence[Nest]) -> Transposed | None:
    """The nest as a transposed convolution; None if it is none."""
    term = _summed(nest)
    if term is None:
        return None
    producers = {each.buffer: each for each in program if each.is_plain}
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


def _summed(nest: Nest) -> Expr | None:
    """What a nest sums into each element of its result; None if it does not."""
    store, init = nest.block.body, nest.block.init
    kinds = [axis.kind for axis in nest.axes]
    if init is None or kinds != sorted(kinds, key=[SPATIAL, REDUCE].index):
        return None
    spatial = [axis.variable for axis in nest.axes if axis.kind == SPATIAL]
    plain = len(spatial) == len(store.indices) and all(
        a.same_as(b) for a, b in zip(store.indices, spatial, strict=True)
    )
    if not plain or not isinstance(store.value, tirx.Add):
        return None
    left = store.value.a
    accumulates = isinstance(left, TensorLoad) and left.source.same_as(store.buffer)
    return store.value.b if accumulates else None


def _is_factor(term: Expr, load: TensorLoad) -> bool:
    """Whether the term is 0 where the load is."""
    if isinstance(term, tirx.Mul):
        return _is_factor(term.a, load) or _is_factor(term.b, load)
    if isinstance(term, tirx.Cast):
        return _is_factor(term.value, load)
    return bool(term.same_as(load))


def _spread(nest: Nest, producers: Mapping[Any, Nest]) -> Spread:
    """What the nest stores, with the guards and copies that it is made of in one."""
    conditions, value = _resolved(nest.block.body.value, producers)
    return Spread(tuple(nest.axes), tuple(conditions), value)


def _resolved(value: Expr, producers: Mapping[Any, Nest]) -> tuple[list[Expr], Expr]:
    """(conditions, value): `value` where all conditions hold, else 0."""
    guarded = _guarded(value)
    if guarded is not None:
        conditions, inner = _resolved(guarded[1], producers)
        return [*_conjuncts(guarded[0]), *conditions], inner
    if isinstance(value, TensorLoad) and value.source in producers:
        nest = producers[value.source]
        stored = nest.block.body.value
        if _guarded(stored) is not None or isinstance(stored, TensorLoad):
            at = {a.variable: i for a, i in zip(nest.axes, value.indices, strict=True)}
            return _resolved(nests.substituted(stored, at), producers)
    return [], value


def _guarded(value: Expr) -> tuple[Expr, Expr] | None:
    """(condition, value) of an expression that is 0 where the condition does not hold."""
    if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == _IF:
        condition, inner, other = value.args
        if isinstance(other, tirx.IntImm | tirx.FloatImm) and float(other.value) == 0:
            return condition, inner
    return None


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, tirx.And):
        yield from _conjuncts(condition.a)
        yield from _conjuncts(condition.b)
    else:
        yield condition


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
        yield Strided(dimension, stride, result, tap, phase, linear[1], linear[2] - residue,
                      residue)  # fmt: skip


def _period(variable: tirx.Var, conditions: Sequence[Expr]) -> tuple[int, int] | None:
    """(stride, residue) of a condition that the variable ≡ residue mod stride."""
    for condition in conditions:
        if not isinstance(condition, tirx.EQ) or not _is_zero(condition.b):
            continue
        remainder = condition.a
        if not isinstance(remainder, tirx.FloorMod) or not isinstance(remainder.b, tirx.IntImm):
            continue
        linear = _linear(remainder.a, [variable])
        if linear is not None and linear[0] == 1:
            stride = int(remainder.b)
            return stride, -linear[1] % stride
    return None


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


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
            own = load.same_as(transposed.load) and transposed.of_dimension(dimension)
            if used and not own and not (used[0] in taps and _linear(index, used[:1])):
                return False
    loaded = {v for load in nests.loads(transposed.term) for i in load.indices
              for v in nests.variables(i)}  # fmt: skip
    outside = set(nests.variables(transposed.term)) - loaded
    return outside.isdisjoint((*results, *taps))


# ---------------------------------------------------------------- rewriting


def _phased(transposed: Transposed) -> list[Nest]:
    """Cells, taps, the convolution of all phases, and its result in the task's order."""
    cells = _cells(transposed)
    taps = [
        (load, _taps(transposed, load))
        for load in nests.loads(transposed.term)
        if any(_tap_axes(transposed, load))
    ]
    result = _convolution(transposed, cells, taps)
    return [cells, *(nest for _, nest in taps), result, _joined(transposed, result)]


def _cells(transposed: Transposed) -> Nest:
    """The input's cells of each phase, where its convolution reads them."""
    strided, spread = transposed.strided, transposed.spread
    moved_axes = [each for each in strided if each.is_moved]
    shape = [axis.extent for axis in spread.axes]
    for each in strided:
        shape[each.dimension] = each.steps + each.taps - 1
    sizes = [*(each.stride for each in moved_axes), *shape]

    def value(at: Sequence[Expr]) -> Expr:
        phases = dict(zip(moved_axes, at[: len(moved_axes)], strict=True))
        moved = at[len(moved_axes) :]
        analyzer = _analyzer(at, sizes)
        cell = {axis.variable: index for axis, index in zip(spread.axes, moved, strict=True)}
        inside = []
        for each in strided:
            axis = spread.axes[each.dimension]
            index = each.cell_of(phases.get(each), moved[each.dimension])
            cell[axis.variable] = analyzer.simplify(index)
            inside += [index >= 0, index < axis.extent]
        conditions = [nests.substituted(c, cell) for c in spread.conditions]
        return nests.zero_unless(
            _needed(conditions, inside, analyzer),
            _simplified(nests.substituted(spread.value, cell), analyzer),
        )

    source = transposed.load.source
    return nests.computed(f"{source.name}_phases", source, sizes, value)


def _analyzer(variables: Sequence[tirx.Var], extents: Sequence[int]) -> sym.Analyzer:
    analyzer = sym.Analyzer()
    for variable, extent in zip(variables, extents, strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, extent))
    return analyzer


def _needed(
    conditions: Sequence[Expr], inside: Sequence[Expr], analyzer: sym.Analyzer
) -> list[Expr]:
    """The conditions that are not always true, and of `inside` those that they do not imply."""
    simple = [analyzer.simplify(condition) for condition in conditions]
    needed = [condition for condition in simple if not _is_true(condition)]
    for condition in inside:
        holds = analyzer.can_prove(condition)
        if not holds and needed:
            with analyzer.constraint_scope(tirx.all(*needed)):
                holds = analyzer.can_prove(condition)
        if not holds:
            needed.append(analyzer.simplify(condition))
    return needed


def _is_true(condition: Expr) -> bool:
    return isinstance(condition, tirx.IntImm) and int(condition) == 1


def _simplified(value: Expr, analyzer: sym.Analyzer) -> Expr:
    """The value with simple indices."""

    def simple(load: TensorLoad) -> Expr:
        return tirx.BufferLoad(load.source, [analyzer.simplify(index) for index in load.indices])

    return nests.with_loads(value, simple)


def _tap_axes(transposed: Transposed, load: TensorLoad) -> list[Strided | None]:
    """Of each dimension of another tensor the strided axis whose taps index it."""
    if load.same_as(transposed.load):
        return [None] * len(load.indices)
    of_taps = [[transposed.of_tap(v) for v in nests.variables(i)] for i in load.indices]
    return [next((each for each in axes if each), None) for axes in of_taps]


def _taps(transposed: Transposed, load: TensorLoad) -> Nest:
    """The taps of each phase of a tensor that the sum's strided iterators index."""
    axes = _tap_axes(transposed, load)
    phased = [each for each in axes if each]
    shape = [each.taps if each else int(extent)
             for each, extent in zip(axes, load.source.shape, strict=True)]  # fmt: skip
    sizes = [*(each.stride for each in phased), *shape]

    def value(at: Sequence[Expr]) -> Expr:
        phases = dict(zip(phased, at[: len(phased)], strict=True))
        analyzer = _analyzer(at, sizes)
        indices, inside = [], []
        for each, old, new in zip(axes, load.indices, at[len(phased) :], strict=True):
            if each is None:
                indices.append(new)
                continue
            tap = each.tap_of(phases[each], new)
            indices.append(analyzer.simplify(nests.substituted(old, {each.tap.variable: tap})))
            inside += [tap < each.tap.extent] if each.overhangs else []
        conditions, element = _resolved(
            tirx.BufferLoad(load.source, indices), transposed.producers
        )
        return nests.zero_unless(
            _needed([*inside, *conditions], [], analyzer), _simplified(element, analyzer)
        )

    return nests.computed(f"{load.source.name}_phases", load.source, sizes, value)


def _convolution(
    transposed: Transposed, cells: Nest, taps: Sequence[tuple[TensorLoad, Nest]]
) -> Nest:
    """The convolution of all phases; the phases are its first axes."""
    strided = transposed.strided
    old = transposed.nest
    axes = [Axis(each.phase, each.stride) for each in strided]
    for axis in old.axes:
        of_result = transposed.of_result(axis.variable)
        of_tap = transposed.of_tap(axis.variable)
        extent = of_result.steps if of_result else of_tap.taps if of_tap else axis.extent
        axes.append(dataclasses.replace(axis, extent=extent))
    spatial = [axis for axis in axes if axis.kind == SPATIAL]
    buffer = nests.buffer_like(
        f"{old.buffer.name}_phases", old.buffer, [axis.extent for axis in spatial]
    )
    at = [axis.variable for axis in spatial]

    def read(load: TensorLoad) -> Expr | None:
        if load.same_as(transposed.load):
            return _read_cells(transposed, cells)
        nest = next((nest for other, nest in taps if other.same_as(load)), None)
        return _read_taps(transposed, load, nest) if nest else None

    term = nests.with_loads(transposed.term, read)
    value = tirx.BufferLoad(buffer, at) + term
    return nests.make(buffer, axes, at, value, old.block.init.value, name=old.name)


def _read_cells(transposed: Transposed, cells: Nest) -> Expr:
    indices = list(transposed.load.indices)
    for each in transposed.strided:
        indices[each.dimension] = each.moved(each.result.variable, each.tap.variable)
    phases = [each.phase for each in transposed.strided if each.is_moved]
    return tirx.BufferLoad(cells.buffer, [*phases, *indices])


def _read_taps(transposed: Transposed, load: TensorLoad, taps: Nest) -> Expr:
    axes = _tap_axes(transposed, load)
    phases = [each.phase for each in axes if each]
    indices = [each.tap.variable if each else old
               for each, old in zip(axes, load.indices, strict=True)]  # fmt: skip
    return tirx.BufferLoad(taps.buffer, [*phases, *indices])


def _joined(transposed: Transposed, result: Nest) -> Nest:
    """The result in the task's order of elements."""
    old = transposed.nest
    spatial = [axis for axis in old.axes if axis.kind == SPATIAL]
    fresh = [
        Axis(tirx.Var(axis.variable.name, axis.variable.ty.dtype), axis.extent) for axis in spatial
    ]
    at = {old.variable: new.variable for old, new in zip(spatial, fresh, strict=True)}
    phases = [tirx.floormod(at[e.result.variable], e.stride) for e in transposed.strided]
    places = []
    for axis in spatial:
        each = transposed.of_result(axis.variable)
        index = at[axis.variable]
        places.append(tirx.floordiv(index, each.stride) if each else index)
    variables = [axis.variable for axis in fresh]
    value = tirx.BufferLoad(result.buffer, [*phases, *places])
    return nests.make(old.buffer, fresh, variables, value, name=f"{old.name}_joined")
