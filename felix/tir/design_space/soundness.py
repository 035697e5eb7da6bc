"""Whether what a schedule rule of TVM left is a program at all, and one that TVM can build."""

from __future__ import annotations

import tvm
from tvm import s_tir

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
    at 0, no `any` and `all`.

    Raises:
        UnsupportedSchedule: it cannot, whatever the schedule's decisions.
    """
    try:
        s_tir.transform.LowerCrossThreadReduction()(mod)
    except grammar.TVM_ERRORS as error:
        raise errors.UnsupportedSchedule(
            "TVM cannot spread the reduction over threads, by its operator or what it starts from"
        ) from error
