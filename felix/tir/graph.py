"""TVM's JSON of an object graph, read without TVM.

The text is `{"root_index": i, "nodes": [...]}`. A node is `{"type": ..., "data": ...}`: a number,
a string, an array or a map of indices of nodes, or the fields of an object. TVM's own reader fills
in whatever it is given and crashes on much of it. Here a node is read when it is asked for, as the
type that is asked for, with exactly the fields that type has.

Blocks that no schedule of Felix changes are refused before their parts are read, so that the
message names the reason: their parts, like loops that are already parallel, are refused as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from felix import errors
from felix.tir.grammar import check

MAX_NODES = 2_000_000
#: Characters of a client's name that a message repeats.
MAX_QUOTED = 60

_INT64 = range(-(2**63), 2**63)
_MISSING: Mapping[str, Any] = {}


def quoted(name: str) -> str:
    """A name from outside as a message shows it: printable, at most `MAX_QUOTED` characters."""
    text = name if len(name) <= MAX_QUOTED else name[: MAX_QUOTED - 1] + "…"
    return ascii(text).replace("\\u2026", "…")


def short_type(name: str) -> str:
    """The type of a node as a message shows it, without its dialect: tirx.For -> For."""
    return "NoneType" if name == "None" else quoted(name.rpartition(".")[2] or name)[1:-1]


class Graph:
    """The nodes of a JSON text; every method raises WorkloadError for what is malformed."""

    def __init__(self, text: str) -> None:
        document = _document(text)
        self._nodes: list[Any] = document["nodes"]
        self.root: int = document["root_index"]

    def type_of(self, index: int) -> str:
        """The type of a node: "tirx.For", "int", "None", ..."""
        return str(self._node(index)["type"])

    def fields(self, index: int, names: Sequence[str]) -> Mapping[str, Any]:
        """The fields of an object, without its span; it must have exactly these."""
        data = self._node(index).get("data", _MISSING)
        expected = {*names, "span"}
        if (
            not isinstance(data, dict)
            or not data.keys() <= expected
            or not data.keys() >= {*names}
        ):
            raise _broken(
                f"a {short_type(self.type_of(index))} has not the fields {', '.join(names)}"
            )
        if any(isinstance(value, list | dict) for value in data.values()):
            raise _broken("a field of an object is neither a number nor a string")
        return data

    def integer(self, index: int) -> int:
        """The value of a node of type int or bool."""
        kind, value = self.type_of(index), self._data(index)
        if kind not in ("int", "bool"):
            raise _broken(f"an integer is a {short_type(kind)}")
        return int(value) if type(value) is bool else raw_integer(value)

    def string(self, index: int) -> str:
        """The value of a node of type String."""
        value = self._data(index)
        if self.type_of(index) != "ffi.String" or not isinstance(value, str):
            raise _broken(f"a string is a {short_type(self.type_of(index))}")
        return value

    def name(self, index: int, kind: str) -> str:
        """The name of a node of a type that has one: Op, Axis."""
        value = self._data(index)
        if self.type_of(index) != kind or not isinstance(value, str):
            raise _broken(f"an {short_type(kind)} has no name")
        return value

    def array(self, index: int) -> list[int]:
        """The indices of the items of an array."""
        if self.type_of(index) != "ffi.Array":
            raise _broken(f"an array is a {short_type(self.type_of(index))}")
        return self._indices(index)

    def map(self, index: int) -> Iterator[tuple[int, int]]:
        """The indices of keys and values of a map."""
        if self.type_of(index) != "ffi.Map":
            raise _broken(f"a map is a {short_type(self.type_of(index))}")
        items = self._indices(index)
        if len(items) % 2:
            raise _broken("a map has a key without a value")
        return zip(items[::2], items[1::2], strict=True)

    def is_none(self, index: int) -> bool:
        """Whether the node is None."""
        return self.type_of(index) == "None"

    def _data(self, index: int) -> Any:
        return self._node(index).get("data")

    def _indices(self, index: int) -> list[int]:
        items = self._data(index)
        if not isinstance(items, list):
            raise _broken("an array has no items")
        return items

    def _node(self, index: Any) -> dict[str, Any]:
        if type(index) is not int:
            raise _broken("a reference to a node is not an integer")
        if not 0 <= index < len(self._nodes):
            raise _broken(f"invalid node index {index if index in _INT64 else 'beyond 2^63'}")
        node = self._nodes[index]
        if not isinstance(node, dict) or not isinstance(node.get("type"), str):
            raise _broken("a node has no type")
        return node


def raw_integer(value: Any) -> int:
    """A field that holds an integer of 64 bits itself."""
    if type(value) is not int or value not in _INT64:
        raise _broken("a number is not an integer of 64 bits")
    return value


def raw_float(value: Any) -> float:
    """A field that holds a float itself."""
    if type(value) not in (int, float):
        raise _broken("a number is not a float")
    try:
        return float(value)
    except OverflowError:
        raise _broken("a number is larger than a float") from None


def raw_string(value: Any) -> str:
    """A field that holds a string itself."""
    if not isinstance(value, str):
        raise _broken("a name is not a string")
    return value


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _broken("it is not valid JSON") from None
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise _broken("it has no nodes")
    if type(document.get("root_index")) is not int:
        raise _broken("it has no root_index")
    if len(document["nodes"]) > MAX_NODES:
        raise _broken(f"it has more than {MAX_NODES} nodes")
    return document


def _broken(what: str) -> errors.WorkloadError:
    return errors.WorkloadError(
        f"TVM cannot read the JSON: {what}; write it with tvm.ir.save_json of TVM 0.27"
    )


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
