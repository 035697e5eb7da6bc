"""The stages of a program: loop nests that store one value at each of their iterators; and values
that are 0 unless iterators meet conditions, the padding of a convolution's data.

One of the stages is a sum of products, the others compute each element for itself.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from felix.templates.gemm import epilogue
from felix.tir import evaluation, grammar
from felix.tir.design_space.variants import nests
from felix.tir.ranges import Linear, Remainder, Scope


class NotPlain(Exception):
    """The program is not of a form that is recognised; the message is the reason."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A nest that stores each element of its buffer once, at `indices`.

    Each index is an iterator, or a constant where the buffer's extent is 1.
    """

    nest: nests.Nest

    @property
    def buffer(self) -> Any:
        return self.nest.buffer

    @property
    def indices(self) -> Sequence[Any]:
        return list(self.nest.block.body.indices)

    @property
    def value(self) -> Any:
        return self.nest.block.body.value

    @property
    def spatial(self) -> list[nests.Axis]:
        return [axis for axis in self.nest.axes if axis.kind == nests.SPATIAL]

    @property
    def reduced(self) -> list[nests.Axis]:
        return [axis for axis in self.nest.axes if axis.kind == nests.REDUCE]

    @property
    def is_reduction(self) -> bool:
        return self.nest.block.init is not None

    @property
    def term(self) -> Any | None:
        """What a sum that begins with 0 adds; None for another reduction."""
        init = self.nest.block.init.value
        if type(self.value).__name__ != "Add" or type(init).__name__ not in ("IntImm", "FloatImm"):
            return None
        for side, other in ((self.value.a, self.value.b), (self.value.b, self.value.a)):
            if grammar.is_load(side) and side.source.same_as(self.buffer):
                return other if float(init.value) == 0 else None
        return None

    def values_at(self, indices: Sequence[Linear]) -> dict[Any, Linear]:
        """Values of the spatial iterators where the element at these indices is stored."""
        pairs = zip(self.indices, indices, strict=True)
        values = {index: form for index, form in pairs if type(index).__name__ == "Var"}
        return {axis.variable: values.get(axis.variable, Linear(0)) for axis in self.spatial}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StagedFunction:
    """A function of plain stages, of which one sums products and one stores the output.

    Attributes:
        params: its buffers.
        by_buffer: the stages, by what they store.
        product: the stage that sums.
        factors: what it multiplies.
        accumulator: float32 or int32.
        output: the stage that stores the one parameter that is stored.
        uses: how often each buffer is mentioned in the stages.
    """

    params: Sequence[Any]
    by_buffer: Mapping[Any, Stage]
    product: Stage
    factors: tuple[Any, Any]
    accumulator: str
    output: Stage
    uses: Mapping[Any, int]

    def param(self, buffer: Any) -> int:
        """The number of a parameter."""
        require(buffer in self.params, f"it reads {buffer.name}, which nothing computes before")
        return self.params.index(buffer)


def program_of(func: tirx.PrimFunc) -> StagedFunction:
    """The stages of a function and their parts in it.

    Raises:
        NotPlain: they are not of this form.
    """
    stages = stages_of(func)
    by_buffer = {stage.buffer: stage for stage in stages}
    sums = [stage for stage in stages if stage.is_reduction]
    require(len(sums) == 1, f"it has {len(sums)} reductions, and a product is one")
    outputs = [param for param in func.params if param in by_buffer]
    require(len(outputs) == 1, f"it has {len(outputs)} outputs")
    product, output = (sums[0], *_product(sums[0])), by_buffer[outputs[0]]
    values = [part for stage in stages for part in grammar.expressions(stage.value)]
    uses = Counter(part.source for part in values if grammar.is_load(part))
    return StagedFunction(list(func.params), by_buffer, *product, output, uses)


def require(condition: bool, reason: str) -> None:
    """Raise NotPlain(reason) unless the condition holds."""
    if not condition:
        raise NotPlain(reason)


def stages_of(func: tirx.PrimFunc) -> list[Stage]:
    """The stages of a function, in order.

    Raises:
        NotPlain: statements are no plain nests, or a buffer is stored twice, or read before.
    """
    program = nests.of_function(func)
    if program is None:
        raise NotPlain("it has statements that are not loops around one store")
    stages = [Stage(nest) for nest in program]
    written: list[Any] = []
    for stage in reversed(stages):
        reason = _impediment(stage, written)
        if reason is not None:
            raise NotPlain(reason)
        written.append(stage.buffer)
    return stages


def _impediment(stage: Stage, written: Sequence[Any]) -> str | None:
    """Why a stage is not plain, given the buffers of those behind it; None if it is."""
    nest = stage.nest
    if stage.buffer in written:
        return f"it stores {stage.buffer.name} in several stages"
    if not _is_bound_plainly(nest):
        return f"the iterators of {nest.name} are not those of its loops"
    if not stage.is_reduction and stage.reduced:
        return f"{nest.name} reduces without a beginning"
    if not _covers(stage):
        return f"{nest.name} does not store each element of {stage.buffer.name} at its iterators"
    allowed = 1 if stage.is_reduction else 0
    loads = [part.source for part in grammar.expressions(stage.value) if grammar.is_load(part)]
    if sum(source.same_as(stage.buffer) for source in loads) != allowed:
        return f"{nest.name} reads what it stores"
    if any(source in written for source in loads):
        return f"{nest.name} reads what is computed after it"
    return None


def _is_bound_plainly(nest: nests.Nest) -> bool:
    """Whether iterators are the loops' variables, each another's, over the whole of its domain."""
    extents: dict[Any, int] = {}
    inner = nest.statement
    while isinstance(inner, tirx.For):
        if int(inner.min) != 0:
            return False
        extents[inner.loop_var] = int(inner.extent)
        inner = inner.body
    predicate = nest.realize.predicate
    if type(predicate).__name__ != "IntImm" or not int(predicate.value):
        return False
    return _go_over(nest.realize.iter_values, [axis.extent for axis in nest.axes], extents)


def _covers(stage: Stage) -> bool:
    """Whether every element is stored, each at other values of the spatial iterators."""
    extents = {axis.variable: axis.extent for axis in stage.spatial}
    return _go_over(stage.indices, grammar.shape(stage.buffer), extents)


def _go_over(values: Sequence[Any], sizes: Sequence[int], extents: dict[Any, int]) -> bool:
    """Whether each value is a variable of its own that has as many, or 0 where there is one.

    Args:
        sizes: how many values there are of each.
        extents: of the variables; those left over have to be of one value.
    """
    for value, size in zip(values, sizes, strict=True):
        if type(value).__name__ == "IntImm":
            if int(value.value) != 0 or size != 1:
                return False
        elif extents.pop(value, None) != size:
            return False
    return all(extent == 1 for extent in extents.values())


def _product(stage: Stage) -> tuple[tuple[Any, Any], str]:
    """The factors of what a stage sums, and the accumulator's dtype."""
    dtype = grammar.dtype(stage.buffer)
    term: Any = stage.term
    require(term is not None, "its reduction is no sum that begins with 0")
    is_product = type(term).__name__ == "Mul"
    require(is_product, "its sum is not one of products of two tensors")
    is_float = epilogue.c_type(dtype) == "float"
    require(is_float or dtype == "int32", f"it sums in {dtype}")
    return (term.a, term.b), "float32" if is_float else "int32"


_ORDERS = ("LT", "LE", "GT", "GE")


@dataclasses.dataclass(frozen=True, slots=True)
class Multiple:
    """A form that is a multiple of the divisor."""

    form: Linear
    divisor: int

    def divides(self, form: Linear) -> bool:
        """Whether another form is a multiple of the divisor exactly where this one is."""
        difference = form - self.form
        numbers = (difference.constant, *(k for _, k in difference.terms))
        return all(number % self.divisor == 0 for number in numbers)


@dataclasses.dataclass(frozen=True, slots=True)
class Guards:
    """What holds where a value is read; elsewhere it is 0.

    Attributes:
        bounds: forms that are 0 or more.
        multiples: of cells that are spread, with zeros between them.
    """

    bounds: frozenset[Linear] = frozenset()
    multiples: frozenset[Multiple] = frozenset()

    def __or__(self, other: Guards) -> Guards:
        return Guards(self.bounds | other.bounds, self.multiples | other.multiples)

    def __bool__(self) -> bool:
        return bool(self.bounds or self.multiples)


#: Of what is nowhere 0.
EVERYWHERE = Guards()


def padded(expr: Any) -> tuple[Any, Any] | None:
    """The condition, and the value where it holds, of what else is 0; None of another one."""
    kind = type(expr).__name__
    if kind == "Select":
        parts = (expr.condition, expr.true_value, expr.false_value)
    elif kind == "Call" and grammar.function_name(expr) == "if_then_else":
        parts = tuple(expr.args)
    else:
        return None
    condition, value, otherwise = parts
    is_number = type(otherwise).__name__ in ("IntImm", "FloatImm")
    return (condition, value) if is_number and float(otherwise.value) == 0 else None


def guards(condition: Any, scope: Scope, values: Mapping[Any, Linear]) -> Guards:
    """What a condition says; bounds that always hold are left out.

    Raises:
        NotPlain: the condition is not one of bounds and multiples of iterators.
    """
    evaluate = evaluation.Evaluation(scope, values)
    forms: set[Linear] = set()
    multiples: set[Multiple] = set()
    pending = [condition]
    while pending:
        condition = pending.pop()
        kind = type(condition).__name__
        if kind == "And":
            pending += [condition.a, condition.b]
            continue
        if kind == "Call" and grammar.function_name(condition) == "likely":
            pending.append(condition.args[0])
            continue
        require(
            kind in (*_ORDERS, "EQ") and not _reads(condition),
            "an operand of the product is 0 under a condition that is no bound of its indices",
        )
        if kind == "EQ":
            difference = evaluate.linear(condition.a) - evaluate.linear(condition.b)
            if any(isinstance(atom, Remainder) for atom, _ in difference.terms):
                multiples.add(_multiple(difference))
            elif difference != Linear(0):
                forms |= {difference, difference.scaled(-1)}
            continue
        ((form,),) = evaluate.cases(condition, True)
        if scope.interval(form).low < 0:
            forms.add(form)
    return Guards(frozenset(forms), frozenset(multiples))


def _multiple(difference: Linear) -> Multiple:
    """What is a multiple where the difference of a remainder and a number is 0."""
    atoms = [(atom, k) for atom, k in difference.terms if isinstance(atom, Remainder)]
    require(
        len(atoms) == len(difference.terms) == 1 and abs(atoms[0][1]) == 1,
        "an operand of the product is 0 under an equality that says of no index what it is a "
        "multiple of",
    )
    remainder, sign = atoms[0]
    residue = -sign * difference.constant
    require(0 <= residue < remainder.divisor, "an operand of the product is always 0")
    return Multiple(remainder.dividend.shifted(-residue), remainder.divisor)


def _reads(condition: Any) -> bool:
    """Whether a condition depends on data, or compares what is no integer."""
    parts = list(grammar.expressions(condition))
    return any(grammar.is_load(p) or grammar.is_float(grammar.dtype(p)) for p in parts)
