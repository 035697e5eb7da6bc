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
_TOO_DEEP = f"the program is nested more than {MAX_DEPTH} levels deep"
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

    def __init__(self, graph: json_graph.Graph, clamp: bool = False) -> None:
        self._graph = graph
        self._clamp = clamp
        self._buffers: dict[int, Any] = {}
        self._variables: dict[int, Any] = {}
        #: Variables bound to values that depend on data.
        self._data_variables: set[Any] = set()
        #: Of the values of Lets, by the node of their variable.
        self._let_sizes: dict[int, int] = {}
        self._size = 0
        self._depth = 0

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Count a node, and how deep it lies."""
        self._size += 1
        self._depth += 1
        check(self._size <= MAX_SIZE, f"the program has more than {MAX_SIZE} nodes")
        check(self._depth <= MAX_DEPTH, _TOO_DEEP)
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

    def _indices(self, buffer: Any, index: int) -> list[Any]:
        """Indices of a buffer, of the number and type that it takes."""
        label = quoted(buffer.name)
        indices = [self._expression(item) for item in self._graph.array(index)]
        check(
            len(indices) == len(buffer.ty.shape),
            f"buffer {label} has {len(buffer.ty.shape)} dimensions and is accessed with "
            f"{len(indices)} indices",
        )
        for item in indices:
            check(
                not self._is_bound_to_data(item),
                f"an index of {label} is bound to data before; write the load into the index",
            )
            check(
                grammar.dtype(item) in INDEX_DTYPES,
                f"an index of {label} is a {grammar.dtype(item)}, neither int32 nor int64",
            )
        return indices

    def _is_bound_to_data(self, expr: Any) -> bool:
        """Whether an expression has a variable that was bound to data."""
        return any(part in self._data_variables for part in grammar.expressions(expr))

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
                "prim.Let": self._let,
            }
            name = json_graph.short_type(kind)
            check(kind in rules, f"unsupported operation {name!r} in the program")
            return rules[kind](index)

    def _constant(self, index: int) -> tirx.IntImm:
        fields = self._graph.fields(index, ("ty", "value"))
        dtype, value = self._dtype(fields["ty"]), self._graph.integer(fields["value"])
        check(
            dtype in grammar.DTYPES and not grammar.is_float(dtype),
            "a constant integer has a type that is no integer",
        )
        signed = dtype.startswith("int")
        width = grammar.bits(dtype) - signed
        check(
            -(2**width) * signed <= value < 2**width,
            f"the constant {value} does not fit its type {dtype}",
        )
        return tirx.IntImm(dtype, value)

    def _float(self, index: int) -> tirx.FloatImm:
        fields = self._graph.fields(index, ("ty", "value"))
        dtype = self._dtype(fields["ty"])
        check(
            dtype in grammar.DTYPES and grammar.is_float(dtype),
            "a constant float has a type that is no float",
        )
        value = json_graph.raw_float(fields["value"])
        check(
            dtype not in grammar.STORAGE_DTYPES or value == 0,
            f"the constant {value} is a {dtype}, of which only 0 is supported",
        )
        return tirx.FloatImm(dtype, value)

    def _let(self, index: int) -> Any:
        """The body of a Let with its value for the variable; its size counts at every use."""
        fields = self._graph.fields(index, ("ty", "var", "value", "body"))
        with self._let_value(fields["var"], fields["value"]):
            return self._expression(fields["body"])

    @contextmanager
    def _let_value(self, variable: int, value: int) -> Iterator[None]:
        """Inside of the context the variable is the value."""
        before = self._size
        expr = self._expression(value)
        declared = self._graph.fields(variable, ("ty", "name"))
        check(
            self._dtype(declared["ty"]) == grammar.dtype(expr),
            "a variable is not of the type of its value",
        )
        outer, sizes = self._variables, self._let_sizes
        self._variables = {**outer, variable: expr}
        self._let_sizes = {**sizes, variable: self._size - before}
        yield
        self._variables, self._let_sizes = outer, sizes

    def _use(self, index: int) -> Any:
        name = quoted(self._name(self._graph.fields(index, ("ty", "name"))["name"]))
        check(
            index in self._variables,
            f"the variable {name} is used where no loop, iterator or let defines it; in a block "
            "use an iterator that is bound to it",
        )
        value = self._variables[index]
        if index in self._let_sizes:
            self._size += self._let_sizes[index]
            check(self._depth + grammar.height(value) <= MAX_DEPTH, _TOO_DEEP)
        return value

    def _binary(self, kind: str, index: int) -> Any:
        fields = self._graph.fields(index, ("ty", "a", "b"))
        a, b = self._expression(fields["a"]), self._expression(fields["b"])
        name = json_graph.short_type(kind)
        check(
            grammar.dtype(a) not in grammar.STORAGE_DTYPES,
            f"{name} of a {grammar.dtype(a)}; cast it to float32 first",
        )
        check(
            grammar.dtype(a) == grammar.dtype(b),
            f"{name} of a {grammar.dtype(a)} and a {grammar.dtype(b)}",
        )
        check(
            (grammar.dtype(a) == "bool") == (name in grammar.LOGIC)
            or name in ("EQ", "NE", *grammar.BITWISE[:3]),
            f"{name} of a {grammar.dtype(a)}",
        )
        if grammar.is_float(grammar.dtype(a)):
            check(
                name not in ("FloorDiv", "FloorMod", *grammar.BITWISE),
                f"{name} of a {grammar.dtype(a)}",
            )
            if name == "Mod":  # what generated code has a function for
                return tvm.ir.Call(_operators()["tirx.fmod"], [a, b], ret_ty=grammar.dtype(a))
        if self._clamp and name in grammar.SHIFTS:
            b = _clamped(b, grammar.bits(grammar.dtype(b)))
        elif self._clamp and name in grammar.DIVISIONS:
            b = _nonzero(b)
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
        value = self._expression(fields["value"])
        check(
            dtype not in grammar.STORAGE_DTYPES or dtype == grammar.dtype(value),
            f"a cast to {dtype}; float8 may be read, not computed",
        )
        check(
            grammar.dtype(value) not in grammar.STORAGE_DTYPES or grammar.is_float(dtype),
            f"a cast of a {grammar.dtype(value)} to {dtype}; cast it to float32",
        )
        return tirx.Cast(dtype, value)

    def _select(self, index: int) -> Any:
        fields = self._graph.fields(index, ("ty", "condition", "true_value", "false_value"))
        condition = self._condition(fields["condition"])
        values = [self._expression(fields[name]) for name in ("true_value", "false_value")]
        check(
            grammar.dtype(values[0]) == grammar.dtype(values[1]),
            "the values of a Select have different types",
        )
        return tirx.Select(condition, *values)

    def _load(self, index: int) -> Any:
        fields = self._graph.fields(index, ("ty", "source", "indices"))
        buffer = self._buffer(fields["source"])
        indices = self._indices(buffer, fields["indices"])
        if self._clamp:
            extents = grammar.shape(buffer)
            indices = [_clamped(*pair) for pair in zip(indices, extents, strict=True)]
        return tirx.BufferLoad(buffer, indices)

    def _call(self, index: int) -> Any:
        graph = self._graph
        fields = graph.fields(index, ("ty", "op", "args", "attrs", "ty_args"))
        name = self._operator(fields["op"])
        arguments = [self._expression(item) for item in graph.array(fields["args"])]
        if name == grammar.REINTERPRET:
            return _reinterpreted(arguments, self._dtype(fields["ty"]))
        kinds, result = grammar.FUNCTIONS[name]
        types: dict[str, str] = {"b": "bool"}
        check(len(arguments) == len(kinds), f"{name} takes {len(kinds)} arguments")
        for kind, argument in zip(kinds, arguments, strict=True):
            dtype = grammar.dtype(argument)
            check(
                types.setdefault(kind, dtype) == dtype and _is_of_kind(dtype, kind),
                f"{name} is called with a {dtype}",
            )
        return tvm.ir.Call(_operators()[name], arguments, ret_ty=types.get(result, result))

    def _operator(self, index: int) -> str:
        """The name of an operator of the list; calls of anything else are refused."""
        graph = self._graph
        kind = graph.type_of(index)
        if kind != "ir.Op":
            name = json_graph.short_type(kind)
            raise errors.WorkloadError(f"the program calls a {name}, not an operator")
        name = graph.name(index, "ir.Op")
        check(
            name in grammar.FUNCTIONS or name == grammar.REINTERPRET,
            f"unsupported operation {quoted(name.rpartition('.')[2])} in the program",
        )
        return name


def _reinterpreted(arguments: list[Any], dtype: str) -> Any:
    """The bits of a number as another type of the same size."""
    check(len(arguments) == 1, "reinterpret takes 1 argument")
    (value,) = arguments
    types = (dtype, grammar.dtype(value))
    check(
        all(
            each in grammar.DTYPES and each not in ("bool", *grammar.STORAGE_DTYPES)
            for each in types
        )
        and grammar.bits(types[0]) == grammar.bits(types[1]),
        f"reinterpret makes a {quoted(dtype)} of a {types[1]}",
    )
    return tvm.ir.Call(tvm.ir.Op.get(grammar.REINTERPRET), arguments, ret_ty=dtype)


def _clamped(index: Any, extent: int) -> Any:
    """The index, or the nearest one of [0, extent) if data choose it."""
    if not grammar.depends_on_data(index):
        return index
    dtype = grammar.dtype(index)
    low, high = tirx.IntImm(dtype, 0), tirx.IntImm(dtype, extent - 1)
    return tirx.Min(tirx.Max(index, low), high)


def _nonzero(divisor: Any) -> Any:
    """The divisor, or 1 where data make it 0."""
    dtype = grammar.dtype(divisor)
    if grammar.is_float(dtype) or not grammar.depends_on_data(divisor):
        return divisor
    zero, one = tirx.IntImm(dtype, 0), tirx.IntImm(dtype, 1)
    return tirx.Select(tirx.EQ(divisor, zero), one, divisor)


def _is_of_kind(dtype: str, kind: str) -> bool:
    match kind:
        case "f":
            return grammar.is_float(dtype) and dtype not in grammar.STORAGE_DTYPES
        case "i":
            return dtype != "bool" and not grammar.is_float(dtype)
    return True
