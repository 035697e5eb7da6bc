"""Groups of calls as functions of their own, which `FuseTIR` makes one program each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from felix.frontend.programs import rewritten
from felix.frontend.programs.groups import Call

#: Characters of a function's name; programs carry it through generated code.
_MAX_NAME = 60


def outline(mod: tvm.IRModule, groups: Sequence[Sequence[Call]]) -> tvm.IRModule:
    """The module with every group of several calls as a primitive function that `main` calls.

    Args:
        mod: with operators lowered.
        groups: in each the order of execution; the last call gives the value that others read. A
            call may be in several groups, and is one by itself where others read its value. It
            may be another one than `main` has for the variable.
    """
    several = {group[-1].var: group for group in groups if len(group) > 1}
    alone = {group[0].var: group[0].value for group in groups if len(group) == 1}
    roots = {group[-1].var for group in groups}
    inner = {call.var for group in several.values() for call in group[:-1]} - roots

    def emit(builder: relax.BlockBuilder, binding: Any) -> None:
        if binding.var in several:
            value = call_of(builder, several[binding.var], {})
            builder.emit_normalized(relax.VarBinding(binding.var, value))
        elif binding.var in alone:
            builder.emit_normalized(relax.VarBinding(binding.var, alone[binding.var]))
        elif binding.var not in inner:
            builder.emit_normalized(binding)

    return rebuilt(mod, emit)


def rebuilt(mod: tvm.IRModule, emit: Callable[[relax.BlockBuilder, Any], None]) -> tvm.IRModule:
    """The module with `main` made anew: `emit` says what becomes of each binding."""
    main = mod["main"]
    builder = relax.BlockBuilder(mod)
    with builder.function("felix_main", list(main.params)):
        with builder.dataflow():
            for block in main.body.blocks:
                for binding in block.bindings:
                    emit(builder, binding)
            output = builder.emit_output(main.body.body)
        builder.emit_func_output(output)
    made = builder.get()
    function = made["felix_main"].without_attr("global_symbol")
    for name, value in (main.attrs or {}).items():
        function = function.with_attr(name, value)
    del made["felix_main"]
    made["main"] = function
    return made


def call_of(
    builder: relax.BlockBuilder,
    group: Sequence[Call],
    renamed: Mapping[Any, Any],
) -> Any:
    """A call of a new primitive function that has the group's calls.

    Args:
        renamed: what stands for variables from outside; others stand for themselves.
    """
    arguments = arguments_of(group)
    parameters = [relax.Var(f"p{i}", item.ty) for i, item in enumerate(arguments)]
    new: dict[Any, Any] = dict(zip(arguments, parameters, strict=True))
    bindings = []
    for call in group:
        value = call.value
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
    variable = builder.add_func(function.with_attr("Primitive", True), _name(group))
    return builder.normalize(relax.Call(variable, [renamed.get(a, a) for a in arguments]))


def arguments_of(group: Sequence[Call]) -> list[Any]:
    """What a group reads and does not compute itself, in the order in which it is read."""
    members = {call.var for call in group}
    operands = [operand for call in group for operand in call.value.args[1].fields]
    return list(dict.fromkeys(operand for operand in operands if operand not in members))


def _name(group: Sequence[Call]) -> str:
    words = [re.sub(r"\d+$", "", call.value.args[0].name_hint) for call in group]
    return f"fused_{'_'.join(rewritten.first(words))}"[:_MAX_NAME]
