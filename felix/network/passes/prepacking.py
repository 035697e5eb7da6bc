"""What depends on parameters alone is computed once, when a network is loaded.

A scheduled program may begin by copying a weight to the layout that its vectors read
(`felix.tir.design_space.variants.packed_operands`). Where the weight is a parameter of the
network, those statements become a program of their own. Then TVM lifts all calls of parameters
alone out of `main` to a function `main_transform_params`, which takes the parameters as a tuple
and returns those that `main` takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import stmt as s_stmt

from felix.frontend.rewriting import bindings, results_of_call, tensor_type
from felix.network import groups
from felix.network.passes import intermediates

#: The function of a prepacked module that makes the parameters of its `main`.
TRANSFORM = "main_transform_params"


@dataclasses.dataclass(frozen=True, slots=True)
class _Split:
    """A program in two: `prologue` reads the arguments `reads` and writes what `rest` takes.

    `rest` takes the arguments at `stays`, then what the prologue writes, then the results.
    """

    prologue: tirx.PrimFunc
    rest: tirx.PrimFunc
    reads: tuple[int, ...]
    stays: tuple[int, ...]
    packed: tuple[tirx.Buffer, ...]


def prepack(mod: tvm.IRModule) -> tvm.IRModule:
    """The module whose `main` computes nothing that depends on parameters alone.

    `main` has the attribute "num_input": so many of its parameters are those of a call.
    """
    main = mod["main"]
    # TVM would lift the result itself, and leave a `main` that returns nothing that is defined
    if len(main.params) == int(main.attrs["num_input"]) or not _depends_on_inputs(main):
        return mod
    parameters = _parameter_arguments(main)
    splits = {
        symbol: split
        for symbol, places in parameters.items()
        if (split := _split(mod[symbol], places)) is not None
    }
    if splits:
        mod = _with_split_calls(mod, splits)
    return relax.transform.LiftTransformParams()(mod)


def _depends_on_inputs(main: relax.Function) -> bool:
    """Whether the result of a call is not the same in all calls."""
    variables = set(list(main.params)[: int(main.attrs["num_input"])])
    for binding in bindings(main):
        if variables.intersection(relax.analysis.free_vars(binding.value)):
            variables.add(binding.var)
    return bool(variables.intersection(relax.analysis.free_vars(main.body.body)))


def _parameter_arguments(main: relax.Function) -> dict[str, set[int]]:
    """By program: the arguments that are parameters of the network in all of its calls."""
    variables = set(list(main.params)[int(main.attrs["num_input"]) :])
    places: dict[str, set[int]] = {}
    for symbol, call in groups.calls(main):
        here = {i for i, each in enumerate(call.args[1].fields) if each in variables}
        places[symbol] = places.get(symbol, here) & here
    return {symbol: each for symbol, each in places.items() if each}


def _split(func: tirx.PrimFunc, parameters: set[int]) -> _Split | None:
    """The program in two; None where no statement reads parameters alone."""
    root = func.body.block if isinstance(func.body, s_stmt.SBlockRealize) else None
    if root is None or not isinstance(root.body, tirx.SeqStmt):
        return None
    buffers = list(func.params)
    parts, local = list(root.body.seq), list(root.alloc_buffers)
    uses = [intermediates.uses(part) for part in parts]
    known = {buffers[index] for index in parameters}
    chosen: list[int] = []
    for number, (reads, writes) in enumerate(uses):
        elsewhere = {b for other, (_, w) in enumerate(uses) if other != number for b in w}
        if reads and reads <= known and writes <= set(local) - elsewhere:
            chosen.append(number)
            known |= writes
    if not chosen:
        return None
    others = [number for number in range(len(parts)) if number not in chosen]
    made = {buffer for number in chosen for buffer in uses[number][1]}
    read = {buffer for number in others for buffer in uses[number][0]}
    packed = [buffer for buffer in local if buffer in made & read]
    if not all(map(intermediates.is_plain, packed)):
        return None
    sources = {buffer for number in chosen for buffer in uses[number][0]}
    places = [index for index, buffer in enumerate(buffers) if buffer in sources]
    written = {buffer for number in others for buffer in uses[number][1]}
    stays = [index for index, buffer in enumerate(buffers) if buffer in read | written]
    results = [index for index in stays if buffers[index] in written]
    inputs = [index for index in stays if index not in results]
    if results != list(range(len(buffers)))[-len(results) :]:
        return None  # call_tir's results come last, and all are written
    inner = [buffer for buffer in local if buffer in made and buffer not in packed]
    outer = [buffer for buffer in local if buffer not in made]
    return _Split(
        intermediates.program(
            func,
            [buffers[index] for index in places] + packed,
            [parts[number] for number in chosen],
            inner,
        ),
        intermediates.program(
            func,
            [buffers[index] for index in inputs] + packed + [buffers[index] for index in results],
            [parts[number] for number in others],
            outer,
        ),
        tuple(places),
        tuple(inputs),
        tuple(packed),
    )


def _with_split_calls(mod: tvm.IRModule, splits: Mapping[str, _Split]) -> tvm.IRModule:
    """The module with calls of programs made calls of their two parts."""
    variables: dict[str, tuple[Any, Any]] = {}

    def rewritten(builder: relax.BlockBuilder, symbol: str, call: relax.Call) -> Any:
        split = splits.get(symbol)
        if split is None:
            return call
        if symbol not in variables:
            variables[symbol] = (
                builder.add_func(split.prologue, f"{symbol}_prologue"),
                builder.add_func(split.rest, f"{symbol}_rest"),
            )
        prologue, rest = variables[symbol]
        arguments = list(call.args[1].fields)
        kinds, read = list(map(tensor_type, split.packed)), [arguments[i] for i in split.reads]
        made = relax.call_tir(prologue, relax.Tuple(read), kinds)
        packed = results_of_call(builder, made, len(kinds))
        operands = relax.Tuple([*(arguments[i] for i in split.stays), *packed])
        return relax.call_tir(rest, operands, list(call.ty_args))

    return groups.with_calls(mod, rewritten, ["main"])
