"""TVM's MetaSchedule context of a program: the default design space of its target."""

from __future__ import annotations

import logging
import sys
import types
from typing import TYPE_CHECKING

import tvm

if TYPE_CHECKING:
    from tvm.s_tir import meta_schedule as ms


def tune_context(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    *,
    name: str = "main",
    strategy: ms.SearchStrategy | None = None,
    seed: int = 1,
    num_threads: int = 1,
) -> ms.TuneContext:
    """A context over the default rules and postprocessors of the target's kind.

    Making a `TuneContext` imports every tensor intrinsic TVM knows, 20 s of script parsing that
    the default rules never use; an empty module stands in for them.

    Args:
        name: of the task, in TVM's messages.
        strategy: the search strategy that the context owns, if any.
        seed: TVM's random state.
    """
    sys.modules.setdefault("tvm.s_tir.tensor_intrin", types.ModuleType("tvm.s_tir.tensor_intrin"))
    from tvm.s_tir import meta_schedule as ms

    kind = target.kind.name
    logger = logging.getLogger("felix.tvm")
    logger.setLevel(logging.ERROR)
    return ms.TuneContext(
        mod=mod,
        target=target,
        space_generator=ms.space_generator.PostOrderApply(
            sch_rules=kind, postprocs=kind, mutator_probs=kind
        ),
        search_strategy=strategy,
        task_name=name,
        rand_state=seed,
        num_threads=num_threads,
        logger=logger,
    )
