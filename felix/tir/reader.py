"""TVM's JSON of a program, read into a program made anew.

The grammar is the one MetaSchedule's default spaces start from: a root block, serial loops of
constant extents, blocks that store expressions of loads, arithmetic and pure functions. Every
part of the result is constructed here from values that were checked: nothing of the text is handed
on. What follows from the rest is derived and not read: types of expressions, the regions that
blocks read and write, types of functions. Source positions are left out, and annotations but for
a few of TVM's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import s_tir, tirx

from felix import errors
from felix.tir import grammar
from felix.tir import graph as json_graph
from felix.tir.buffers import BufferReader
from felix.tir.expressions import INDEX_DTYPES
from felix.tir.grammar import check
from felix.tir.graph import quoted

#: What every root block is called; TVM's structural equality does not see names of blocks.
_ROOT = "root"
#: The annotation by which topi chooses a rule of TVM's default design space, and its values.
_RULE = "schedule_rule"
_RULES = (
    "meta_schedule.pool_max",
    "meta_schedule.pool_avg",
    "meta_schedule.adaptive_pool_max",
    "meta_schedule.adaptive_pool_avg",
)
#: An annotation of topi's softmax.
_AXIS = "axis"
_MODULE = ("functions", "global_var_map_", "source_map", "attrs", "global_infos")
_FUNCTION = ("ty", "attrs", "params", "ret_type", "body")
_BLOCK = (
    "iter_vars",
    "reads",
    "writes",
    "name_hint",
    "alloc_buffers",
    "match_buffers",
    "annotations",
    "init",
    "body",
)


def read(text: str, *, clamp: bool = False) -> tirx.PrimFunc:
    """The program of the JSON of a PrimFunc, or of an IRModule with one PrimFunc.

    Args:
        clamp: move indices of loads that depend on data into their buffers.

    Raises:
        WorkloadError: malformed, or outside the grammar of this module.
    """
    graph = json_graph.Graph(text)
    index = graph.root
    kind = graph.type_of(index)
    if kind == "ir.IRModule":
        functions = list(graph.map(graph.fields(index, _MODULE)["functions"]))
        check(len(functions) == 1, f"the module has {len(functions)} functions; it must have one")
        index = functions[0][1]
        name = json_graph.short_type(graph.type_of(index))
        check(name == "PrimFunc", f"the module's function is a {name}, not a TIR PrimFunc")
    elif kind != "tirx.PrimFunc":
        name = json_graph.short_type(kind)
        raise errors.WorkloadError(f"the JSON holds a {name}, not an IRModule or a PrimFunc")
    return _Reader(graph, clamp).function(index)


class _Reader(BufferReader):
    """One reading of the program of one graph."""

    def __init__(self, graph: json_graph.Graph, clamp: bool) -> None:
        super().__init__(graph, clamp)
        self._block_names: set[str] = {_ROOT}
        #: The block that is read, if it is not the root block.
        self._outer: str | None = None
        self._stores = 0

    def function(self, index: int) -> tirx.PrimFunc:
        """The PrimFunc of a node."""
        fields = self._graph.fields(index, _FUNCTION)
        parameters = self._graph.array(fields["params"])
        check(parameters, "the program has no parameters")
        buffers = [self._declare_buffer(item, is_parameter=True) for item in parameters]
        check(
            self._graph.type_of(fields["body"]) == json_graph.BLOCK_REALIZE,
            "the program has no root block (is it plain or lowered TIR?); give each store a "
            "block with iterators",
        )
        body = self._statement(fields["body"])
        check(self._stores, "the program stores nothing")
        function = tirx.PrimFunc(buffers, body, tvm.ir.TupleType([]))
        return function.with_attr(
            {"global_symbol": self._symbol(fields["attrs"]), "s_tir": True, "tirx.noalias": True}
        )

    def _symbol(self, index: int) -> str:
        graph = self._graph
        if graph.type_of(index) == "ir.DictAttrs":
            for key, value in graph.map(graph.fields(index, ["__dict__"])["__dict__"]):
                if graph.string(key) == "global_symbol":
                    return graph.string(value)
        return "main"

    # Statements

    def _statement(self, index: int) -> Any:
        rules: dict[str, Callable[[int], Any]] = {
            json_graph.BLOCK_REALIZE: self._realize,
            "tirx.For": self._loop,
            "tirx.SeqStmt": self._sequence,
            "tirx.BufferStore": self._store,
            "tirx.IfThenElse": self._branch,
            "tirx.Bind": self._bind,
        }
        kind = self._graph.type_of(index)
        name = json_graph.short_type(kind)
        check(kind in rules, f"unsupported statement {name!r} in the program")
        with self._inside():
            return rules[kind](index)

    def _sequence(self, index: int) -> Any:
        items = self._graph.array(self._graph.fields(index, ["seq"])["seq"])
        check(len(items) > 1, "a sequence has fewer than two statements")
        outer = self._variables
        kinds = [self._graph.type_of(item) for item in items]
        if kinds == ["tirx.Bind"] * (len(items) - 1) + ["tirx.BufferStore"]:
            return self._store_of_bound(items)
        statements = [self._statement(item) for item in items]
        self._variables = outer
        return tirx.SeqStmt(statements)

    def _store_of_bound(self, items: list[int]) -> Any:
        """One store, with the values of the variables that are bound before it."""
        if len(items) == 1:
            return self._statement(items[0])
        fields = self._graph.fields(items[0], ("var", "value"))
        with self._let_value(fields["var"], fields["value"]):
            return self._store_of_bound(items[1:])

    def _bind(self, index: int) -> tirx.Bind:
        """A value under a name, for the statements that follow it in its sequence."""
        fields = self._graph.fields(index, ("var", "value"))
        value = self._expression(fields["value"])
        declared = self._graph.fields(fields["var"], ("ty", "name"))
        check(
            self._dtype(declared["ty"]) == grammar.dtype(value),
            "a bound variable is not of the type of its value",
        )
        variable = tirx.Var(self._name(declared["name"]), grammar.dtype(value))
        if grammar.depends_on_data(value) or self._is_bound_to_data(value):
            self._data_variables.add(variable)
        self._variables = {**self._variables, fields["var"]: variable}
        return tirx.Bind(variable, value)

    def _loop(self, index: int) -> Any:
        graph = self._graph
        fields = graph.fields(index, json_graph.FOR)
        name = quoted(self._name(graph.fields(fields["loop_var"], ("ty", "name"))["name"]))
        serial = int(tirx.ForKind.SERIAL)
        check(
            json_graph.raw_integer(fields["kind"]) == serial
            and graph.is_none(fields["thread_binding"]),
            f"loop {name} is already scheduled; give the program before scheduling",
        )
        check(graph.type_of(fields["extent"]) == "ir.IntImm", f"loop {name} has a dynamic extent")
        extent = self._constant(fields["extent"])
        check(int(extent) > 0, f"loop {name} has the extent {int(extent)}")
        check(self._is_constant(fields["min"], 0), f"loop {name} does not start at 0")
        check(
            graph.is_none(fields["step"]) or self._is_constant(fields["step"], 1),
            f"loop {name} has a step",
        )
        self._annotations(fields["annotations"])
        with self._variable(fields["loop_var"], extent) as variable:
            body = self._statement(fields["body"])
        zero = tirx.IntImm(grammar.dtype(extent), 0)
        return tirx.For(variable, zero, extent, tirx.ForKind.SERIAL, body)

    def _is_constant(self, index: int, value: int) -> bool:
        return self._graph.type_of(index) == "ir.IntImm" and int(self._constant(index)) == value

    @contextmanager
    def _variable(self, index: int, extent: Any) -> Iterator[tirx.Var]:
        """A new variable of [0, extent), known inside the context."""
        variable = self._new_variable(index, extent)
        outer = self._variables
        self._variables = {**outer, index: variable}
        yield variable
        self._variables = outer

    def _new_variable(self, index: int, extent: Any, used: set[str] | None = None) -> tirx.Var:
        fields = self._graph.fields(index, ("ty", "name"))
        name, dtype = self._name(fields["name"], used), self._dtype(fields["ty"])
        check(
            dtype in INDEX_DTYPES and dtype == grammar.dtype(extent),
            f"variable {quoted(name)} is not of the type of its extent, int32 or int64",
        )
        return tirx.Var(name, dtype)

    def _realize(self, index: int) -> Any:
        graph = self._graph
        realize = graph.fields(index, ("iter_values", "predicate", "block"))
        block = graph.fields(realize["block"], _BLOCK)
        json_graph.check_block(graph, block, self._outer)
        is_root = self._depth == 1
        name = _ROOT if is_root else self._name(block["name_hint"], self._block_names)
        values = [self._expression(item) for item in graph.array(realize["iter_values"])]
        predicate = self._condition(realize["predicate"])
        check(
            not any(map(grammar.depends_on_data, (*values, predicate))),
            f"block {quoted(name)} is bound to data, or under a condition of data",
        )
        iterators = self._iterators(block["iter_vars"], quoted(name))
        check(
            len(values) == len(iterators),
            f"block {quoted(name)} has {len(iterators)} iterators and {len(values)} bindings",
        )
        check(not is_root or not iterators, "the root block has iterators")
        check(
            not graph.array(block["match_buffers"]),
            f"block {quoted(name)} matches a buffer region",
        )
        annotations = self._annotations(block["annotations"])
        buffers = dict(self._buffers)
        allocated = [self._declare_buffer(item) for item in graph.array(block["alloc_buffers"])]
        variables = self._variables
        self._outer = None if is_root else name
        spatial = {i: v.var for i, v in iterators.items() if v.iter_type == grammar.SPATIAL}
        self._variables = spatial
        init = None if graph.is_none(block["init"]) else self._init(block["init"])
        self._variables = {i: v.var for i, v in iterators.items()}
        body = self._statement(block["body"])
        self._variables, self._outer = variables, None
        made = s_tir.SBlock(
            list(iterators.values()), [], [], name, body, init, allocated, annotations=annotations
        )
        if is_root and len(self._block_names) == 1:
            made = self._in_root(made, self._name(block["name_hint"], self._block_names))
        elif not is_root:
            made = self._with_regions(made)
            check(
                _has_one_result(made),
                f"block {quoted(name)} stores another value for each value of a reduction "
                "iterator: give it T.init, or make the iterator a spatial one",
            )
        self._buffers = buffers
        return s_tir.SBlockRealize(values, predicate, made)

    def _in_root(self, block: s_tir.SBlock, name: str) -> s_tir.SBlock:
        """A root block around a program's only block, as TVM schedules no root block."""
        leaf = s_tir.SBlock(
            [], [], [], name, block.body, block.init, annotations=block.annotations
        )
        realize = s_tir.SBlockRealize([], True, self._with_regions(leaf))
        return s_tir.SBlock([], [], [], _ROOT, realize, None, block.alloc_buffers)

    def _with_regions(self, block: Any) -> Any:
        """The block with the regions that TVM finds it to read and write; the root has none."""
        buffers = {buffer: buffer for buffer in self._buffers.values()}
        reads, writes, opaque = s_tir.analysis.get_sblock_access_region(block, buffers)
        check(not opaque, f"block {quoted(block.name_hint)} has an opaque access")
        return grammar.changed(block, reads=reads, writes=writes)

    def _init(self, index: int) -> Any:
        kind = self._graph.type_of(index)
        check(
            kind in ("tirx.BufferStore", "tirx.SeqStmt", "tirx.For", "tirx.IfThenElse"),
            "the init of a block is not made of stores",
        )
        before = len(self._block_names)
        statement = self._statement(index)
        check(len(self._block_names) == before, "the init of a block has a block inside")
        return statement

    def _iterators(self, index: int, owner: str) -> dict[int, tirx.IterVar]:
        """Iterators by the node of their variable."""
        graph = self._graph
        iterators: dict[int, tirx.IterVar] = {}
        used: set[str] = set()
        for item in graph.array(index):
            fields = graph.fields(item, ("dom", "var", "iter_type", "thread_tag"))
            domain = graph.fields(fields["dom"], ("min", "extent"))
            check(
                graph.type_of(domain["extent"]) == "ir.IntImm"
                and self._is_constant(domain["min"], 0),
                f"block {owner} has an iterator without a constant domain",
            )
            extent = self._constant(domain["extent"])
            check(int(extent) > 0, f"block {owner} has an iterator without a constant domain")
            kind = json_graph.raw_integer(fields["iter_type"])
            check(
                kind in (grammar.SPATIAL, grammar.REDUCE),
                f"block {owner} has an iterator that is neither spatial nor a reduction",
            )
            check(
                graph.string(fields["thread_tag"]) == "",
                f"block {owner} has an iterator that is bound to a thread",
            )
            check(fields["var"] not in iterators, f"block {owner} has an iterator twice")
            variable = self._new_variable(fields["var"], extent, used)
            zero = tirx.IntImm(grammar.dtype(extent), 0)
            limits = tvm.ir.Range.from_min_extent(zero, extent)
            iterators[fields["var"]] = tirx.IterVar(limits, variable, kind)
        return iterators

    def _annotations(self, index: int) -> dict[str, Any]:
        """The annotations of the list; others are left out, and pragmas are refused."""
        chosen: dict[str, Any] = {}
        for key, value in self._graph.map(index):
            name, kind = self._graph.string(key), self._graph.type_of(value)
            check(not name.startswith("pragma"), f"the pragma {quoted(name)} is not allowed")
            if name == _RULE and kind == "ffi.String" and self._graph.string(value) in _RULES:
                chosen[name] = self._graph.string(value)
            elif name == _AXIS and kind == "int":
                chosen[name] = self._graph.integer(value)
            elif name == _AXIS and kind == "ir.IntImm":
                chosen[name] = self._constant(value)
        return chosen

    def _store(self, index: int) -> Any:
        fields = self._graph.fields(index, ("buffer", "value", "indices"))
        buffer = self._buffer(fields["buffer"])
        value = self._expression(fields["value"])
        label = quoted(buffer.name)
        check(
            grammar.dtype(value) == grammar.dtype(buffer),
            f"buffer {label} holds {grammar.dtype(buffer)} and is given a {grammar.dtype(value)}",
        )
        self._stores += 1
        indices = self._indices(buffer, fields["indices"])
        check(
            not any(map(grammar.depends_on_data, indices)),
            f"data choose where in {label} a value is stored (a scatter); this is not "
            "supported: write it as a gather",
        )
        return tirx.BufferStore(buffer, value, indices)

    def _branch(self, index: int) -> Any:
        fields = self._graph.fields(index, ("condition", "then_case", "else_case"))
        condition = self._condition(fields["condition"])
        then_case = self._statement(fields["then_case"])
        has_else = not self._graph.is_none(fields["else_case"])
        else_case = self._statement(fields["else_case"]) if has_else else None
        return tirx.IfThenElse(condition, then_case, else_case)


def _has_one_result(block: Any) -> bool:
    """Whether what a block stores is no other for each value of a reduction iterator."""
    kinds = {int(each.iter_type) for each in block.iter_vars if int(each.dom.extent) > 1}
    if block.init is not None or kinds <= {grammar.SPATIAL}:
        return True
    read = [region.source for region in block.reads]
    return all(any(region.source.same_as(each) for each in read) for region in block.writes)
