"""Programs from outside: TVM JSON read, checked and rehearsed in a child process first.

TVM's JSON reader, and some of its schedule rules, crash the process on malformed objects. The
child does to the text all that the tuner's own process will do to it (read, check, make design
spaces, postprocess) under limits of time and memory; only a text that survives is read here.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import tvm
from tvm import tirx

from felix import errors
from felix.tir import design_space, validate

MAX_JSON_CHARACTERS = 16 * 2**20
CHILD_SECONDS = 60
CHILD_BYTES = 8 * 2**30


def load(text: str) -> tirx.PrimFunc:
    """The PrimFunc of TVM JSON, alone or in an IRModule; malformed text may crash TVM."""
    try:
        loaded = tvm.ir.load_json(text)
    except validate.TVM_ERRORS as error:
        raise errors.WorkloadError(
            f"TVM cannot read the JSON: {validate.first_line(error)}"
        ) from error
    if isinstance(loaded, tirx.PrimFunc):
        return loaded
    if not isinstance(loaded, tvm.IRModule):
        raise errors.WorkloadError(
            f"the JSON holds a {type(loaded).__name__}, not an IRModule or a PrimFunc"
        )
    functions = list(loaded.functions.values())
    validate.check(
        len(functions) == 1, f"the module has {len(functions)} functions; it must have one"
    )
    if not isinstance(functions[0], tirx.PrimFunc):
        raise errors.WorkloadError(
            f"the module's function is a {type(functions[0]).__name__}, not a TIR PrimFunc"
        )
    return functions[0]


def try_in_child(text: str, target_text: str) -> None:
    """Read, check and rehearse TVM JSON in a process of its own, limited in time and memory.

    Args:
        text: the JSON of the program.
        target_text: JSON of the target whose default design space is rehearsed.

    Raises:
        WorkloadError: it is refused, or the child crashed, ran out of memory or of time.
    """
    package = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join(item for item in (package, os.environ.get("PYTHONPATH")) if item)
    code = "from felix import without_torch; from felix.tir import sandbox; sandbox.child_main()"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command,
            input=json.dumps([text, target_text]).encode(),
            capture_output=True,
            timeout=CHILD_SECONDS,
            env=os.environ | {"PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise errors.WorkloadError(
            f"reading the program took longer than {CHILD_SECONDS} s"
        ) from error
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    verdict = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    if verdict is None:
        raise errors.WorkloadError(
            "the program crashed TVM: it is malformed "
            f"(child process ended with status {done.returncode})"
        )
    if verdict["error"] is not None:
        raise errors.WorkloadError(verdict["error"])


def child_main() -> None:
    """Entry of the child process: [program, target] on stdin, a JSON verdict on stdout."""
    text, target_text = json.loads(sys.stdin.buffer.read())
    _limit_resources()
    try:
        rehearse(validate.normalise(load(text)), tvm.target.Target(json.loads(target_text)))
        message = None
    except errors.WorkloadError as error:
        message = str(error)
    sys.stdout.write("\n" + json.dumps({"error": message}) + "\n")
    sys.stdout.flush()
    os._exit(0)


def _limit_resources() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, CHILD_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CHILD_SECONDS, CHILD_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def rehearse(func: tirx.PrimFunc, full: tvm.target.Target) -> None:
    """Do to the program what the tuner's own process will do: make the spaces, postprocess."""
    mod = tvm.IRModule({"main": func})
    try:
        context = design_space.tune_context(mod, full)
        for schedule in context.generate_design_space():
            all(postproc.apply(schedule) for postproc in context.space_generator.postprocs)
    except validate.TVM_ERRORS as error:
        raise errors.WorkloadError(
            f"TVM cannot make schedules of the program: {validate.first_line(error)}"
        ) from error
