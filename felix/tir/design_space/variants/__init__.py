"""Program variants: other programs for a task's function, made by TVM's schedule primitives.

A variant is a prefix of its sketches' traces on the task's own module, after which MetaSchedule's
rules make sketches as for any program. Records, databases and artifacts need nothing more than
the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from felix.tir import grammar
from felix.tir.design_space.variants import (
    packed_operands,
    padded_extents,
    padded_windows,
    phases,
    row_chains,
    row_groups,
    split_columns,
    split_reductions,
)
from felix.tir.design_space.variants.variant import STOCK, Machine, Prefix, Rule, Variant

__all__ = ["STOCK", "Machine", "Prefix", "Rule", "Variant", "of_program"]


def of_program(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """The variants that a program has on a machine, besides the program itself."""
    phased = phases.prefixes(mod, machine)
    if phased:
        return _with_splits(phased, mod, machine)
    padded = padded_extents.prefixes(mod, machine) or padded_windows.prefixes(mod)
    split = split_reductions.prefixes(mod, machine)
    if any(prefix.variant.replaces_stock for prefix in padded):
        split = [prefix.replaced() for prefix in split]
    return [
        *split,
        *split_columns.prefixes(mod, machine),
        *_with_splits(padded, mod, machine),
        *row_groups.prefixes(mod, machine),
        *row_chains.prefixes(mod, machine),
        *packed_operands.prefixes(mod, machine),
    ]


def _with_splits(
    prefixes: Sequence[Prefix], mod: tvm.IRModule, machine: Machine
) -> Sequence[Prefix]:
    """The variants, each followed by those with the reduction split of what it made."""
    split = []
    for prefix in prefixes:
        made = _made(prefix, mod)
        if made is not None:
            split += [prefix.then(each) for each in split_reductions.prefixes(made, machine)]
    return [*prefixes, *split]


def _made(prefix: Prefix, mod: tvm.IRModule) -> tvm.IRModule | None:
    """The program that a prefix makes; None where TVM cannot."""
    schedule = tvm.s_tir.Schedule(mod if prefix.mod is None else prefix.mod, debug_mask="none")
    try:
        prefix.apply(schedule)
    except grammar.SCHEDULE_ERRORS:
        return None
    return schedule.mod
