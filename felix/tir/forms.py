"""Blocks in TVM's JSON that no schedule of Felix changes, refused before their parts are read.

So the message names the reason: their parts, like loops that are already parallel, are refused as
well.
"""

from __future__ import annotations

from collections.abc import Mapping

from felix.tir.grammar import check
from felix.tir.graph import Graph, quoted

FOR = ("loop_var", "min", "extent", "kind", "body", "thread_binding", "annotations", "step")
BLOCK_REALIZE = "s_tir.SBlockRealize"
#: Statements that a block without iterators may be made of.
_STORES = {"tirx.BufferStore", "tirx.Bind", "tirx.SeqStmt", "tirx.IfThenElse"}


def check_block(graph: Graph, block: Mapping[str, int], outer: str | None) -> None:
    """Refuse a block inside of another one, and one that does its work without iterators.

    Args:
        block: the fields of the block.
        outer: the name of the block it is in, if that is not the root block.

    Raises:
        WorkloadError: it is of such a form.
    """
    name = quoted(graph.string(block["name_hint"]))
    check(
        outer is None,
        f"block {name} is inside of block {quoted(outer or '')}; blocks in blocks are not "
        "supported: give the program before blockize or tensorize, with a block around each "
        "store and none around that",
    )
    if graph.array(block["iter_vars"]):
        return
    kinds = _kinds(graph, block["body"])
    check(
        BLOCK_REALIZE in kinds or kinds <= _STORES,
        f"block {name} has loops or calls of its own in place of iterators, as TVM's scans, "
        "sorts and scatters have, and cannot be tuned: in a network TVM or PyTorch runs it; in "
        "a program of yours give each store a block with iterators",
    )


def _kinds(graph: Graph, statement: int) -> set[str]:
    """Types of a statement and of those inside of it, but not inside of its blocks."""
    kinds: dict[int, str] = {}
    stack = [statement]
    while stack:
        index = stack.pop()
        if index not in kinds:
            kinds[index] = graph.type_of(index)
            stack += _inner(graph, index)
    return set(kinds.values())


def _inner(graph: Graph, index: int) -> list[int]:
    """The statements directly inside of a statement."""
    match graph.type_of(index):
        case "tirx.For":
            return [graph.fields(index, FOR)["body"]]
        case "tirx.SeqStmt":
            return graph.array(graph.fields(index, ["seq"])["seq"])
        case "tirx.IfThenElse":
            fields = graph.fields(index, ("condition", "then_case", "else_case"))
            cases = (fields["then_case"], fields["else_case"])
            return [case for case in cases if not graph.is_none(case)]
    return []
