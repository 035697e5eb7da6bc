"""A norm folded into the product behind it: row statistics, scaled weights, a row-scale epilogue.

    Σ_k (r[i] · g[k] · x[i, k] + Σ_t u_t[i] · v_t[k]) · w[k, j]
      = r[i] · Σ_k x[i, k] · (g[k] · w[k, j]) + Σ_t u_t[i] · Σ_k v_t[k] · w[k, j]

RMS norm has r = 1 / rms and g = gamma. Layer norm has two added terms, too: -mean · r by gamma,
and 1 by beta. So the product reads x itself, and its epilogue scales rows and adds outer products
of vectors. Three programs compute the same as the one: of the weights alone, which is run only
once where weights are constant; of the rows' statistics; of the product.

Conditions: the program is plain stages (`stages`); one operand of a sum of products over one axis
is a polynomial as above; x and the other operand are parameters, read at plain iterators; the
product is summed in float32. What lies between x and the product is computed in float32, and
g · w is rounded to w's type, where the program rounds the normalised x to x's type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from felix.templates.gemm import stages
from felix.templates.gemm.norms import polynomial
from felix.templates.gemm.norms.polynomial import FLOAT, Term
from felix.templates.gemm.stages import NotPlain, Stage, require
from felix.tir import grammar
from felix.tir.checks import validate
from felix.tir.design_space.variants import nests


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A function of the folded form.

    Attributes:
        func: its last parameters are the outputs.
        inputs: what the others are: numbers of the original's parameters, or names of outputs of
            the programs before it.
        outputs: their names, or the number of the original's output.
    """

    func: tirx.PrimFunc
    inputs: tuple[int | str, ...]
    outputs: tuple[int | str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Folded:
    """Programs that compute the original's output one after the other."""

    weights: Program
    rows: Program
    product: Program

    @property
    def programs(self) -> tuple[Program, Program, Program]:
        return self.weights, self.rows, self.product


@dataclasses.dataclass(frozen=True, slots=True)
class NotFolded:
    """Why a program has no folded form: a sentence about "it", the program."""

    reason: str


def fold(func: tirx.PrimFunc) -> Folded | NotFolded:
    """The folded form of a checked function, like a task's, of a norm and a product."""
    try:
        return _Folding(func).folded()
    except NotPlain as error:
        return NotFolded(str(error))


class _Folding:
    """The parts of one function."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._func = func
        self._stages = stages.stages_of(func)
        self._by_buffer = {stage.buffer: stage for stage in self._stages}
        self._product, normed, self._weight = self._operands()
        (self._k,) = [axis.variable for axis in self._product.reduced]
        terms = polynomial.terms(normed, self._k, self._is_parameter)
        scaled = [term for term in terms if term.x is not None]
        require(len(scaled) == 1, f"{len(scaled)} terms of its operand have x, not one")
        self._scaled = scaled[0]
        self._added = [term for term in terms if term.x is None]
        spatial = [axis for axis in self._product.spatial]
        in_weight = polynomial.iterators(self._weight)
        in_rows = polynomial.iterators(normed)
        self._rows = [axis for axis in spatial if axis.variable in in_rows]
        self._columns = [axis for axis in spatial if axis.variable in in_weight]
        polynomial.require_plain(self._weight, self._k)

    def folded(self) -> Folded:
        """The three programs."""
        load = self._weight
        weight = nests.buffer_like("scaled_weight", load.source, grammar.shape(load.source))
        vectors = [self._vector(f"column{n}", self._columns) for n in range(len(self._added))]
        scale = self._vector("row_scale", self._rows)
        factors = [
            None if term.row is None else self._vector(f"row{n}", self._rows)
            for n, term in enumerate(self._added)
        ]
        row_factors = [factor for factor in factors if factor is not None]
        made = [self._scaled_weight(weight)]
        made += [self._sum(v, t) for v, t in zip(vectors, self._added, strict=True)]
        weights = self._program(made, [], [weight, *vectors])
        made = [self._row(scale, self._scaled)]
        pairs = zip(factors, self._added, strict=True)
        made += [self._row(factor, term) for factor, term in pairs if factor is not None]
        before = [stage.nest for stage in self._stages]
        rows = self._program([*before, *made], [], [scale, *row_factors])
        behind = self._behind(weight, scale, factors, vectors)
        product = self._program(behind, [weight, *vectors, scale, *row_factors], [])
        return Folded(weights, rows, product)

    # ------------------------------------------------------------ reading

    def _operands(self) -> tuple[Stage, Any, Any]:
        """The product, its operand behind a norm, inlined, and its load of a parameter."""
        for stage in reversed(self._stages):
            term: Any = stage.term if stage.is_reduction else None
            if type(term).__name__ != "Mul":
                continue
            pairs: list[tuple[Any, Any]] = [
                (self._inlined(first), self._inlined(second))
                for first, second in (
                    (term.a, term.b), (term.b, term.a)
                )
            ]  # fmt: skip
            for operand, weight in pairs:
                bare = _without_casts(weight)
                if self._is_parameter(bare) and len(nests.loads(operand)) > 1:
                    require(len(stage.reduced) == 1, "its product sums over several axes")
                    is_float = grammar.dtype(stage.buffer) == FLOAT
                    require(is_float, "its product is not summed in float32")
                    return stage, operand, bare
        raise NotPlain("no product of it has an operand that is computed before, and a parameter")

    def _is_parameter(self, expr: Any) -> bool:
        """Whether an expression reads a parameter that is not computed."""
        return grammar.is_load(expr) and expr.source not in self._by_buffer

    def _inlined(self, expr: Any) -> Any:
        """The expression with what elementwise stages compute; sums and parameters are read."""

        def value(load: Any) -> Any:
            stage = self._by_buffer.get(load.source)
            if stage is None or stage.is_reduction:
                return None
            pairs = zip(stage.indices, load.indices, strict=True)
            values = {i: at for i, at in pairs if isinstance(i, tirx.Var)}
            return self._inlined(nests.substituted(stage.value, values))

        return nests.with_loads(expr, value)

    # ------------------------------------------------------------ making

    def _vector(self, name: str, axes: Sequence[nests.Axis]) -> tirx.Buffer:
        dtype = self._k.ty.dtype
        extents = [tirx.IntImm(dtype, axis.extent) for axis in axes] or [tirx.IntImm(dtype, 1)]
        return tirx.decl_buffer(extents, FLOAT, name, layout=None)

    def _scaled_weight(self, target: tirx.Buffer) -> nests.Nest:
        load = self._weight

        def value(indices: Sequence[Any]) -> Any:
            at = dict(zip(load.indices, indices, strict=True))
            factor = _moved(self._scaled.column, {self._k: at[self._k]})
            return polynomial.times(
                polynomial.as_float(load.source[tuple(indices)]), factor
            ).astype(load.source.dtype)

        dtype = self._k.ty.dtype
        axes = [nests.Axis(tirx.Var(f"v_{i}", dtype), extent)
                for i, extent in enumerate(grammar.shape(target))]  # fmt: skip
        variables = [axis.variable for axis in axes]
        return nests.make(target, axes, variables, value(variables))

    def _sum(self, target: tirx.Buffer, term: Term) -> nests.Nest:
        """Σ_k v[k] · w[k, j]."""
        value = polynomial.times(polynomial.as_float(self._weight), term.column)
        return self._over(target, self._columns, value, is_sum=True)

    def _row(self, target: tirx.Buffer, term: Term) -> nests.Nest:
        return self._over(target, self._rows, polynomial.times(tirx.const(1.0, FLOAT), term.row))

    def _over(
        self, target: tirx.Buffer, axes: Sequence[nests.Axis], value: Any, is_sum: bool = False
    ) -> nests.Nest:
        """A nest that stores or sums a value of the product's iterators, with new ones."""
        every = [*axes, *self._product.reduced] if is_sum else list(axes)
        new = {a.variable: tirx.Var(a.variable.name, a.variable.ty.dtype) for a in every}
        made = [nests.Axis(new[a.variable], a.extent, a.kind) for a in every]
        indices = [new[a.variable] for a in axes] or [tirx.IntImm(self._k.ty.dtype, 0)]
        value = _moved(value, new)
        if not is_sum:
            return nests.make(target, made, indices, value)
        init = tirx.const(0.0, FLOAT)
        return nests.make(target, made, indices, target[tuple(indices)] + value, init)

    def _behind(
        self,
        weight: tirx.Buffer,
        scale: tirx.Buffer,
        factors: Sequence[tirx.Buffer | None],
        vectors: Sequence[tirx.Buffer],
    ) -> list[nests.Nest]:
        """The product of x and the scaled weights, its rows scaled, and what follows."""
        old = self._product
        target = nests.buffer_like("product", old.buffer, grammar.shape(old.buffer))
        axes, indices = old.nest.axes, list(old.indices)
        factor = polynomial.as_float(weight[tuple(self._weight.indices)])
        value = target[tuple(indices)] + polynomial.as_float(self._scaled.x) * factor
        product = nests.make(target, axes, indices, value, tirx.const(0.0, FLOAT))
        at_row, at_column = (
            tuple(a.variable for a in axes) or (tirx.IntImm(self._k.ty.dtype, 0),)
            for axes in (self._rows, self._columns)
        )
        result: Any = target[tuple(indices)] * scale[at_row]
        for row, column in zip(factors, vectors, strict=True):
            added = column[at_column]
            result = result + (added if row is None else row[at_row] * added)
        new = {a.variable: tirx.Var(a.variable.name, a.variable.ty.dtype) for a in old.spatial}
        moved = [nests.Axis(new[a.variable], a.extent) for a in old.spatial]
        scaled = nests.make(
            old.buffer,
            moved,
            [new.get(index, index) for index in indices],
            _moved(result, new),
            name="scaled_rows",
        )
        first = self._stages.index(old)
        others = [s.nest for n, s in enumerate(self._stages) if n != first]
        return [*others[:first], product, scaled, *others[first:]]

    def _program(
        self, made: Sequence[nests.Nest], before: Sequence[tirx.Buffer], after: Sequence[Any]
    ) -> Program:
        """A function of these nests; without outputs of its own it has the original's."""
        params = list(self._func.params)
        names = [*range(len(params)), *(str(buffer.name) for buffer in before)]
        buffers = [*params, *before]
        stored = [s.buffer for s in self._stages if any(s.buffer.same_as(p) for p in params)]
        outputs = list(after) or stored
        whole = tirx.PrimFunc(outputs, self._func.body).with_attr("s_tir", True)
        used = nests.function(whole, made)
        read = [
            load.source for nest in nests.of_function(used) or [] for load in
            nests.loads(nest.block.body.value)
        ]  # fmt: skip
        chosen = [
            (name, buffer)
            for name, buffer in zip(names, buffers, strict=True)
            if any(buffer.same_as(each) for each in read)
            and not any(buffer.same_as(each) for each in outputs)
        ]
        ends = [str(b.name) if after else _number(params, b) for b in outputs]
        every = [*(buffer for _, buffer in chosen), *outputs]
        func = nests.function(tirx.PrimFunc(every, used.body).with_attr("s_tir", True), made)
        return Program(validate.normalise(func), tuple(n for n, _ in chosen), tuple(ends))


def _number(params: Sequence[Any], buffer: Any) -> int:
    return next(number for number, param in enumerate(params) if param.same_as(buffer))


def _moved(expr: Any, values: Mapping[Any, Any]) -> Any:
    return None if expr is None else nests.substituted(expr, values)


def _without_casts(expr: Any) -> Any:
    while type(expr).__name__ == "Cast":
        expr = expr.value
    return expr
