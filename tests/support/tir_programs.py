"""Small TIR programs from script, and their JSON with parts changed.

`T.prim_func` reads the sources of all callers up the stack, which takes 0.1 s below pytest.
`prim_func` parses the same without.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.script.parser.core import entry, utils

A16 = 'A: T.Buffer((16,), "float32")'
B16 = 'B: T.Buffer((16,), "float32")'
I32 = 'I: T.Buffer((16,), "int32")'
J32 = 'J: T.Buffer((16,), "int32")'
#: Floats to copy, and numbers.
FLOATS = (A16, B16, I32)


def prim_func(*, s_tir: bool) -> Callable[[Callable[..., None]], Any]:
    """`T.prim_func(s_tir=...)` of a function; write the module before it, as TVM does."""

    def parsed(written: Callable[..., None]) -> Any:
        names = utils.inspect_function_capture(written)
        return entry.parse(written, names)

    parsed.dispatch_token = "tirx"  # how the parser knows the dialect
    return parsed


def function(body: str, *params: str, name: str = "main") -> Any:
    """Parse `@T.prim_func(s_tir=True) def name(params): body`; of A and B without params.

    TVM's parser evaluates annotations, which our files postpone; so it is given text.
    """
    lines = "\n    ".join(body.strip("\n").splitlines())
    head = f"@programs.prim_func(s_tir=True)\ndef {name}({', '.join(params or (A16, B16))}):"
    source = f"{head}\n    {lines}\n"
    return _parsed(source)


@functools.cache
def _parsed(source: str) -> Any:
    return tvm.script.from_source(source, {"T": T, "I": I, "programs": sys.modules[__name__]})


def mapped(
    function: Callable[..., Any], shape: Sequence[int], dtype: str = "float32", names: str = "ab"
) -> Any:
    """A tensor c of a function of others' elements at the same place."""
    tensors = [te.placeholder(shape, dtype, name) for name in names]
    c = te.compute(shape, lambda *at: function(*(each[at] for each in tensors)), "c")
    return te.create_prim_func([*tensors, c])


def copy(
    value: str,
    store: str = "B[v]",
    *,
    loop: int = 16,
    domain: int = 16,
    binding: str = "i",
    where: str = "True",
    params: tuple[str, ...] = (A16, B16),
) -> Any:
    """A loop around one block of one iterator `v`, which stores `value`."""
    predicate = f"T.where({where})\n        " if where != "True" else ""
    body = f"""
for i in range({loop}):
    with T.sblock("copy"):
        v = T.axis.spatial({domain}, {binding})
        {predicate}{store} = {value}
"""
    return function(body, *params)


class Document:
    """The JSON of a program, from the program or its text; nodes can be changed and added."""

    def __init__(self, func: Any) -> None:
        self.root: dict[str, Any] = json.loads(
            func if isinstance(func, str) else tvm.ir.save_json(func)
        )
        self.nodes: list[dict[str, Any]] = self.root["nodes"]

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The fields of every node of a type."""
        return [node["data"] for node in self.nodes if node["type"] == kind]

    def add(self, kind: str, data: Any = None) -> int:
        """A new node; its index."""
        self.nodes.append({"type": kind} if data is None else {"type": kind, "data": data})
        return len(self.nodes) - 1

    def number(self, value: int, dtype: str = "int32") -> int:
        """A new constant; its index."""
        ty = self.add("ir.PrimType", {"span": self.none(), "dtype": dtype})
        fields = {"span": self.none(), "ty": ty, "value": self.add("int", value)}
        return self.add("ir.IntImm", fields)

    def string(self, value: str) -> int:
        """A new string; its index."""
        return self.add("ffi.String", value)

    def none(self) -> int:
        """The index of a None; a new one if a change has taken the last."""
        there = (i for i, node in enumerate(self.nodes) if node["type"] == "None")
        at = next(there, None)
        return self.add("None") if at is None else at

    def call(self, operator: int, *arguments: int, dtype: str = "int32") -> int:
        """A new call; its index."""
        fields = {
            "span": self.none(),
            "ty": self.add("ir.PrimType", {"span": self.none(), "dtype": dtype}),
            "op": operator,
            "args": self.add("ffi.Array", list(arguments)),
            "attrs": self.none(),
            "ty_args": self.add("ffi.Array", []),
        }
        return self.add("ir.Call", fields)

    def extern(self) -> int:
        """A new call of the C library's `system`; its index."""
        name = self.add(
            "ir.StringImm",
            {
                "span": self.none(),
                "ty": self.add("ir.StringType", {"span": self.none()}),
                "value": self.string("system"),
            },
        )
        return self.call(self.add("ir.Op", "tirx.call_extern"), name)

    def text(self) -> str:
        """The JSON text."""
        return json.dumps(self.root)


def results(funcs: Sequence[Any], inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """What each function, built for this CPU, makes of copies of its parameters."""
    named = {f"f{i}": func.with_attr("global_symbol", f"f{i}") for i, func in enumerate(funcs)}
    library = tvm.tirx.build(tvm.IRModule(named), "llvm")
    made = []
    for name in named:
        tensors = [tvm.runtime.tensor(array) for array in inputs]
        library[name](*tensors)
        made.append([tensor.numpy() for tensor in tensors])
    return made
