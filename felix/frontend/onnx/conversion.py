"""The nodes of a graph as Relax expressions, one after the other: folded, ours, or TVM's.

Branches whose condition is known, loops whose number of rounds is known and scans are written out.
Every error names the node and its operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from felix import errors, names
from felix.frontend import imported, rewriting
from felix.frontend.layers import shape_of
from felix.frontend.onnx import checking, constants, operators, recurrent, schemas
from felix.frontend.onnx.node import Node, UnknownValue

#: Nodes that loops and scans of a model become.
MAX_WRITTEN_OUT = 20_000
#: Operators whose nodes have graphs.
WITH_GRAPHS = frozenset({"If", "Loop", "Scan"})


class UnknownInput(errors.WorkloadError):
    """What a node computes follows from the values of inputs of the model."""

    def __init__(self, message: str, inputs: list[str]) -> None:
        super().__init__(message)
        #: whose values would tell
        self.inputs = inputs


class GraphConverter:
    """Converts the nodes of a model into the values of TVM's importer.

    Args:
        importer: TVM's, with its inputs and initializers.
        opset: the version of ONNX's operators.
        originals: names of the file by the ones that values and nodes have here.
    """

    def __init__(self, importer: Any, opset: int, originals: Mapping[str, str]) -> None:
        self._importer, self._opset, self._originals = importer, opset, originals
        self._unroller = recurrent.Unroller(importer)
        self._n_written_out = 0
        #: the node that computes a value
        self._producers: dict[str, Any] = {}

    def convert(self, graph: Any) -> None:
        """Give every value of a graph its expression.

        Raises:
            WorkloadError: a node cannot be converted.
        """
        declared = {item.name: item.type for item in (*graph.value_info, *graph.output)}
        for proto in graph.node:
            self._producers.update(dict.fromkeys(proto.output, proto))
            try:
                values = self._values(proto)
            except UnknownValue as error:
                raise self._unknown(proto, error) from error
            except errors.WorkloadError as error:
                if isinstance(error, UnknownInput) or str(error).startswith(_CANNOT):
                    raise
                raise errors.WorkloadError(self._named(proto, str(error))) from error
            for name, value in zip(proto.output, values, strict=False):
                if name:
                    self._nodes[name] = value
                    self._check_declared(proto, name, declared.get(name))

    @property
    def _nodes(self) -> dict[str, Any]:
        nodes: dict[str, Any] = self._importer._nodes
        return nodes

    def _values(self, proto: Any) -> list[Any]:
        """What a node computes, a value for each output that is read."""
        node = Node(self._importer, proto, self._opset)
        checking.check_rules(node)
        if proto.op_type in WITH_GRAPHS:
            with_graphs = {"If": self._if, "Loop": self._loop, "Scan": self._scan}
            try:
                return with_graphs[proto.op_type](proto)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise errors.WorkloadError("its graphs or attributes do not fit") from error
        expected = checking.expected(node, proto)
        value = node.folded()
        if value is None:
            value = self._converted(node)
            node.check()
        values = self._parts(node, value)
        checking.check_shapes(node, values)
        if len(values) < node.n_outputs:
            output = self._originals.get(proto.output[len(values)], proto.output[len(values)])
            raise errors.WorkloadError(f"its output {names.quoted(output)} is not supported")
        checking.check_values(node, dict(zip(proto.output, values, strict=False)), expected)
        return values

    def _parts(self, node: Node, value: Any) -> list[Any]:
        if isinstance(value, relax.Tuple):
            return list(value.fields)
        if isinstance(value.ty, relax.TupleType):
            return [node.emit(relax.TupleGetItem(value, i)) for i in range(len(value.ty.fields))]
        return [value]

    def _converted(self, node: Node) -> Any:
        """Our conversion of a node or TVM's.

        Raises:
            UnknownValue: it needs the value of an operand, as far as one can tell.
            WorkloadError: it has none for this node.
        """
        dtype = node.widen() if node.operator in operators.IN_FLOAT32 else None
        try:
            value = operators.convert(node, self._unroller)
            if value is None:
                value = _by_tvm(node)
            value = node.bb.normalize(value)
        except errors.WorkloadError:
            raise
        except Exception as error:  # TVM raises bare Exceptions, too
            if imported.is_short(error):
                raise errors.WorkloadError(f"it {imported.message()}") from error
            for index, operand in enumerate(node.given):
                if index and operand is not None and checking.is_parameter(node, index, operand):
                    raise UnknownValue(index, node.formal(index)) from error
            raise checking.unsupported(node) from error
        return value if dtype is None else node.cast(value, dtype)

    # ------------------------------------------------------------ nodes with graphs

    def _if(self, proto: Any) -> list[Any]:
        branches = {each.name: each.g for each in proto.attribute}
        then, other = branches["then_branch"], branches["else_branch"]
        _check_outputs(proto, then, 0)
        _check_outputs(proto, other, 0)
        condition = self._nodes[proto.input[0]]
        known = constants.array(condition, self._tables)
        if known is not None:
            return self._inside(then if bool(known.reshape(())) else other, {})
        bodies = []
        for graph in (then, other):
            before = dict(self._nodes)
            values = self._inside(graph, {})
            self._importer._nodes = before
            body = values[0] if len(values) == 1 else relax.Tuple(values)
            bodies.append(relax.SeqExpr([], body))
        chosen = relax.If(condition, *bodies)
        return rewriting.results_of_call(self._importer.bb, chosen, len(proto.output))

    def _inside(self, graph: Any, inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs of a graph of a node, which sees all values around it."""
        self._nodes.update(inputs)
        for tensor in graph.initializer:
            self._nodes[tensor.name] = relax.const(self._importer._parse_array(tensor))
        self.convert(graph)
        return [self._nodes[output.name] for output in graph.output]

    def _count(self, graph: Any) -> None:
        self._n_written_out += len(graph.node)
        if self._n_written_out > MAX_WRITTEN_OUT:
            raise errors.WorkloadError(
                f"written out the loops of the model are more than {MAX_WRITTEN_OUT} nodes"
            )

    def _loop(self, proto: Any) -> list[Any]:
        """A loop, round by round; its rounds and its condition must be known."""
        node = Node(self._importer, proto, self._opset)
        (body,) = (each.g for each in proto.attribute if each.name == "body")
        _check_outputs(proto, body, 1)
        count, condition = node.value(0), node.value(1)
        carried = node.given[2:]
        stacked: list[list[Any]] = [[] for _ in body.output[1 + len(carried) :]]
        number, goes_on = 0, condition is None or bool(condition.reshape(()))
        while goes_on and (count is None or number < int(count.reshape(()))):
            self._count(body)
            outer = [relax.const(number, "int64"), relax.const(True, "bool"), *carried]
            ends, *values = self._inside(body, _bound(body, outer, has_shapes=False))
            carried = values[: len(carried)]
            for parts, value in zip(stacked, values[len(carried) :], strict=True):
                parts.append(value)
            known = constants.array(ends, node.tables)
            if known is None:
                raise errors.WorkloadError("whether it goes on follows from data")
            goes_on, number = bool(known.reshape(())), number + 1
        if not number and stacked:
            raise errors.WorkloadError("it has no round")
        return [*carried, *(_stacked(node, parts, 0) for parts in stacked)]

    def _scan(self, proto: Any) -> list[Any]:
        """A scan, step by step."""
        node = Node(self._importer, proto, self._opset)
        (body,) = (each.g for each in proto.attribute if each.name == "body")
        _check_outputs(proto, body, 0)
        n_scanned = int(node.get("num_scan_inputs"))
        carried, scanned = node.given[:-n_scanned], node.given[-n_scanned:]
        if node.opset < 9:
            raise errors.WorkloadError("scans of opset 8 are not supported")
        n_stacked = len(body.output) - len(carried)
        axes = node.get("scan_input_axes", [0] * n_scanned)
        backward = node.get("scan_input_directions", [0] * n_scanned)
        out_axes = node.get("scan_output_axes", [0] * n_stacked)
        out_backward = node.get("scan_output_directions", [0] * n_stacked)
        extents = {shape_of(x)[a] for x, a in zip(scanned, axes, strict=True)}
        if len(extents) != 1 or not extents.isdisjoint({0}):
            raise errors.WorkloadError("its inputs differ in their number of steps")
        (n_steps,) = extents
        stacked: list[list[Any]] = [[] for _ in range(n_stacked)]
        for step in range(n_steps):
            self._count(body)
            places = [n_steps - 1 - step if b else step for b in backward]
            parts = [_at(node, *each) for each in zip(scanned, axes, places, strict=True)]
            values = self._inside(body, _bound(body, [*carried, *parts]))
            carried = values[: len(carried)]
            for results, value in zip(stacked, values[len(carried) :], strict=True):
                results.append(value)
        ordered = [r[::-1] if b else r for r, b in zip(stacked, out_backward, strict=True)]
        stacks = [_stacked(node, *each) for each in zip(ordered, out_axes, strict=True)]
        return [*carried, *stacks]

    # ------------------------------------------------------------ errors

    def _check_declared(self, proto: Any, name: str, kind: Any) -> None:
        if (wrong := checking.misdeclared(kind, self._nodes[name])) is not None:
            output = names.quoted(self._originals.get(name, name))
            raise errors.WorkloadError(self._named(proto, f"its output {output} is {wrong}"))

    def _named(self, proto: Any, reason: str) -> str:
        name = self._originals.get(proto.name, proto.name)
        return f"{_CANNOT}{schemas.described(name, proto.op_type)}: {reason}"

    def _unknown(self, proto: Any, error: UnknownValue) -> UnknownInput:
        """Of which inputs of the model somebody must give the value."""
        found: list[str] = []
        stack, seen = [proto.input[error.index]], set()
        while stack:
            name = stack.pop()
            if not name or name in seen or name not in self._nodes:
                continue
            if constants.array(self._nodes[name], self._tables) is not None:
                continue
            seen.add(name)
            if name in self._producers:
                stack += self._producers[name].input
            elif name in self._importer._inputs and name not in self._importer._params:
                found.append(self._originals.get(name, name))
        reason = f"its operand {error.operand!r} must be known when the model is imported: "
        inputs = sorted(set(found))
        if inputs:
            listed = ", ".join(names.quoted(each) for each in inputs)
            reason += f"it follows from the model's inputs {listed}, give their values in `values`"
        else:
            reason += "make it a constant"
        return UnknownInput(self._named(proto, reason), inputs)

    @property
    def _tables(self) -> list[Any]:
        return [self._nodes, self._importer._params]


_CANNOT = "the ONNX model cannot be imported: the node "


def _bound(body: Any, values: list[Any], has_shapes: bool = True) -> dict[str, Any]:
    """Values by the names of a graph's inputs, whose types they have."""
    if len(body.input) != len(values):
        raise errors.WorkloadError("its graph has another number of inputs")
    for item, value in zip(body.input, values, strict=True):
        if checking.differs(item.type, value, has_shapes):
            raise errors.WorkloadError("an input of its graph is declared with another type")
    return {item.name: value for item, value in zip(body.input, values, strict=True)}


def _check_outputs(proto: Any, graph: Any, n_more: int) -> None:
    """A node has the outputs of its graph, which may have some more."""
    if len(proto.output) != len(graph.output) - n_more:
        raise errors.WorkloadError("its graph has another number of outputs")


def _at(node: Node, x: Any, axis: int, place: int) -> Any:
    """A slice of a tensor without its axis."""
    part = relax.op.strided_slice(x, [axis], [place], [place + 1], assume_inbound=True)
    return node.emit(relax.op.squeeze(node.emit(part), [axis]))


def _stacked(node: Node, parts: list[Any], axis: int) -> Any:
    rank = len(shape_of(parts[0])) + 1
    wide = [node.emit(relax.op.expand_dims(part, axis % rank)) for part in parts]
    return node.emit(relax.op.concat(wide, axis % rank))


def _by_tvm(node: Node) -> Any:
    kind = onnx_frontend._get_convert_map().get(node.operator)
    if kind is None:
        raise errors.WorkloadError("the operator is not supported")
    return kind.get_converter(node.opset)(node.bb, node.operands, node.attributes, node.tables)
