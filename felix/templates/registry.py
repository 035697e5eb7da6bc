"""Which templates a program has on a target: the one place where templates are listed."""

from __future__ import annotations

from collections.abc import Callable

import tvm

from felix.target import Hardware
from felix.templates.gemm import family
from felix.templates.template import Matching

#: (the task's module, the target's arch like "sm_90", its hardware) -> templates, reasons why not.
Family = Callable[[tvm.IRModule, str, Hardware], Matching]

#: Every family of templates, in the order in which their sketches are numbered.
FAMILIES: tuple[Family, ...] = (family.of_program,)


def templates_of(mod: tvm.IRModule, target: tvm.target.Target, machine: Hardware) -> Matching:
    """The templates of a task's program; none on a CPU."""
    if target.kind.name != "cuda":
        return Matching()
    arch = str(target.attrs["arch"])
    every = [of_program(mod, arch, machine) for of_program in FAMILIES]
    return Matching(
        tuple(template for matching in every for template in matching.templates),
        tuple(reason for matching in every for reason in matching.reasons),
    )
