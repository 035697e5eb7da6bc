"""Attention in a lowered network: programs that PyTorch computes by one operator.

An attention is softmax(q @ k^T * scale + bias) @ v, or with a causal mask, of programs whose
forms say so (`felix.frontend.torch_forms`), however they are grouped. To it belong moves of
elements that nothing else reads: splits, transpositions, views. PyTorch's operator reads and
writes through views, so it takes the place of all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tvm

from felix.network.attentions.graph import Graph, Value, form_of
from felix.torch_calls.form import TorchForm

_VIEWS = frozenset(("permute", "reshape"))
_MOVES = _VIEWS | {"narrow"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A form, and what it reads: values of `main`, or the result of an earlier step by number."""

    form: TorchForm
    inputs: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """An attention of `main`.

    Attributes:
        result: the variable of `main` that it gives.
        members: variables that it makes superfluous, `result` among them, in the order of `main`.
        inputs: what the members read from outside: variables and constants of `main`.
        steps: what PyTorch calls: of a bias its conversion, if there is one; then the rest.
    """

    result: Any
    members: tuple[Any, ...]
    inputs: tuple[Any, ...]
    steps: tuple[Step, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Scores:
    """What a softmax is taken of."""

    query: Value
    key: Value
    #: whether the key is as it is multiplied, [..., d, t]
    is_transposed: bool
    scale: float = 1.0
    bias: Value | None = None
    is_causal: bool = False


def find(lowered: tvm.IRModule) -> list[Attention]:
    """The attentions of a lowered network, in the order of `main`."""
    graph = Graph(lowered)
    found = []
    for value in graph.values:
        if value.function in ("softmax", "masked_softmax"):
            attention = _of_softmax(graph, value)
            if attention is not None:
                found.append(attention)
    return found


def _of_softmax(graph: Graph, softmax: Value) -> Attention | None:
    scores = _scores(softmax.operands[0])
    weights, product = _only_reader(graph, softmax), None
    while weights is not None and weights.function == "to":
        weights = _only_reader(graph, weights)
    if weights is not None and weights.function == "matmul":
        product = weights
    if scores is None or product is None or softmax.options.get("dim", -1) != -1:
        return None
    source = product.operands[0]
    while source.function == "to" and source is not softmax:
        source = source.operands[0]
    if source is not softmax:
        return None
    result = _result(graph, product)
    if result is None:
        return None
    members = _members(graph, result, _owners(softmax, scores, product, result))
    if members is None:
        return None
    outside = (each for member in members for each in graph.reads[member] if each not in members)
    return Attention(
        result=result.owner,
        members=members,
        inputs=tuple(dict.fromkeys(outside)),
        steps=tuple(_steps(members, product, scores, result)),
    )


def _scores(value: Any) -> _Scores | None:
    """Products of queries and keys, scaled and masked; None if the value is something else."""
    if not isinstance(value, Value):
        return None
    operands = value.operands
    match value.function:
        case "to":
            return _scores(operands[0])
        case "matmul_transposed":
            return _Scores(operands[0], operands[1], is_transposed=False)
        case "matmul":
            return _Scores(operands[0], operands[1], is_transposed=True)
        case "multiply" | "divide":
            return _scaled(value)
        case "causal_mask":
            below = _scores(operands[0])
            is_plain = below is not None and below.bias is None and not below.is_causal
            return dataclasses.replace(below, is_causal=True) if below and is_plain else None
        case "add":
            return _biased(operands)
    return None


def _scaled(value: Value) -> _Scores | None:
    factors = [_constant(operand) for operand in value.operands]
    if (factors[0] is None) == (factors[1] is None):
        return None
    number = int(factors[1] is not None)
    factor, below = factors[number], _scores(value.operands[1 - number])
    if below is None or below.bias is not None or below.is_causal or factor is None:
        return None
    if value.function == "divide":
        if number == 0 or factor == 0:
            return None
        factor = 1 / factor
    return dataclasses.replace(below, scale=below.scale * factor)


def _biased(operands: Sequence[Any]) -> _Scores | None:
    for scores, bias in (operands, operands[::-1]):
        below = _scores(scores)
        if below is not None and below.bias is None and not below.is_causal:
            return dataclasses.replace(below, bias=bias) if isinstance(bias, Value) else None
    return None


def _constant(operand: Any) -> float | None:
    """The value of a scalar that the network has."""
    if isinstance(operand, dict):
        return float(operand["constant"])
    return operand.constant if isinstance(operand, Value) else None


def _only_reader(graph: Graph, value: Value) -> Value | None:
    readers = graph.readers[value]
    is_result = value.expression is not None and None in graph.read_by[value.expression]
    return readers[0] if len(readers) == 1 and not is_result else None


def _result(graph: Graph, product: Value) -> Value | None:
    """What the programs end with: the product's group, and views behind it."""
    value: Value | None = product
    while value is not None and value.expression is None:
        value = _only_reader(graph, value)
    following = value
    while following is not None and following.expression is not None:
        value, following = following, _only_reader(graph, following)
        if following is not None and following.function not in _VIEWS:
            return value
    return value


def _owners(softmax: Value, scores: _Scores, product: Value, result: Value) -> set[Any]:
    """The variables of the programs that have to be members."""
    owners = {softmax.owner, product.owner, result.owner}
    stack: list[Any] = [softmax.operands[0]]
    while stack:
        value = stack.pop()
        if isinstance(value, Value) and value is not scores.bias:
            owners.add(value.owner)
            if not value.function.startswith("matmul"):
                stack.extend(value.operands)
    return owners - {None}


def _members(graph: Graph, result: Value, needed: set[Any]) -> tuple[Any, ...] | None:
    """The variables that nothing reads but the attention; None if one of `needed` is read."""
    members: set[Any] = {result.owner}
    for variable in reversed(graph.order[: graph.order.index(result.owner)]):
        is_taken = variable in needed or graph.is_only(variable, _MOVES)
        if is_taken and graph.read_by[variable] <= members:
            members.add(variable)
    if not needed <= members:
        return None
    # A part of a tensor that others read parts of is what the attention reads.
    return tuple(each for each in graph.order if each in members and graph.wholes(each) <= members)


def _steps(members: Sequence[Any], product: Value, scores: _Scores, result: Value) -> list[Step]:
    """What PyTorch calls for an attention, its operator in the place of the second product."""
    inside, dtype = set(members), scores.query.dtype
    bias, steps = scores.bias, []
    swapped = Value("swap_last", (scores.key,), {}, scores.key.dtype)
    key = swapped if scores.is_transposed else scores.key
    operands = [scores.query, key, product.operands[1]]
    if bias is not None and bias.dtype != dtype:
        narrowed = Value("attention_bias", (bias,), {"dtype": dtype}, dtype)
        form, inputs = form_of(narrowed, lambda v: v is narrowed or v.owner in inside)
        steps.append(Step(form, tuple(each.expression for each in inputs)))
        operands.append(Value("", (), {}, dtype, expression=0))
    elif bias is not None:
        operands.append(bias)
    options = {"scale": scores.scale, "is_causal": scores.is_causal}
    fused = dataclasses.replace(
        product, function="attention", operands=tuple(operands), options=options
    )
    new = {product: fused}

    def is_inside(value: Value) -> bool:
        return value is swapped or value.owner in inside

    form, inputs = form_of(result, is_inside, new)
    return [*steps, Step(form, tuple(each.expression for each in inputs))]
