"""Program variants: other programs for a task's function, made by TVM's schedule primitives.

A variant is a prefix of its sketches' traces on the task's own module, after which MetaSchedule's
rules make sketches as for any program. Records, databases and artifacts need nothing more than
the trace.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from felix.tir.design_space.variants import packed_operands, padded_extents, split_reductions
from felix.tir.design_space.variants.variant import STOCK, Machine, Prefix, Variant

__all__ = ["STOCK", "Machine", "Prefix", "Variant", "of_program"]


def of_program(mod: tvm.IRModule, machine: Machine) -> Sequence[Prefix]:
    """The variants that a program has on a machine, besides the program itself."""
    return [
        *split_reductions.prefixes(mod, machine),
        *padded_extents.prefixes(mod),
        *packed_operands.prefixes(mod, machine),
    ]
