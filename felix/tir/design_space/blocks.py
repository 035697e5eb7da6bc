"""The blocks of a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import tirx
from tvm.s_tir import stmt as s_stmt


def realizes(func: tirx.PrimFunc) -> list[s_stmt.SBlockRealize]:
    """Every block with its bindings: inner ones before those around them, the root block last."""
    return list(_visited(func.body))


def names(func: tirx.PrimFunc) -> list[str]:
    """Names of all blocks, in that order."""
    return [str(realize.block.name_hint) for realize in realizes(func)]


def _visited(statement: Any) -> Iterator[s_stmt.SBlockRealize]:
    if isinstance(statement, tirx.SeqStmt):
        for each in statement.seq:
            yield from _visited(each)
    elif isinstance(statement, tirx.For):
        yield from _visited(statement.body)
    elif isinstance(statement, s_stmt.SBlockRealize):
        yield from _visited(statement.block.body)
        yield statement
