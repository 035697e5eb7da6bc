"""Attentions cut out of a lowered network, and PyTorch's operator in their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import tvm
from tvm import relax
from tvm_ffi import structural

from felix.frontend import rewriting
from felix.frontend.pytorch import calling
from felix.network import groups, imported
from felix.network.attentions.finding import Attention, Step
from felix.torch_calls import functions
from felix.torch_calls.form import register


def alone(lowered: tvm.IRModule, attention: Attention) -> tvm.IRModule:
    """A network of the programs of an attention; its inputs are the variables that they read."""
    values = {b.var: b.value for b in rewriting.bindings(lowered["main"])}
    symbols = {groups.called(values[member]) for member in attention.members} - {None}
    programs = {lowered.get_global_var(s): lowered[s] for s in sorted(map(str, symbols))}
    new = _parameters(attention)
    parameters = list(new.values())

    def result(builder: relax.BlockBuilder) -> Any:
        *others, last = attention.members
        for member in others:
            new[member] = builder.emit(_renamed(values[member], new))
        return _renamed(values[last], new)

    return rewriting.with_function(tvm.IRModule(programs), parameters, result)


def operator(programs: tvm.IRModule, attention: Attention) -> tvm.IRModule:
    """A network of PyTorch's operator; its inputs are those of `alone`.

    Args:
        programs: `alone`, of which one stays: a library needs machine code.
    """
    (one, *_) = [v for v in programs.get_global_vars() if v.name_hint != "main"]
    new = _parameters(attention)
    return rewriting.with_function(
        tvm.IRModule({one: programs[one]}),
        list(new.values()),
        lambda builder: _emitted(builder, attention.steps, new, {}),
    )


def with_operators(lowered: tvm.IRModule, attentions: Sequence[Attention]) -> tvm.IRModule:
    """The network with PyTorch's operator in the places of attentions.

    What they share is computed once: the conversion of a mask that all layers have. Programs that
    nothing calls any more are left out, but for one if no other is left.
    """
    by_result = {each.result: each for each in attentions}
    made: dict[Any, Any] = {}

    def emit(builder: relax.BlockBuilder, binding: Any) -> None:
        attention = by_result.get(binding.var)
        if attention is not None:
            call = builder.normalize(_emitted(builder, attention.steps, {}, made))
            binding = relax.VarBinding(binding.var, call)
        builder.emit_normalized(binding)

    return _without_dead(rewriting.rebuilt(lowered, emit))


def _without_dead(mod: tvm.IRModule) -> tvm.IRModule:
    left = relax.transform.DeadCodeElimination(["main"])(mod)
    if len(left.get_global_vars()) > 1:
        return left
    one = next(v.name_hint for v in mod.get_global_vars() if v.name_hint != "main")
    return relax.transform.DeadCodeElimination(["main", one])(mod)


def _parameters(attention: Attention) -> dict[Any, Any]:
    """A parameter for each variable that an attention reads; constants stay."""
    variables = [each for each in attention.inputs if isinstance(each, relax.Var)]
    return {each: relax.Var(f"x{number}", each.ty) for number, each in enumerate(variables)}


def _emitted(
    builder: relax.BlockBuilder,
    steps: Sequence[Step],
    new: Mapping[Any, Any],
    made: dict[Any, Any],
) -> Any:
    """The call of the last step; the earlier ones are emitted, unless they are made already."""
    results: list[Any] = []
    for step in steps[:-1]:
        call = _call(step, results, new)
        key = step.form.key, tuple(map(_identity, call.args[1].fields))
        if key not in made:
            made[key] = builder.emit(call)
        results.append(made[key])
    return _call(steps[-1], results, new)


def _call(step: Step, results: Sequence[Any], new: Mapping[Any, Any]) -> Any:
    """The packed call of a form."""
    inputs = [results[e] if isinstance(e, int) else new.get(e, e) for e in step.inputs]
    tensors = [
        torch.empty(
            tuple(map(int, e.ty.shape)), dtype=imported.torch_dtype(str(e.ty.dtype)), device="meta"
        )
        for e in inputs
    ]
    result = functions.result(step.form.to_json(), tensors)
    kind = relax.TensorType(list(result.shape), calling.dtype_name(result.dtype))
    name = register(step.form)
    return relax.call_dps_packed(name, relax.Tuple(inputs), kind)


def _identity(expression: Any) -> Any:
    """Equal for the same variable and for equal scalars."""
    if isinstance(expression, relax.Var):
        return expression
    return str(expression.ty.dtype), tuple(expression.ty.shape), str(expression)


def _renamed(value: Any, new: Mapping[Any, Any]) -> Any:
    """An expression that reads other variables."""
    return structural.structural_map(value, (relax.Var, lambda each: new.get(each, each)))
