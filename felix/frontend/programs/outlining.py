"""Groups of calls as functions of their own, which `FuseTIR` makes one program each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from felix.frontend.programs.groups import Call

#: Characters of a function's name; programs carry it through generated code.
_MAX_NAME = 60


def outline(mod: tvm.IRModule, groups: Sequence[Sequence[Call]]) -> tvm.IRModule:
    """The module with every group of several calls as a primitive function that `main` calls.

    Args:
        mod: with operators lowered.
        groups: in each the order of execution; the last call gives the value that others read. A
            call may be in several groups, and is one by itself where others read its value.
    """
    main = mod["main"]
    values = {b.var: b.value for block in main.body.blocks for b in block.bindings}
    several = {group[-1].var: group for group in groups if len(group) > 1}
    roots = {group[-1].var for group in groups}
    inner = {call.var for group in several.values() for call in group[:-1]} - roots
    builder = relax.BlockBuilder(mod)
    with builder.function("felix_outlined", list(main.params)):
        with builder.dataflow():
            for block in main.body.blocks:
                for binding in block.bindings:
                    if binding.var in inner:
                        continue
                    if binding.var in several:
                        call = call_of(builder, several[binding.var], values, {})
                        builder.emit_normalized(relax.VarBinding(binding.var, call))
                    else:
                        builder.emit_normalized(binding)
            output = builder.emit_output(main.body.body)
        builder.emit_func_output(output)
    outlined = builder.get()
    function = outlined["felix_outlined"].without_attr("global_symbol")
    for name, value in (main.attrs or {}).items():
        function = function.with_attr(name, value)
    del outlined["felix_outlined"]
    outlined["main"] = function
    return outlined


def call_of(
    builder: relax.BlockBuilder,
    group: Sequence[Call],
    values: Mapping[Any, Any],
    renamed: Mapping[Any, Any],
) -> Any:
    """A call of a new primitive function that has the group's calls.

    Args:
        values: what computes each variable of `main`.
        renamed: what stands for variables from outside; others stand for themselves.
    """
    members = {call.var for call in group}
    arguments: list[Any] = []
    for call in group:
        for operand in values[call.var].args[1].fields:
            if operand not in members and operand not in arguments:
                arguments.append(operand)
    parameters = [relax.Var(f"p{i}", item.ty) for i, item in enumerate(arguments)]
    new: dict[Any, Any] = dict(zip(arguments, parameters, strict=True))
    bindings = []
    for call in group:
        value = values[call.var]
        operands = relax.Tuple([new[operand] for operand in value.args[1].fields])
        is_last = call is group[-1]
        kind = relax.Var if is_last else relax.DataflowVar
        new[call.var] = kind(str(call.var.name), call.var.ty)
        inner = relax.Call(value.op, [value.args[0], operands], value.attrs, value.ty_args)
        bindings.append(relax.VarBinding(new[call.var], inner))
    result = new[group[-1].var]
    function = relax.Function(
        parameters, relax.SeqExpr([relax.DataflowBlock(bindings)], result), result.ty
    )
    variable = builder.add_func(function.with_attr("Primitive", True), _name(group, values))
    return builder.normalize(relax.Call(variable, [renamed.get(a, a) for a in arguments]))


def _name(group: Sequence[Call], values: Mapping[Any, Any]) -> str:
    words = [re.sub(r"\d+$", "", values[call.var].args[0].name_hint) for call in group]
    return f"fused_{'_'.join(words)}"[:_MAX_NAME]
