"""Groups of calls as functions and programs of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, s_tir, sym, tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural

from felix.frontend import rewriting
from felix.frontend.programs.groups import Call
from felix.frontend.rewriting import operator_name
from felix.tir import grammar

# Names of the programs that compute a model's values in another way than the model does.
#
# They are part of the names of their groups, so a report can say what became of a group.

#: A product whose epilogue scales rows, and the programs that give it statistics and weights.
NORMED_PRODUCT, NORM_STATISTICS, NORM_WEIGHTS = "normed_product", "norm_statistics", "norm_weights"
#: A product that computes what several do, the parts of its result, and its weights.
MERGED_PRODUCT, MERGED_PART, MERGED_WEIGHTS = "merged_product", "merged_part", "merged_weights"

_MEANING = {
    NORMED_PRODUCT: "a norm is folded into its product",
    MERGED_PRODUCT: "products of one tensor are one product",
    NORM_STATISTICS: "it has the statistics of rows for products that a norm is folded into",
}


def meaning(symbol: str) -> str | None:
    """What is another way in a program of this name; None if it computes as the model does."""
    said = [text for name, text in _MEANING.items() if name in symbol]
    return "; ".join(said) or None


def normed(symbol: str) -> str:
    """The name of a product of this name with a norm folded into it."""
    is_merged = MERGED_PRODUCT in symbol
    return f"{MERGED_PRODUCT}_{NORMED_PRODUCT}" if is_merged else NORMED_PRODUCT


def first(words: list[str]) -> list[str]:
    """The words of a name, those of this module in front, so that they are never cut off."""
    return sorted(words, key=lambda word: meaning(word) is None)


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

    return rewriting.rebuilt(mod, emit)


def call_of(builder: relax.BlockBuilder, group: Sequence[Call], renamed: Mapping[Any, Any]) -> Any:
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
    return f"fused_{'_'.join(first(words))}"[:_MAX_NAME]


# Moves of elements inside a program, made part of the indices of what reads them.
#
# A slice, a view and a transposition in front of a product become the product's reads of the
# tensor that they move, with indices as simple as they are: x[s, 64 * h + d], not a division and
# a remainder that cancel.


def inline_moves(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function without blocks that only move elements to others; itself if it has none."""
    inner = [block for block in grammar.blocks(func.body) if len(block.iter_vars)]
    if len(inner) < 2:
        return func
    schedule = s_tir.Schedule(func, debug_mask="none")
    n_inlined = sum(_inline(schedule, block) for block in inner if is_move(block))
    if not n_inlined:
        return func
    func = schedule.mod["main"]
    rule = (s_tir.SBlock, _with_simple_reads)
    return func.with_body(structural.structural_map(func.body, rule))


def _inline(schedule: s_tir.Schedule, block: Any) -> bool:
    """Whether a block could be made part of its readers: what a function returns cannot."""
    try:
        schedule.compute_inline(schedule.get_sblock(str(block.name_hint), func_name="main"))
    except grammar.SCHEDULE_ERRORS:
        return False
    return True


def is_move(block: Any) -> bool:
    """Whether a block does nothing but store elements that it reads at known places."""
    body = block.body
    return (
        block.init is None
        and isinstance(body, tirx.BufferStore)
        and isinstance(body.value, TensorLoad)
        and not any(map(grammar.depends_on_data, body.value.indices))
    )


def _with_simple_reads(block: s_tir.SBlock) -> s_tir.SBlock:
    domains = {each.var: each.dom for each in block.iter_vars}
    if not domains:
        return block

    written = [each.source for each in block.writes]

    def simple_load(load: TensorLoad) -> Any:
        if any(load.source.same_as(each) for each in written):
            return load  # a sum is known by reading what it stores
        return tirx.BufferLoad(load.source, [_simple(index, domains) for index in load.indices])

    body = structural.structural_map(block.body, (TensorLoad, simple_load))

    def simple_range(each: Any) -> Any:
        return tvm.ir.Range.from_min_extent(_simple(each.min, domains), each.extent)

    reads = [
        tirx.BufferRegion(each.source, list(map(simple_range, each.region)))
        for each in block.reads
    ]
    return grammar.changed(block, reads=reads, body=body)


def _simple(index: Any, domains: Mapping[Any, Any]) -> Any:
    """An index in its simplest form, for variables in their domains."""
    analyzer = sym.Analyzer()
    for variable, domain in domains.items():
        analyzer.bind(variable, domain)
    (simple,) = sym.iter_map_simplify([analyzer.simplify(index, 4)], domains, True, 0, False)
    return analyzer.simplify(simple, 4)


# The programs of candidates, made as the chosen groups' are.


def fused(outlined: tvm.IRModule) -> tvm.IRModule:
    """The module with primitive functions as programs, without moves inside of them."""
    made = relax.transform.FuseTIR()(outlined)
    for variable, func in made.functions_items():
        if isinstance(func, tirx.PrimFunc):
            simple = inline_moves(func)
            if not simple.same_as(func):
                made.update_func(variable, simple)
    return made


def of_groups(mod: tvm.IRModule, groups: Sequence[Sequence[Call]]) -> list[tirx.PrimFunc]:
    """The program of each of some groups of a module, which need not go together.

    Args:
        mod: with operators lowered.
        groups: in each the order of execution.
    """
    inputs = {operand: None for group in groups for operand in arguments_of(group)}
    params = {var: relax.Var(f"x{n}", var.ty) for n, var in enumerate(inputs)}

    def results(builder: relax.BlockBuilder) -> relax.Tuple:
        return relax.Tuple([builder.emit(call_of(builder, group, params)) for group in groups])

    scratch = rewriting.with_function(mod, list(params.values()), results, "felix_programs")
    scratch["main"] = scratch["felix_programs"].with_attr("global_symbol", "main")
    del scratch["felix_programs"]
    made = fused(scratch)
    values = [binding.value for binding in rewriting.bindings(made["main"])]
    return [made[each.args[0]] for each in values if operator_name(each) == "call_tir"]
