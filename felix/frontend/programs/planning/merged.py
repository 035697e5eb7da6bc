"""Products of one tensor as one product, as another way to compute each.

Queries, keys and values are products of the same tensor, and so are a gate and what it gates. One
product with all their weights reads the tensor once and is launched once; each one's result is a
part of its result, which whoever reads it may read in place. Casts, and elementwise operators with
parameters (biases), behind each product are in the one product as well.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from felix.frontend import torch_forms
from felix.frontend.programs import groups, outlining
from felix.frontend.programs.planning import reading, rewriting
from felix.frontend.programs.planning.graph import Role
from felix.frontend.programs.planning.rewriting import Widened
from felix.tir import grammar
from felix.torch_calls.form import TorchCall, TorchForm

#: Operators behind a product that may be in the one product.
MAX_BEHIND = 3


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A product with operators behind it, and its program.

    Attributes:
        group: the calls.
        weight: the number of the weights among what the group reads.
        form: its program.
    """

    group: Sequence[groups.Call]
    weight: int
    form: Widened

    def torch_form(self, mod: tvm.IRModule) -> TorchForm | None:
        """What PyTorch computes, however many columns there are; None if that is not known."""
        steps = [(call.var, call.value) for call in self.group]
        form = torch_forms.of_calls(mod, steps, outlining.arguments_of(self.group))
        if isinstance(form, str) or any("shape" in call.options for call in form.calls):
            return None
        return form


def extended(read: reading.Reading) -> reading.Reading:
    """The reading with products of one tensor as one, too."""
    rewritings: dict[Any, list[rewriting.Rewriting]] = defaultdict(list)
    for numbers in _of_one_tensor(read):
        chains = [_chain(read, number) for number in numbers]
        for length in range(min(map(len, chains)), 0, -1):
            parts = _parts(read, [chain[:length] for chain in chains])
            whole = _whole(parts)
            if whole is not None:
                func = torch_forms.annotated(whole.func, parts[0].torch_form(read.mod))
                _add(rewritings, parts, dataclasses.replace(whole, func=func))
                break
    return rewriting.extended(read, rewritings)


def _of_one_tensor(read: reading.Reading) -> list[list[int]]:
    """The products of each tensor by constants, where there are several."""
    graph = read.graph
    products = defaultdict(list)
    for number, operator in enumerate(graph.operators):
        values = [each.value for each in operator.reads]
        computed = [value for value in values if read.variable(value) not in read.constants]
        if operator.role is Role.CONTRACTION and len(values) == 2 and len(computed) == 1:
            if graph.is_own(number):
                products[computed[0]].append(number)
    return [numbers for numbers in products.values() if len(numbers) > 1]


def _chain(read: reading.Reading, product: int) -> list[int]:
    """A product, and what is computed of its result alone by constants, one behind the other."""
    graph, chain = read.graph, [product]
    while len(chain) <= MAX_BEHIND and chain[-1] not in graph.outputs:
        (reader, *others) = sorted(graph.readers[chain[-1]]) or [-1]
        if reader < 0 or others:
            break
        operator = graph.operators[reader]
        rest = {each.value for each in operator.reads} - {chain[-1]}
        is_plain = operator.role in (Role.CAST, Role.ELEMENTWISE)
        is_like = operator.shape == graph.operators[product].shape
        if not (is_plain and is_like and all(read.variable(v) in read.constants for v in rest)):
            break
        chain.append(reader)
    return chain


def _parts(read: reading.Reading, chains: Sequence[Sequence[int]]) -> list[_Part]:
    """The chains that have a program which can have more columns."""
    every = [[read.calls[number] for number in chain] for chain in chains]
    parts = []
    for group, func in zip(every, outlining.of_groups(read.mod, every), strict=True):
        (weight,) = [var for var in group[0].value.args[1].fields if var in read.constants]
        arguments, checked = outlining.arguments_of(group), rewriting.checked(func)
        if checked is None:
            continue
        number = arguments.index(weight)
        form = rewriting.widened(checked, number)
        if form is not None and all(arguments[n] in read.constants for n in _widened(form)):
            parts.append(_Part(group, number, form))
    return parts if len(parts) == len(chains) else []


def _widened(form: Widened) -> list[int]:
    """The numbers of what a program reads that has its columns."""
    return [n for n in form.dimensions if n != len(form.func.params) - 1]


def _whole(parts: Sequence[_Part]) -> Widened | None:
    """The one program of all, which differ in their columns alone; None if in more."""
    total = sum(part.form.extent for part in parts)
    made = [rewriting.widened(part.form.func, part.weight, total) for part in parts]
    first = made[0] if made else None
    if first is None:
        return None
    is_one = all(
        each is not None and tvm_ffi.structural_equal(each.func, first.func) for each in made
    )
    return first if is_one else None


def _add(
    rewritings: dict[Any, list[rewriting.Rewriting]], parts: Sequence[_Part], whole: Widened
) -> None:
    """Add the one product in front of the first one, and each one's part of it."""
    merged: list[groups.Call] = []

    def product(builder: relax.BlockBuilder) -> rewriting.Added:
        operands = list(outlining.arguments_of(parts[0].group))
        for number in _widened(whole):
            each = [outlining.arguments_of(part.group)[number] for part in parts]
            shapes = [grammar.shape(part.form.func.params[number]) for part in parts]
            axis, like = whole.dimensions[number], whole.func.params[number]
            func = rewriting.concatenation(shapes, axis, like)
            (operands[number],) = rewriting.emitted(builder, func, each, outlining.MERGED_WEIGHTS)
        merged.append(
            rewriting.called(
                builder, whole.func, operands, outlining.MERGED_PRODUCT, rewriting.PRODUCT
            )
        )
        return rewriting.Added(new=merged)

    def part_of(part: _Part, begin: int) -> rewriting.Rewriting:
        def add(builder: relax.BlockBuilder) -> rewriting.Added:
            result = whole.func.params[-1]
            axis, extent = whole.of_result, part.form.extent
            func = rewriting.slice_of(grammar.shape(result), axis, begin, begin + extent, result)
            options = {"dim": axis, "start": begin, "length": extent}
            form = TorchForm(1, [TorchCall("narrow", [0], options, str(result.dtype))])
            stand_in = rewriting.called(
                builder,
                torch_forms.annotated(func, form),
                [merged[0].var],
                outlining.MERGED_PART,
                rewriting.MOVE,
                part.group[-1].var,
            )
            return rewriting.Added(stand_ins=[stand_in])

        return add

    rewritings[parts[0].group[0].var].append(product)
    begin = 0
    for part in parts:
        rewritings[part.group[-1].var].append(part_of(part, begin))
        begin += part.form.extent
