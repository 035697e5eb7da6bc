"""Expressions of a program from TVM's JSON, made anew; their types are derived, not read."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import tirx

from felix import errors
from felix.tir import grammar
from felix.tir import graph as json_graph
from felix.tir.grammar import check
from felix.tir.graph import quoted

#: Nodes that a program may have when shared ones are counted as often as they occur.
MAX_SIZE = 50_000
#: Loops, blocks, branches and operations inside one another.
MAX_DEPTH = 128
MAX_NAME = 128
INDEX_DTYPES = ("int32", "int64")
_BINARY = {
    f"prim.{name}": getattr(tirx, name)
    for name in (*grammar.ARITHMETIC, *grammar.COMPARISONS, *grammar.LOGIC, *grammar.BITWISE)
}


@functools.cache
def _operators() -> Mapping[str, Any]:
    return {name: tvm.ir.Op.get(name) for name in grammar.FUNCTIONS}


class ExpressionReader:
    """Reads expressions of one graph; variables and buffers are looked up by their node."""

    def __init__(self, graph: json_graph.Graph) -> None:
        self._graph = graph
        self._buffers: dict[int, Any] = {}
        self._variables: dict[int, Any] = {}
        self._size = 0
        self._depth = 0

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Count a node, and how deep it lies."""
        self._size += 1
        self._depth += 1
        check(self._size <= MAX_SIZE, f"the program has more than {MAX_SIZE} nodes")
        check(self._depth <= MAX_DEPTH, f"the program is nested more than {MAX_DEPTH} levels deep")
        yield
        self._depth -= 1

    def _name(self, index: int, used: set[str] | None = None) -> str:
        """A name of letters, digits, dots and underscores, unlike those already used."""
        raw = self._graph.string(index)[:MAX_NAME]
        name = re.sub(r"[^A-Za-z0-9_.]", "_", raw) or "_"
        if used is None:
            return name
        unique, number = name, 0
        while unique in used:
            number += 1
            unique = f"{name}_{number}"
        used.add(unique)
        return unique

    def _dtype(self, index: int) -> str:
        check(self._graph.type_of(index) == "ir.PrimType", "a type is not a type of numbers")
        return json_graph.raw_string(self._graph.fields(index, ["dtype"])["dtype"])

    def _buffer(self, index: int) -> Any:
        check(index in self._buffers, "the program accesses a buffer that it does not declare")
        return self._buffers[index]

    def _indices(self, buffer: Any, index: int, access: str) -> list[Any]:
        """Indices of a buffer; data must not choose addresses: it would leave the buffer."""
        label = quoted(buffer.name)
        indices = [self._expression(item) for item in self._graph.array(index)]
        check(len(indices) == len(buffer.ty.shape),
              f"buffer {label} has {len(buffer.ty.shape)} dimensions and is accessed with "
              f"{len(indices)} indices")  # fmt: skip
        for item in indices:
            check(not any(grammar.is_load(part) for part in grammar.expressions(item)),
                  f"an index of {label} depends on data ({access}); unsupported")  # fmt: skip
            check(
                grammar.dtype(item) in INDEX_DTYPES,
                f"an index of {label} is a {grammar.dtype(item)}, neither int32 nor int64",
            )
        return indices

    def _condition(self, index: int) -> Any:
        expr = self._expression(index)
        check(grammar.dtype(expr) == "bool", "a condition is not a bool")
        return expr

    def _expression(self, index: int) -> Any:
        kind = self._graph.type_of(index)
        with self._inside():
            if kind in _BINARY:
                return self._binary(kind, index)
            rules: dict[str, Callable[[int], Any]] = {
                "ir.IntImm": self._constant,
                "ir.FloatImm": self._float,
                "ir.Var": self._use,
                "ir.TensorLoad": self._load,
                "ir.Call": self._call,
                "prim.Cast": self._cast,
                "prim.Not": self._not,
                "prim.BitwiseNot": self._bitwise_not,
                "prim.Select": self._select,
            }
            name = json_graph.short_type(kind)
            check(kind in rules, f"unsupported operation {name!r} in the program")
            return rules[kind](index)

    def _constant(self, index: int) -> tirx.IntImm:
        fields = self._graph.fields(index, ("ty", "value"))
        dtype, value = self._dtype(fields["ty"]), self._graph.integer(fields["value"])
        check(dtype in grammar.DTYPES and not grammar.is_float(dtype),
              "a constant integer has a type that is no integer")  # fmt: skip
        signed = dtype.startswith("int")
        width = grammar.bits(dtype) - signed
        check(-(2**width) * signed <= value < 2**width,
              f"the constant {value} does not fit its type {dtype}")  # fmt: skip
        return tirx.IntImm(dtype, value)

    def _float(self, index: int) -> tirx.FloatImm:
        fields = self._graph.fields(index, ("ty", "value"))
        dtype = self._dtype(fields["ty"])
        check(dtype in grammar.DTYPES and grammar.is_float(dtype),
              "a constant float has a type that is no float")  # fmt: skip
        return tirx.FloatImm(dtype, json_graph.raw_float(fields["value"]))

    def _use(self, index: int) -> Any:
        name = quoted(self._name(self._graph.fields(index, ("ty", "name"))["name"]))
        check(index in self._variables, f"the variable {name} has no value where it is used")
        return self._variables[index]

    def _binary(self, kind: str, index: int) -> Any:
        fields = self._graph.fields(index, ("ty", "a", "b"))
        a, b = self._expression(fields["a"]), self._expression(fields["b"])
        name = json_graph.short_type(kind)
        check(grammar.dtype(a) == grammar.dtype(b),
              f"{name} of a {grammar.dtype(a)} and a {grammar.dtype(b)}")  # fmt: skip
        check((grammar.dtype(a) == "bool") == (name in grammar.LOGIC)
              or name in ("EQ", "NE", *grammar.BITWISE[:3]),
              f"{name} of a {grammar.dtype(a)}")  # fmt: skip
        floats = grammar.is_float(grammar.dtype(a))
        check(
            not floats or name not in ("Mod", "FloorDiv", "FloorMod", *grammar.BITWISE),
            f"{name} of a {grammar.dtype(a)}",
        )
        return _BINARY[kind](a, b)

    def _not(self, index: int) -> Any:
        return tirx.Not(self._condition(self._graph.fields(index, ("ty", "a"))["a"]))

    def _bitwise_not(self, index: int) -> Any:
        value = self._expression(self._graph.fields(index, ("ty", "a"))["a"])
        dtype = grammar.dtype(value)
        check(dtype != "bool" and not grammar.is_float(dtype), f"BitwiseNot of a {dtype}")
        return tirx.BitwiseNot(value)

    def _cast(self, index: int) -> Any:
        fields = self._graph.fields(index, ("ty", "value"))
        dtype = self._dtype(fields["ty"])
        check(dtype in grammar.DTYPES, f"a cast to the unsupported dtype {quoted(dtype)}")
        return tirx.Cast(dtype, self._expression(fields["value"]))

    def _select(self, index: int) -> Any:
        fields = self._graph.fields(index, ("ty", "condition", "true_value", "false_value"))
        condition = self._condition(fields["condition"])
        values = [self._expression(fields[name]) for name in ("true_value", "false_value")]
        check(grammar.dtype(values[0]) == grammar.dtype(values[1]),
              "the values of a Select have different types")  # fmt: skip
        return tirx.Select(condition, *values)

    def _load(self, index: int) -> Any:
        fields = self._graph.fields(index, ("ty", "source", "indices"))
        buffer = self._buffer(fields["source"])
        return tirx.BufferLoad(buffer, self._indices(buffer, fields["indices"], "gather"))

    def _call(self, index: int) -> Any:
        graph = self._graph
        fields = graph.fields(index, ("ty", "op", "args", "attrs", "ty_args"))
        name = self._operator(fields["op"])
        arguments = [self._expression(item) for item in graph.array(fields["args"])]
        kinds, result = grammar.FUNCTIONS[name]
        types: dict[str, str] = {"b": "bool"}
        check(len(arguments) == len(kinds), f"{name} takes {len(kinds)} arguments")
        for kind, argument in zip(kinds, arguments, strict=True):
            dtype = grammar.dtype(argument)
            check(types.setdefault(kind, dtype) == dtype and _is_of_kind(dtype, kind),
                  f"{name} is called with a {dtype}")  # fmt: skip
        return tvm.ir.Call(_operators()[name], arguments, ret_ty=types.get(result, result))

    def _operator(self, index: int) -> str:
        """The name of an operator of the list; calls of anything else are refused."""
        graph = self._graph
        kind = graph.type_of(index)
        if kind != "ir.Op":
            name = json_graph.short_type(kind)
            raise errors.WorkloadError(f"the program calls a {name}, not an operator")
        name = graph.operator(index)
        check(
            name in grammar.FUNCTIONS,
            f"unsupported operation {quoted(name.rpartition('.')[2])} in the program",
        )
        return name


def _is_of_kind(dtype: str, kind: str) -> bool:
    match kind:
        case "f":
            return grammar.is_float(dtype)
        case "i":
            return dtype != "bool" and not grammar.is_float(dtype)
    return True
