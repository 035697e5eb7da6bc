"""What a builder gets: a program as text, in a plain form with a version.

A payload is a JSON object with `version`, `kind` and `program`, a string:

- kind "tir": a module, scheduled or not, and its target, as TVM writes them;
- kind "generated": a `templates.generated.GeneratedProgram`, as it writes itself.

Nothing in it is code of ours, so another machine may build it.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TypeAlias

import tvm
import tvm_ffi

from felix import errors
from felix.templates.generated import GeneratedProgram, Program

#: Version of the form.
VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class WrittenProgram:
    """A program that another process made and wrote.

    Attributes:
        text: its payload.
        fingerprint: as `fingerprint` says of the program.
    """

    text: str
    fingerprint: str | None


#: What a builder takes: a program, or its text.
Buildable: TypeAlias = "Program | WrittenProgram"


@dataclasses.dataclass(frozen=True, slots=True)
class TirProgram:
    """A module of TVM and the target it is built for."""

    mod: tvm.IRModule
    target: tvm.target.Target


def of(program: Buildable, target: tvm.target.Target) -> str:
    """A program for a target, as text.

    Raises:
        MeasureError: a program in CUDA C++ for a target that is no GPU.
    """
    if isinstance(program, WrittenProgram):
        return program.text
    if not isinstance(program, GeneratedProgram):
        return _text("tir", str(tvm.ir.save_json([program, target])))
    if target.kind.name != "cuda":
        raise errors.MeasureError(
            f"this program is CUDA C++ for {program.arch}; it cannot be built for {target.kind}"
        )
    return _text("generated", program.to_json())


def write(program: Program, target: tvm.target.Target) -> WrittenProgram:
    """A program as another process may submit it; raises as `of`."""
    return WrittenProgram(of(program, target), fingerprint(program))


def fingerprint(program: Buildable) -> str | None:
    """Hash of what is measured, the same for equal programs in every process of one version; None
    for what is no program."""
    if isinstance(program, WrittenProgram | GeneratedProgram):
        return program.fingerprint
    if not isinstance(program, tvm.IRModule):
        return None
    return f"{tvm_ffi.structural_hash(program) & (2**64 - 1):016x}"


def read(text: str) -> TirProgram | GeneratedProgram:
    """The program that `of` wrote.

    Raises:
        ValueError: the text is of another version, or of no known kind.
    """
    fields = json.loads(text)
    if fields["version"] != VERSION:
        raise ValueError(f"a program of version {fields['version']}, not {VERSION}")
    match fields["kind"]:
        case "tir":
            return TirProgram(*tvm.ir.load_json(fields["program"]))
        case "generated":
            return GeneratedProgram.from_json(fields["program"])
    raise ValueError(f"a program of the unknown kind {fields['kind']!r}")


def read_tir(text: str) -> TirProgram:
    """The module and target of a payload that holds a program of TVM; else ValueError."""
    program = read(text)
    if isinstance(program, GeneratedProgram):
        raise ValueError("a generated program is no task")
    return program


def _text(kind: str, program: str) -> str:
    return json.dumps({"version": VERSION, "kind": kind, "program": program})
