"""Norms folded into the products behind them, as other ways to compute the products.

The products that read a norm's result read the norm's own input instead, with weights that have
the norm's factors (`felix.templates.gemm.norms`). One small program gives the statistics of the
rows to all of them. It is a way only where nothing else reads the norm's result, or it would be
computed nevertheless.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import relax, tirx

from felix.frontend import imported, torch_forms
from felix.frontend.programs import groups, outlining
from felix.frontend.programs.planning import reading, rewriting
from felix.frontend.programs.planning.graph import Role
from felix.templates.gemm.norms import folding
from felix.templates.gemm.stages import NotPlain
from felix.torch_calls.form import TorchCall, TorchForm

#: Operators between the norm's input and a product.
_OF_NORM = frozenset({Role.ROWS, Role.ELEMENTWISE, Role.CAST})


@dataclasses.dataclass(frozen=True, slots=True)
class _Site:
    """A product, the operators of the norm in front of it, and the norm's input.

    Attributes:
        product: the product's number.
        normed: the value that it reads.
        x: the value that the norm reads.
        group: the calls of all of them.
    """

    product: int
    normed: int
    x: int
    group: Sequence[groups.Call]


def extended(read: reading.Reading) -> reading.Reading:
    """The reading with products behind norms in their folded form."""
    sites = [site for each in _products(read).values() for site in each]
    folded = _folded(read, sites)
    rewritings: dict[Any, list[rewriting.Rewriting]] = defaultdict(list)
    shared: list[tuple[int, tirx.PrimFunc, groups.Call]] = []
    for site in sites:
        form = folded.get(reading.signature(site.group))
        if form is not None and _is_of(read, site, form):
            call = read.calls[site.product]
            torch_form = _torch_form(read, site, form)
            rewritings[call.var].append(_rewriting(call, site, form, shared, torch_form))
    return rewriting.extended(read, rewritings)


def _products(read: reading.Reading) -> dict[int, list[_Site]]:
    """By the value of a norm the products that read it, where nothing else does."""
    graph = read.graph
    products = defaultdict(list)
    for number, operator in enumerate(graph.operators):
        if operator.role is Role.CONTRACTION and number not in graph.stands_for:
            normed = {each.value for each in operator.reads if each.value >= 0}
            if len(normed) == 1:
                products[normed.pop()].append(number)
    sites = {}
    for value, numbers in products.items():
        if value not in graph.outputs and graph.readers[value] <= set(numbers):
            sites[value] = [site for number in numbers for site in _sites(read, number, value)]
    return sites


def _sites(read: reading.Reading, product: int, normed: int) -> Iterator[_Site]:
    """A product with what may be a norm in front of it, for each value that may be its input."""
    kind = read.variable(normed).ty
    for x, members in _cones(read, normed):
        has_rows = any(read.graph.operators[number].role is Role.ROWS for number in members)
        other = read.variable(x).ty
        is_like = isinstance(other, relax.TensorType) and other.dtype == kind.dtype
        if has_rows and is_like:
            group = [read.calls[number] for number in sorted({*members, product})]
            yield _Site(product, normed, x, group)
            return


def _cones(read: reading.Reading, value: int) -> Iterator[tuple[int, frozenset[int]]]:
    """Values that a value depends on alone, parameters aside, and the operators in between."""
    graph, constants = read.graph, read.constants
    members: set[int] = set()
    frontier = {value}
    while frontier:
        if len(frontier) == 1 and members:
            yield next(iter(frontier)), frozenset(members)
        last = max(frontier)
        if last < 0 or graph.operators[last].role not in _OF_NORM:
            return
        frontier.remove(last)
        members.add(last)
        reads = {each.value for each in graph.operators[last].reads}
        frontier |= {v for v in reads if v >= 0 or read.external[v] not in constants}


def _folded(read: reading.Reading, sites: Sequence[_Site]) -> Mapping[Any, folding.Folded]:
    """The folded forms of sites that have one, by the signatures of their groups."""
    distinct = {reading.signature(site.group): site.group for site in sites}
    made = outlining.of_groups(read.mod, list(distinct.values())) if distinct else []
    folded = {}
    for key, func in zip(distinct, made, strict=True):
        checked = rewriting.checked(func)
        if checked is None:
            continue
        with contextlib.suppress(NotPlain):
            folded[key] = folding.fold(checked)
    return folded


def _is_of(read: reading.Reading, site: _Site, form: folding.Folded) -> bool:
    """Whether the rows are those of the norm's input alone, and the weights parameters."""
    arguments = outlining.arguments_of(site.group)
    weights = [arguments[n] for n in form.weights.inputs if isinstance(n, int)]
    rows = [arguments[n] for n in form.rows.inputs if isinstance(n, int)]
    return rows == [read.variable(site.x)] and read.constants.issuperset(weights)


def _torch_form(read: reading.Reading, site: _Site, folded: folding.Folded) -> TorchForm | None:
    """What PyTorch computes in place of the folded product; None if that is not known."""
    x, normed = read.variable(site.x), read.variable(site.normed)
    value = read.calls[site.product].value
    shapes = [imported.spec_of_type(each.ty, "").shape for each in (x, normed)]
    result = imported.spec_of_type(value.ty, "").shape
    if shapes[0] != shapes[1] or result is None:  # the form would need its other shape
        return None
    arguments = outlining.arguments_of(site.group)
    names: list[int | str] = []
    for each in value.args[1].fields:
        name: int | str = arguments.index(x if each.same_as(normed) else each)
        names.append(name if name in folded.product.inputs else folding.SCALED_WEIGHT)
    if names.count(folding.SCALED_WEIGHT) != 1:
        return None
    form = torch_forms.form_of(read.mod[value.args[0]])
    return of_product(form, folded, names, result, str(x.ty.dtype))


def _rewriting(
    product: groups.Call,
    site: _Site,
    form: folding.Folded,
    shared: list[tuple[int, tirx.PrimFunc, groups.Call]],
    torch_form: TorchForm | None,
) -> rewriting.Rewriting:
    """Adds the folded form of a product.

    Args:
        shared: by the norm's value programs of statistics that were added, and their calls.
        torch_form: what PyTorch computes in place of the product, if that is known.
    """
    func = torch_forms.annotated(form.product.func, torch_form)

    def add(builder: relax.BlockBuilder) -> rewriting.Added:
        values: dict[int | str, Any] = dict(enumerate(outlining.arguments_of(site.group)))

        def operands(program: folding.FoldedFunction) -> list[Any]:
            return [values[name] for name in program.inputs]

        weights = rewriting.emitted(
            builder, form.weights.func, operands(form.weights), outlining.NORM_WEIGHTS
        )
        values |= dict(zip(form.weights.outputs, weights, strict=True))
        (name,) = form.rows.outputs
        new = []
        known = (
            call
            for normed, other, call in shared
            if normed == site.normed and tvm_ffi.structural_equal(other, form.rows.func)
        )
        if (rows := next(known, None)) is None:
            rows = rewriting.called(
                builder,
                form.rows.func,
                operands(form.rows),
                outlining.NORM_STATISTICS,
                rewriting.ROWS,
            )
            shared.append((site.normed, form.rows.func, rows))
            new.append(rows)
        values[name] = rows.var
        symbol = str(product.value.args[0].name_hint)
        stand_in = rewriting.called(
            builder,
            func,
            operands(form.product),
            outlining.normed(symbol),
            rewriting.PRODUCT,
            product.var,
        )
        return rewriting.Added(new, [stand_in])

    return add


# What PyTorch computes in place of a product that a norm is folded into.
#
# The function that stands for the product itself, of the norm's input and the scaled weights;
# then its rows are scaled by the statistics, and outer products are added, as the program's
# epilogue does (`felix.templates.gemm.norms`).

_PRODUCTS = ("matmul", "matmul_transposed")
_FLOAT = "float32"


def of_product(
    form: TorchForm | None,
    folded: folding.Folded,
    names: Sequence[int | str],
    shape: Sequence[int],
    dtype: str,
) -> TorchForm | None:
    """The form of a folded product; None where none is known.

    Outer products are added to sums in float32 alone: PyTorch would round a sum of operands of 16
    bits to as many, and what is left of it less a mean would be of few bits.

    Args:
        form: of the product as it was.
        folded: its folded form.
        names: what each input of `form` is among those of the folded product.
        shape: of the product.
        dtype: of its operands.
    """
    if form is None or form.calls[0].function not in _PRODUCTS:
        return None
    if folded.added and dtype != _FLOAT:
        return None
    product, *behind = form.calls
    inputs = folded.product.inputs
    writer = _Writer(len(inputs))
    known = {number: inputs.index(name) for number, name in enumerate(names)}
    value = writer.add(product.renumbered(known.__getitem__))
    statistics = inputs.index(folding.STATISTICS)
    rows = [*shape[:-1], 1]
    value = writer.call("multiply", [value, writer.row(statistics, 0, rows)], product.dtype)
    n_rows = 1
    for number, has_row in enumerate(folded.added):
        added = inputs.index(folding.column(number))
        if has_row:
            row = writer.row(statistics, n_rows, rows)
            added = writer.call("multiply", [row, added], _FLOAT)
            n_rows += 1
        value = writer.call("add", [value, added], product.dtype)
    known[form.n_inputs] = value
    for number, call in enumerate(behind, form.n_inputs + 1):
        known[number] = writer.add(call.renumbered(known.__getitem__))
    return TorchForm(len(inputs), writer.calls, form.allow_tf32)


class _Writer:
    """Calls one behind the other; each gives the number of its result."""

    def __init__(self, n_inputs: int) -> None:
        self.calls: list[TorchCall] = []
        self._n_inputs = n_inputs

    def add(self, call: TorchCall) -> int:
        self.calls.append(call)
        return self._n_inputs + len(self.calls) - 1

    def call(self, function: str, operands: list[Any], dtype: str, **options: Any) -> int:
        return self.add(TorchCall(function, operands, options, dtype))

    def row(self, statistics: int, number: int, shape: list[int]) -> int:
        """One of the statistics, with a column for it."""
        one = self.call("narrow", [statistics], _FLOAT, dim=0, start=number, length=1)
        return self.call("reshape", [one], _FLOAT, shape=shape)
