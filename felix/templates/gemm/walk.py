"""The stages of a program from its output back to the product and to the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from felix.templates.gemm import axes, epilogue, stages
from felix.templates.gemm.axes import Axis
from felix.templates.gemm.stages import NotPlain, StagedFunction, require
from felix.tir import evaluation, grammar, ranges
from felix.tir.ranges import Interval, Linear, Scope

T = TypeVar("T")

#: C++ longer than this is no epilogue that compiles quickly.
_MAX_CHARACTERS = 6000
_INT_LIMIT = 2**31

#: Values of variables.
Values = Mapping[Any, Linear]


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """An element of a parameter, counted from the tensor's first.

    Attributes:
        indices: of each dimension; `extents` are those of the tensor.
        guards: of an operand, which is 0 unless each of these is 0 or more.
        multiples: of an operand, which is 0 unless all of these hold as well.
    """

    param: int
    offset: Linear
    indices: tuple[Linear, ...]
    extents: tuple[int, ...]
    guards: frozenset[Linear] = frozenset()
    multiples: frozenset[stages.Multiple] = frozenset()

    @property
    def plain_indices(self) -> list[Linear]:
        """Those that are no quotient of what a guard says is a multiple."""

        def is_spread(index: Linear) -> bool:
            quotients = [atom for atom, _ in index.terms if isinstance(atom, ranges.Quotient)]
            return any(
                each.divisor == multiple.divisor and multiple.divides(each.dividend)
                for each in quotients
                for multiple in self.multiples
            )

        return [index for index in self.indices if not is_spread(index)]


@dataclasses.dataclass(frozen=True, slots=True)
class Accesses:
    """What is computed for one element of the output.

    Attributes:
        output: where it is stored.
        operands: what is multiplied.
        epilogue: C++ of its value.
        reads: what the epilogue reads besides the sum, by its names.
        places: the axes whose values it mentions, by its names.
    """

    output: Access
    operands: tuple[Access, Access]
    epilogue: str
    reads: Mapping[str, Access]
    places: Mapping[str, Axis]

    @property
    def tensors(self) -> list[Access]:
        """The output, both operands, then the reads."""
        return [self.output, *self.operands, *self.reads.values()]


def accesses_of(
    program: StagedFunction,
    made: axes.Axes,
    spatial: Mapping[Any, Axis],
    reduced: Mapping[Any, Axis],
) -> Accesses:
    """Where a program reads and writes, as forms of the axes of its output and of its sum.

    Args:
        spatial: axes of the iterators of the output's stage.
        reduced: axes of the reduced iterators of the product.

    Raises:
        NotPlain: elements are combined in another way.
        Unsupported: the epilogue has no form in C++.
        WorkloadError: indices are not understood.
    """
    scope = made.scope([*spatial.values(), *reduced.values()])
    values = {variable: made.value(axis) for variable, axis in spatial.items()}
    walk = _Walk(program, scope)
    text = walk.stored(values)
    require(len(text) <= _MAX_CHARACTERS, "its epilogue is too long")
    require(walk.sum_at is not None, "its output does not depend on the product")
    at = dict(walk.sum_at or {}) | {v: made.value(axis) for v, axis in reduced.items()}
    first, second = (walk.operand(factor, at) for factor in program.factors)
    output = walk.access(program.output.buffer, walk.linear(program.output.indices, values))
    return Accesses(output, (first, second), text, walk.reads, walk.places)


class _Walk:
    """Follows loads; `sum_at` are the product's spatial iterators, None before it is reached."""

    def __init__(self, program: StagedFunction, scope: Scope) -> None:
        self._program = program
        self._scope = scope
        self._statements: list[tuple[str, str, str]] = []
        self._texts: dict[tuple[Any, tuple[Linear, ...]], str] = {}
        self.reads: dict[str, Access] = {}
        self.places: dict[str, Axis] = {}
        self.sum_at: Values | None = None

    def stored(self, values: Values) -> str:
        """C++ of what the output's stage stores."""
        if self._program.output is self._program.product:
            return self._sum(values)
        text = self._text(self._program.output.value, values)
        return epilogue.joined(self._statements, text)

    def operand(
        self, expr: Any, values: Values, guards: stages.Guards = stages.EVERYWHERE
    ) -> Access:
        """The element behind an operand, through copies, reshapes, padding and widening casts."""
        while (padded := stages.padded(expr)) or (type(expr).__name__ == "Cast" and _widens(expr)):
            condition, expr = padded or (None, expr.value)
            if padded:
                guards |= stages.guards(condition, self._scope, values)
        require(grammar.is_load(expr), "an operand of the product is computed before it")
        indices = self.linear(expr.indices, values)
        stage = self._program.by_buffer.get(expr.source)
        if stage is None:
            return self.access(expr.source, indices, guards)
        return self.operand(stage.value, stage.values_at(indices), guards)

    def linear(self, indices: Sequence[Any], values: Values) -> tuple[Linear, ...]:
        """Values of indices."""
        evaluate = evaluation.Evaluation(self._scope, values)
        return tuple(evaluate.linear(index) for index in indices)

    def access(
        self, buffer: Any, indices: Sequence[Linear], guards: stages.Guards = stages.EVERYWHERE
    ) -> Access:
        """The element of a parameter at these indices, which guards may keep inside."""
        offset = Linear(0)
        for index, extent in zip(indices, grammar.shape(buffer), strict=True):
            is_inside = self._scope.proves(index, Interval(0, extent - 1))
            is_inside = is_inside or bool(guards)
            require(is_inside, f"it reads {buffer.name} where a condition holds, not everywhere")
            offset = offset.scaled(extent) + index
        extents = tuple(grammar.shape(buffer))
        param = self._program.param(buffer)
        return Access(param, offset, tuple(indices), extents, guards.bounds, guards.multiples)

    def _text(self, expr: Any, values: Values) -> str:
        """C++ of an expression where iterators have these values."""
        return epilogue.text(
            expr,
            lambda load: self._load(load, values),
            lambda index: self._index(*self.linear([index], values)),
        )

    def _index(self, form: Linear) -> str:
        """C++ of an integer of the axes, each of which is a name of `places`."""
        ends = [self._scope.interval(Linear.of(atom).scaled(k)) for atom, k in form.terms]
        most = abs(form.constant) + sum(max(-end.low, end.high) for end in ends)
        require(most < _INT_LIMIT, "its epilogue computes with places beyond 32 bits")
        terms = sorted((self._atom(atom), factor) for atom, factor in form.terms)
        texts = [name if factor == 1 else f"{name} * ({factor})" for name, factor in terms]
        if form.constant or not texts:
            texts.append(f"({form.constant})" if form.constant < 0 else str(form.constant))
        return texts[0] if len(texts) == 1 and "*" not in texts[0] else f"({' + '.join(texts)})"

    def _atom(self, atom: ranges.Atom) -> str:
        if isinstance(atom, Axis):
            return _name_in(self.places, "place", atom)
        if isinstance(atom, ranges.Extremum | ranges.Product):
            a, b = self._index(atom.a), self._index(atom.b)
            if isinstance(atom, ranges.Product):
                return f"({a} * {b})"
            return f"{'min' if atom.is_minimum else 'max'}({a}, {b})"
        if isinstance(atom, ranges.Quotient | ranges.Remainder):
            # C++ rounds to 0.
            if self._scope.interval(atom.dividend).low >= 0:
                operator = "/" if isinstance(atom, ranges.Quotient) else "%"
                return f"({self._index(atom.dividend)} {operator} {atom.divisor})"
        raise NotPlain("its epilogue computes with places in a way that is not understood")

    def _load(self, load: Any, values: Values) -> str:
        """C++ of an element: the sum, an earlier stage's value, or a tensor's."""
        indices = self.linear(load.indices, values)
        stage = self._program.by_buffer.get(load.source)
        if stage is None:
            return self._read(load.source, indices)
        at = stage.values_at(indices)
        if stage is self._program.product:
            return self._sum(at)
        key = (load.source, indices)
        if key not in self._texts:
            self._texts[key] = self._named(load, self._text(stage.value, at))
        return self._texts[key]

    def _named(self, load: Any, value: str) -> str:
        """The value, or a name for it where it is mentioned more than once."""
        if self._program.uses[load.source] == 1 or value.isidentifier():
            return value
        name = f"t{len(self._statements)}"
        kind = epilogue.c_type(grammar.dtype(load))
        self._statements.append((kind, name, value))
        return name

    def _sum(self, at: Values) -> str:
        if self.sum_at is None:
            self.sum_at = at
        require(self.sum_at == at, "its epilogue combines different elements of the product")
        return "x"

    def _read(self, buffer: Any, indices: Sequence[Linear]) -> str:
        epilogue.c_type(grammar.dtype(buffer))
        access = self.access(buffer, indices)
        return _name_in(self.reads, "read", access)


def _name_in(known: dict[str, T], prefix: str, value: T) -> str:
    """The name of a value, a new one if it has none yet."""
    for name, each in known.items():
        if each == value:
            return name
    name = f"{prefix}{len(known)}"
    known[name] = value
    return name


def _widens(cast: Any) -> bool:
    """Whether a cast leaves each value what it is."""
    source, target = grammar.dtype(cast.value), grammar.dtype(cast)
    if grammar.is_float(source) != grammar.is_float(target) or "bool" in (source, target):
        return False
    if source == target:
        return True
    is_signed = grammar.is_float(source) or not target.startswith("uint")
    return is_signed and grammar.bits(source) < grammar.bits(target)
