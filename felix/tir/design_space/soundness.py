"""Whether what a schedule rule of TVM left is a program at all, and one that TVM can build."""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import stmt as s_stmt
from tvm_ffi import structural

from felix import errors
from felix.tir import grammar


def is_sound(mod: tvm.IRModule) -> bool:
    """Whether every buffer of a scheduled program is declared.

    TVM's AutoInline moves a block into its producer although others read the producer, too, whose
    buffer is then gone.
    """
    return bool(s_tir.analysis.verify_well_formed(mod["main"], assert_mode=False))


def check_reductions(mod: tvm.IRModule) -> None:
    """See that TVM can lower the reductions that a schedule spreads over threads of a GPU.

    It knows few operators there, each with the start that changes nothing: no maximum that starts
    at 0, no `any` and `all`. A reduction whose guard joins its terms with a spatial loop it leaves
    as it is, without an error: all threads would then store to one element at once.

    Raises:
        UnsupportedSchedule: it cannot, whatever the schedule's decisions.
    """
    try:
        lowered = s_tir.transform.LowerCrossThreadReduction()(mod)
    except grammar.SCHEDULE_ERRORS as error:
        raise errors.UnsupportedSchedule(
            "TVM cannot spread the reduction over threads, by its operator or what it starts from"
        ) from error
    if _is_racing(lowered["main"]):
        raise errors.UnsupportedSchedule(
            "TVM cannot spread the reduction over threads: its last part is shorter"
        )


def _is_racing(func: tirx.PrimFunc) -> bool:
    """Whether a block that starts and combines terms still has threads that share its results."""
    threads: list[tirx.Var] = []
    reductions: list[s_stmt.SBlockRealize] = []

    def note_loop(loop: tirx.For) -> None:
        binding = loop.thread_binding
        if binding is not None and str(binding.thread_tag).startswith("threadIdx"):
            threads.append(loop.loop_var)

    def note_block(realize: s_stmt.SBlockRealize) -> None:
        if realize.block.init is not None:
            reductions.append(realize)

    visitors = ((tirx.For, note_loop), (s_stmt.SBlockRealize, note_block))
    structural.structural_walk(func.body, visitors)
    terms = [
        value
        for realize in reductions
        for each, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
        if each.iter_type == tirx.IterVar.CommReduce
    ]
    used = [var for value in terms for var in tirx.analysis.undefined_vars(value)]
    return any(var.same_as(thread) for var in used for thread in threads)
