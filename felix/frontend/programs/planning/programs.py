"""The programs of candidates, made as the chosen groups' are."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, tirx

from felix.frontend.programs import inlining, outlining
from felix.frontend.programs.groups import Call
from felix.frontend.rewriting import operator_name


def fused(outlined: tvm.IRModule) -> tvm.IRModule:
    """The module with primitive functions as programs, without moves inside of them."""
    made = relax.transform.FuseTIR()(outlined)
    for variable, func in made.functions_items():
        if isinstance(func, tirx.PrimFunc):
            simple = inlining.inline_moves(func)
            if not simple.same_as(func):
                made.update_func(variable, simple)
    return made


def of_groups(mod: tvm.IRModule, groups: Sequence[Sequence[Call]]) -> list[tirx.PrimFunc]:
    """The program of each of some groups of a module, which need not go together.

    Args:
        mod: with operators lowered.
        groups: in each the order of execution.
    """
    builder = relax.BlockBuilder(mod)
    inputs = {operand: None for group in groups for operand in outlining.arguments_of(group)}
    params = {var: relax.Var(f"x{n}", var.ty) for n, var in enumerate(inputs)}
    with builder.function("felix_programs", list(params.values())):
        with builder.dataflow():
            results = [builder.emit(outlining.call_of(builder, group, params)) for group in groups]
            output = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(output)
    scratch = builder.get()
    scratch["main"] = scratch["felix_programs"].with_attr("global_symbol", "main")
    del scratch["felix_programs"]
    made = fused(scratch)
    calls = [
        binding.value
        for block in made["main"].body.blocks
        for binding in block.bindings
        if operator_name(binding.value) == "call_tir"
    ]
    return [made[call.args[0]] for call in calls]
