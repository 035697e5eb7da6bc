"""Shared memory of a GPU kernel: static up to 48 KiB, dynamic above.

A kernel states static shared memory itself, up to `STATIC_BYTES` on every GPU. More is asked for
at its launch, up to the target's limit; TVM's name for that memory is "shared.dyn". MetaSchedule's
rules cache in static memory. A schedule that needs more is the same trace with the other scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Instruction, Trace
from tvm.target import Target

STATIC_BYTES = 48 * 1024
STATIC, DYNAMIC = "shared", "shared.dyn"
_LIMIT = "max_shared_memory_per_block"
#: Instructions with the scope of a buffer among their attributes.
_SCOPED = ("CacheRead", "CacheWrite", "SetScope")


def static_target(target: Target) -> Target:
    """The target with at most the limit of static shared memory."""
    limit = target.attrs.get(_LIMIT)
    if limit is None or int(limit) <= STATIC_BYTES:
        return target
    return Target(dict(target.export()) | {_LIMIT: STATIC_BYTES})


def uses_static(trace: Trace) -> bool:
    """Whether a trace caches in static shared memory."""
    return any(_has_scope(inst, STATIC) for inst in trace.insts)


def is_dynamic(trace: Trace) -> bool:
    """Whether a trace caches in dynamic shared memory."""
    return any(_has_scope(inst, DYNAMIC) for inst in trace.insts)


def dynamic(trace: Trace) -> Trace:
    """The trace, decisions included, with dynamic in the place of static shared memory."""
    return Trace([_moved(inst) for inst in trace.insts], trace.decisions)


def scope_blind(text: str) -> str:
    """Text of a trace, or a name in it, with all shared memory called static."""
    return text.replace(DYNAMIC, STATIC)


def verified_to(
    mod: tvm.IRModule, target: Target, postprocs: Sequence[ms.Postproc]
) -> list[ms.Postproc]:
    """The postprocessors with the legality of a kernel judged by the target's own limits."""
    verifier = ms.postproc.VerifyGPUCode()
    verifier._initialize_with_tune_context(ms.TuneContext(mod=mod, target=target))
    kind = ms.postproc.VerifyGPUCode
    return [verifier if isinstance(each, kind) else each for each in postprocs]


def _has_scope(inst: Instruction, scope: str) -> bool:
    return str(inst.kind.name) in _SCOPED and any(_is(attr, scope) for attr in inst.attrs)


def _moved(inst: Instruction) -> Instruction:
    if not _has_scope(inst, STATIC):
        return inst
    attrs = [DYNAMIC if _is(attr, STATIC) else attr for attr in inst.attrs]
    return Instruction(inst.kind, inst.inputs, attrs, inst.outputs)


def _is(attr: Any, scope: str) -> bool:
    return isinstance(attr, str) and str(attr) == scope
