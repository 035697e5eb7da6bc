"""A norm folded into the product behind it: row statistics, scaled weights, a row-scale epilogue.

    Σ_k (r[i] · g[k] · x[i, k] + Σ_t u_t[i] · v_t[k]) · w[k, j]
      = r[i] · Σ_k x[i, k] · (g[k] · w[k, j]) + Σ_t u_t[i] · Σ_k v_t[k] · w[k, j]

RMS norm has r = 1 / rms and g = gamma. Layer norm has two added terms, too: -mean · r by gamma,
and 1 by beta. So the product reads x itself, and its epilogue scales rows and adds outer products
of vectors. Three programs compute the same as the one: of the weights alone, which is run only
once where weights are constant; of the rows' statistics; of the product. The statistics are one
tensor: r, then each u_t, for all rows.

Conditions: the program is plain stages (`stages`); one operand of a sum of products over one axis
is a polynomial as above; x and the other operand are parameters, read at plain iterators; the
product is summed in float32. What lies between x and the product is computed in float32, and
g · w is rounded to w's type, where the program rounds the normalised x to x's type. A sum of g · w
by k, as that of the mean, is one of what was rounded: then rows with large means lose no more
bits than their products do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import tirx

from felix.templates.gemm import stages
from felix.templates.gemm.norms import polynomial
from felix.templates.gemm.norms.polynomial import FLOAT, Term
from felix.templates.gemm.stages import NotPlain, Stage, require
from felix.tir import grammar, validate
from felix.tir.design_space.variants import nests

#: What the programs hand on.
SCALED_WEIGHT, STATISTICS = "scaled_weight", "row_statistics"


def column(number: int) -> str:
    """The name of an added term's vector over columns."""
    return f"column{number}"


@dataclasses.dataclass(frozen=True, slots=True)
class FoldedFunction:
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
    """Programs that compute the original's output one after the other.

    Attributes:
        weights: scales the weights (`SCALED_WEIGHT`), and sums each added term's `column`.
        rows: gives the statistics of rows (`STATISTICS`): r, then the row factors of added terms.
        product: the product and its epilogue.
        added: whether each added term has a row factor; where not, it is 1.
    """

    weights: FoldedFunction
    rows: FoldedFunction
    product: FoldedFunction
    added: tuple[bool, ...]


def fold(func: tirx.PrimFunc) -> Folded:
    """The folded form of a checked function, like a task's, of a norm and a product.

    Raises:
        NotPlain: it has none.
    """
    return _Folding(func).folded()


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
        weight = nests.buffer_like(SCALED_WEIGHT, load.source, grammar.shape(load.source))
        vectors = [self._vector(column(n), self._columns) for n in range(len(self._added))]
        made = [self._scaled_weight(weight)]
        made += [self._sum(v, t, weight) for v, t in zip(vectors, self._added, strict=True)]
        weights = self._program(made, [], [weight, *vectors])
        by_row = [self._scaled, *(term for term in self._added if term.row is not None)]
        statistics = self._vector(STATISTICS, self._rows, len(by_row))
        before = [stage.nest for stage in self._stages]
        rows = self._program([*before, self._row(statistics, by_row)], [], [statistics])
        behind = self._behind(weight, statistics, vectors)
        product = self._program(behind, [weight, *vectors, statistics], [])
        added = tuple(term.row is not None for term in self._added)
        return Folded(weights, rows, product, added)

    # ------------------------------------------------------------ reading

    def _operands(self) -> tuple[Stage, Any, Any]:
        """The product, its operand behind a norm, inlined, and its load of a parameter."""
        for stage in reversed(self._stages):
            term: Any = stage.term if stage.is_reduction else None
            if type(term).__name__ != "Mul":
                continue
            pairs: list[tuple[Any, Any]] = [
                (self._inlined(first), self._inlined(second))
                for first, second in ((term.a, term.b), (term.b, term.a))
            ]
            for operand, weight in pairs:
                bare = weight
                while type(bare).__name__ == "Cast":
                    bare = bare.value
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
            return self._inlined(grammar.substituted(stage.value, values))

        return nests.with_loads(expr, value)

    # ------------------------------------------------------------ making

    def _vector(
        self, name: str, axes: Sequence[nests.Axis], n_vectors: int | None = None
    ) -> tirx.Buffer:
        """A buffer for an element, or several one tensor behind the other, of each iterator."""
        extents = [axis.extent for axis in axes] or [1]
        first = [] if n_vectors is None else [n_vectors]
        shape = [tirx.IntImm(self._k.ty.dtype, extent) for extent in (*first, *extents)]
        return tirx.decl_buffer(shape, FLOAT, name, layout=None)

    def _scaled_weight(self, target: tirx.Buffer) -> nests.Nest:
        load = self._weight

        def value(indices: Sequence[Any]) -> Any:
            at = dict(zip(load.indices, indices, strict=True))
            factor = _moved(self._scaled.column, {self._k: at[self._k]})
            return polynomial.times(
                polynomial.as_float(load.source[tuple(indices)]), factor
            ).astype(load.source.dtype)

        return nests.filled(target, grammar.shape(target), value)

    def _sum(self, target: tirx.Buffer, term: Term, weight: tirx.Buffer) -> nests.Nest:
        """Σ_k v[k] · w[k, j], of the scaled weights where v is their factor."""
        is_factor = tvm_ffi.structural_equal(term.column, self._scaled.column)
        scaled = polynomial.as_float(weight[tuple(self._weight.indices)])
        plain = polynomial.times(polynomial.as_float(self._weight), term.column)
        axes, new = self._new_axes([*self._columns, *self._product.reduced])
        indices = [axis.variable for axis in axes[:-1]] or [self._index(0)]
        value = target[tuple(indices)] + _moved(scaled if is_factor else plain, new)
        return nests.make(target, axes, indices, value, tirx.const(0.0, FLOAT))

    def _row(self, target: tirx.Buffer, by_row: Sequence[Term]) -> nests.Nest:
        """The factors by rows, one tensor behind the other."""
        axes, new = self._new_axes(self._rows)
        which = nests.Axis(tirx.Var("which", self._k.ty.dtype), len(by_row))
        value: Any = None
        for number, term in reversed(list(enumerate(by_row))):
            factor = _moved(polynomial.times(tirx.const(1.0, FLOAT), term.row), new)
            is_this = which.variable.equal(self._index(number))
            value = factor if value is None else tirx.if_then_else(is_this, factor, value)
        indices = [axis.variable for axis in axes] or [self._index(0)]
        return nests.make(target, [which, *axes], [which.variable, *indices], value)

    def _new_axes(self, axes: Sequence[nests.Axis]) -> tuple[list[nests.Axis], dict[Any, Any]]:
        """Iterators like these, and what becomes of the old ones."""
        new = {a.variable: tirx.Var(a.variable.name, a.variable.ty.dtype) for a in axes}
        return [nests.Axis(new[a.variable], a.extent, a.kind) for a in axes], new

    def _index(self, value: int) -> Any:
        return tirx.IntImm(self._k.ty.dtype, value)

    def _behind(
        self, weight: tirx.Buffer, statistics: tirx.Buffer, vectors: Sequence[tirx.Buffer]
    ) -> list[nests.Nest]:
        """The product of x and the scaled weights, its rows scaled, and what follows."""
        old = self._product
        target = nests.buffer_like("product", old.buffer, grammar.shape(old.buffer))
        axes, indices = old.nest.axes, list(old.indices)
        factor = polynomial.as_float(weight[tuple(self._weight.indices)])
        value = target[tuple(indices)] + polynomial.as_float(self._scaled.x) * factor
        product = nests.make(target, axes, indices, value, tirx.const(0.0, FLOAT))
        at_row, at_column = (
            [axis.variable for axis in axes] or [self._index(0)]
            for axes in (self._rows, self._columns)
        )
        result: Any = target[tuple(indices)] * statistics[(self._index(0), *at_row)]
        n_rows = 1
        for term, column in zip(self._added, vectors, strict=True):
            added = column[tuple(at_column)]
            if term.row is not None:
                added = statistics[(self._index(n_rows), *at_row)] * added
                n_rows += 1
            result = result + added
        moved, new = self._new_axes(old.spatial)
        at = [new.get(index, index) for index in indices]
        scaled = nests.make(old.buffer, moved, at, _moved(result, new), name="scaled_rows")
        first = self._stages.index(old)
        others = [s.nest for n, s in enumerate(self._stages) if n != first]
        return [*others[:first], product, scaled, *others[first:]]

    def _program(
        self, made: Sequence[nests.Nest], before: Sequence[tirx.Buffer], after: Sequence[Any]
    ) -> FoldedFunction:
        """A function of these nests; without outputs of its own it has the original's."""
        params = list(self._func.params)
        names = [*range(len(params)), *(str(buffer.name) for buffer in before)]
        buffers = [*params, *before]
        stored = [stage.buffer for stage in self._stages if stage.buffer in params]
        outputs = list(after) or stored
        whole = tirx.PrimFunc(outputs, self._func.body).with_attr("s_tir", True)
        used = nests.function(whole, made)
        read = [
            load.source
            for nest in nests.of_function(used) or []
            for load in nests.loads(nest.block.body.value)
        ]
        chosen = [
            (name, buffer)
            for name, buffer in zip(names, buffers, strict=True)
            if buffer in read and buffer not in outputs
        ]
        ends = [str(b.name) if after else params.index(b) for b in outputs]
        every = [*(buffer for _, buffer in chosen), *outputs]
        func = nests.function(tirx.PrimFunc(every, used.body).with_attr("s_tir", True), made)
        checked = validate.normalise(func, narrow=False)
        return FoldedFunction(checked, tuple(n for n, _ in chosen), tuple(ends))


def _moved(expr: Any, values: Mapping[Any, Any]) -> Any:
    return None if expr is None else grammar.substituted(expr, values)
