"""Names of a checked program: they go into generated code, so they are identifiers.

TVM writes the names of buffers, variables and blocks into CUDA source as they are; a name that is
no identifier would be code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import tirx

from felix import errors, names


def check(func: tirx.PrimFunc) -> None:
    """Refuse names that are no identifiers, in a function that `validate.normalise` returned.

    Raises:
        WorkloadError: a name is none; the message says which.
    """
    for kind, name in _names(func):
        if not names.is_identifier(name):
            raise errors.WorkloadError(
                f"the program has the {kind} {names.quoted(name)}; a name has letters, digits, "
                f"'_' and '.', begins with no digit and has {names.MAX_CHARACTERS} characters "
                "at most"
            )


def _names(func: tirx.PrimFunc) -> Iterator[tuple[str, str]]:
    for parameter in func.params:
        yield "buffer", str(parameter.name)
    yield from _names_in(func.body)


def _names_in(stmt: Any) -> Iterator[tuple[str, str]]:
    match type(stmt).__name__:
        case "SBlockRealize":
            block = stmt.block
            yield "block", str(block.name_hint)
            yield from (("variable", str(item.var.name)) for item in block.iter_vars)
            yield from (("buffer", str(buffer.name)) for buffer in block.alloc_buffers)
            if block.init is not None:
                yield from _names_in(block.init)
            yield from _names_in(block.body)
        case "For":
            yield "variable", str(stmt.loop_var.name)
            yield from _names_in(stmt.body)
        case "Bind":
            yield "variable", str(stmt.var.name)
        case "SeqStmt":
            for item in stmt.seq:
                yield from _names_in(item)
        case "IfThenElse":
            yield from _names_in(stmt.then_case)
            if stmt.else_case is not None:
                yield from _names_in(stmt.else_case)
