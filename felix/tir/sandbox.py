"""Programs from outside: TVM JSON read, checked and rehearsed in a child process first.

Some of TVM's schedule rules crash the process on programs that are right. The child does to the
text all that the tuner's own process will do to it (read, check, make design spaces, postprocess),
confined (`processes.confine`) and within limits of time and memory; only a text that survives is
read here.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import tvm
from tvm import tirx

from felix import errors
from felix.processes import child, confine, policy
from felix.tir import design_space, grammar, reader, validate
from felix.tir.design_space import variants

MAX_JSON_CHARACTERS = 16 * 2**20
CHILD_SECONDS = 60
#: Of the machine whose variants are rehearsed: they differ in numbers between machines.
CORES, VECTOR_LANES = 128, 16
CHILD_BYTES = 8 * 2**30
CHILD_OUTPUT_BYTES = 2**20


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
    code = "from felix import without_torch; from felix.tir import sandbox; sandbox.child_main()"
    command = [sys.executable, "-c", code]
    try:
        with tempfile.TemporaryDirectory(prefix="felix-work-") as folder:
            verdicts = pathlib.Path(folder, "verdict")  # a file has a limit, a pipe has none
            with open(verdicts, "wb") as stdout:
                done = subprocess.run(
                    command,
                    input=json.dumps([text, target_text, folder]).encode(),
                    stdout=stdout,
                    stderr=subprocess.DEVNULL,
                    timeout=CHILD_SECONDS,
                    env=child.for_child(os.environ),
                    check=False,
                )
            output = verdicts.read_text(errors="replace")
    except subprocess.TimeoutExpired as error:
        raise errors.WorkloadError(
            f"reading the program took longer than {CHILD_SECONDS} s"
        ) from error
    lines = output.strip().splitlines()
    verdict = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    if verdict is None:
        raise errors.WorkloadError(
            "the program crashed TVM: it is malformed "
            f"(child process ended with status {done.returncode})"
        )
    if verdict["error"] is not None:
        raise errors.WorkloadError(verdict["error"])


def child_main() -> None:
    """Entry of the child process: [program, target, folder] on stdin, JSON on stdout."""
    text, target_text, folder = json.loads(sys.stdin.buffer.read())
    confine.confine(
        policy.Policy(
            folder=folder,
            file_bytes=CHILD_OUTPUT_BYTES,
            address_bytes=CHILD_BYTES,
            cpu_s=CHILD_SECONDS,
        )
    )
    try:
        rehearse(validate.normalise(load(text)), tvm.target.Target(json.loads(target_text)))
        message = None
    except errors.WorkloadError as error:
        message = str(error)
    sys.stdout.write("\n" + json.dumps({"error": message}) + "\n")
    sys.stdout.flush()
    os._exit(0)


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
