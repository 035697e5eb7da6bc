"""Programs from outside: TVM JSON read, checked and rehearsed in a child process first.

Some of TVM's schedule rules crash the process on programs that are right. The child does to the
text all that the tuner's own process will do to it (read, check, make design spaces, postprocess),
confined (`processes.confine`) and within limits of time and memory; only a text that survives is
read here.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import tirx

from felix import errors
from felix.processes import child
from felix.tir import design_space, grammar, reader
from felix.tir.design_space import variants

MAX_JSON_CHARACTERS = 16 * 2**20
CHILD_SECONDS = 60
_MODULE = "felix.tir.sandbox_main"
#: Of the machine whose variants are rehearsed: they differ in numbers between machines.
CORES, VECTOR_LANES = 128, 16


def load(text: str) -> tirx.PrimFunc:
    """The PrimFunc of TVM JSON, alone or in an IRModule, made anew from what was checked.

    Raises:
        WorkloadError: malformed, or outside the grammar of `reader`.
    """
    try:
        return reader.read(text)
    except grammar.TVM_ERRORS as error:
        raise errors.WorkloadError(
            f"TVM rejects the program: {grammar.first_line(error)}"
        ) from error


def try_in_child(text: str, target_text: str) -> None:
    """Read, check and rehearse TVM JSON in a process of its own, limited in time and memory.

    Args:
        text: the JSON of the program.
        target_text: JSON of the target whose default design space is rehearsed.

    Raises:
        WorkloadError: it is refused, or the child crashed, ran out of memory or of time.
    """
    try:
        refusal = child.ask(_MODULE, [text, target_text], CHILD_SECONDS)
    except TimeoutError:
        message = f"reading the program took longer than {CHILD_SECONDS} s"
        raise errors.WorkloadError(message) from None
    except child.Unanswered as error:
        raise errors.WorkloadError(
            f"the program crashed TVM: it is malformed (child process ended with status "
            f"{error.status})"
        ) from None
    if refusal is not None:
        raise errors.WorkloadError(str(refusal))


def rehearse(func: tirx.PrimFunc, full: tvm.target.Target) -> None:
    """Do to the program what the tuner's own process will do: make the spaces, postprocess."""
    mod = tvm.IRModule({"main": func})
    try:
        for space in _spaces(mod, full):
            for schedule in space.schedules:
                all(postproc.apply(schedule) for postproc in space.generator.postprocs)
    except grammar.TVM_ERRORS as error:
        raise errors.WorkloadError(
            f"TVM cannot make schedules of the program: {grammar.first_line(error)}"
        ) from error


def _spaces(mod: tvm.IRModule, full: tvm.target.Target) -> Iterator[design_space.DesignSpace]:
    yield design_space.generate(mod, full)
    machine = variants.Machine(CORES, full.kind.name == "cuda", VECTOR_LANES)
    yield from design_space.generate_variants(mod, full, machine)
