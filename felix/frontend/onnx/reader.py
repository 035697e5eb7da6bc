"""ONNX models, read so that they touch nothing but themselves, as TVM Relax functions.

Everything of the file is checked before TVM or onnx resolves any of it: tensors hold their own
data, wherever in the model they are (initializers, attributes, subgraphs, functions, training
information), and as much of it as they declare; every value that a node reads is computed before
it; operators are those of ONNX itself. Values and nodes get names that generated code can carry.

Messages name operators, nodes, values and inputs. They quote neither contents of tensors nor
what onnx or TVM say, which may hold them; that is the exception's cause.
"""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
import tvm
from google.protobuf import message as protobuf
from onnx import external_data_helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from felix import errors, names
from felix.frontend import imported as importing
from felix.frontend.onnx import conversion, expanding, operators, schemas
from felix.frontend.onnx import inputs as input_rules
from felix.tir import grammar

MAX_NODES = 50_000
#: The largest value of a model, inputs and weights among them.
MAX_VALUE_BYTES = 2**34
#: TVM reads no older files.
_MIN_IR_VERSION = 3
#: Domains of the operators that TVM converts; it goes by an operator's name alone.
_DOMAINS = ("", "ai.onnx", "com.microsoft")
#: Elements that one byte of a tensor's message holds at most: those of 2 bits are 4 a byte.
_MAX_ELEMENTS_A_BYTE = 4

#: Fields with names that values, nodes and graphs are known by.
_NAME_FIELDS = {
    "NodeProto": ("name", "input", "output"),
    "TensorProto": ("name",),
    "ValueInfoProto": ("name",),
    "GraphProto": ("name",),
}


def read(model: str | pathlib.Path | bytes) -> Any:
    """The checked ModelProto of a file or of its bytes.

    A file's external data are read from its folder; bytes have no folder, so they are refused.

    Raises:
        WorkloadError: no ONNX model, or one that is refused.
    """
    if isinstance(model, bytes):
        proto = _decoded(model)
    else:
        path = pathlib.Path(model)
        try:
            proto = _decoded(path.read_bytes())
        except OSError as error:
            raise errors.WorkloadError(
                f"the ONNX file cannot be read: {error.strerror}"
            ) from error
        _load_external(proto, path.parent)
    _check(proto)
    return proto


def prepare(proto: Any, values: Mapping[str, Any]) -> Any:
    """A checked model with inputs of these values, and without functions that are not converted.

    Raises:
        WorkloadError: values of other inputs or shapes, or an operator that is not supported.
    """
    expanding.with_values(proto, values)
    made = expanding.expand(proto)
    _check_operators(made.graph)
    for node in schemas.nodes(made.graph):
        node.name = node.name or next((name for name in node.output if name), "")
    return made


def to_relax(proto: Any, shapes: Mapping[str, Sequence[int]] | None) -> tvm.IRModule:
    """The Relax function of a checked model, with its initializers as parameters.

    Raises:
        WorkloadError: the shapes do not fit the model, or TVM cannot import it.
    """
    shape_of = {name: [int(extent) for extent in shape] for name, shape in (shapes or {}).items()}
    input_rules.check(proto.graph, shape_of)
    renamed, opset = _rename(proto), schemas.version(proto)
    importer = onnx_frontend.ONNXGraphImporter(
        {renamed[name]: shape for name, shape in shape_of.items()},
        "float32",
        keep_params_in_input=True,
    )
    originals = {new: name for name, new in renamed.items()}
    importer._construct_nodes = conversion.GraphConverter(importer, opset, originals).convert
    importer._check_for_unsupported_ops = lambda graph: None  # `prepare` knows more
    try:
        # TVM prints the inputs of what it cannot convert, and warns with names.
        with (
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
            importing.ended(importer.bb),
        ):
            warnings.simplefilter("ignore")
            imported = importer.from_onnx(proto.graph, opset)
    except errors.WorkloadError:
        raise
    except Exception as error:  # TVM raises bare Exceptions, too
        reason = "TVM does not accept its inputs or tensors"
        if importing.is_short(error):
            reason = f"that {importing.message()}"
        raise errors.WorkloadError(f"the ONNX model cannot be imported: {reason}") from error
    _check_values(imported)
    return imported


def _decoded(content: bytes) -> Any:
    if not content:
        raise errors.WorkloadError("the ONNX file is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except (protobuf.DecodeError, RecursionError) as error:
        raise errors.WorkloadError(
            "the file is not an ONNX model, or is nested too deeply"
        ) from error
    return proto


def _load_external(proto: Any, folder: pathlib.Path) -> None:
    try:
        external_data_helper.load_external_data_for_model(proto, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise errors.WorkloadError(
            "the external data of the ONNX file cannot be read: they must be files in its folder"
        ) from error


def _check(proto: Any) -> None:
    n_nodes = 0
    for item in _messages(proto):
        _check_texts(item)
        kind = item.DESCRIPTOR.name
        if kind == "TensorProto":
            _check_tensor(item)
        elif kind == "SparseTensorProto":
            raise errors.WorkloadError("the ONNX model has sparse tensors; they are not supported")
        elif kind == "NodeProto":
            n_nodes += 1
    opset, newest = schemas.version(proto), onnx.defs.onnx_opset_version()
    if proto.ir_version < _MIN_IR_VERSION or opset > newest:
        raise errors.WorkloadError(
            f"the ONNX model cannot be imported: its IR version is {proto.ir_version}, "
            f"{_MIN_IR_VERSION} or later is needed; its opset is {opset}, {newest} is the newest"
        )
    if n_nodes > MAX_NODES:
        raise errors.WorkloadError(f"the ONNX model has {n_nodes} nodes; {MAX_NODES} are allowed")
    input_rules.check_types(proto.graph)
    for node in schemas.nodes(proto.graph):
        # after the first output, for errors about it
        node.name = node.name or next((name for name in node.output if name), "")
        if (wrong := schemas.refused(node, schemas.version(proto, node.domain))) is not None:
            where = schemas.described(node.name, node.op_type)
            raise errors.WorkloadError(f"the node {where} of the ONNX model {wrong}")
    _check_graph(proto.graph, frozenset())


def _messages(root: Any) -> Iterator[Any]:
    """A message and all below it, whatever field they are in."""
    stack = [root]
    while stack:
        item = stack.pop()
        yield item
        for field, value in item.ListFields():
            if field.message_type is not None:
                stack.extend([value] if isinstance(value, protobuf.Message) else value)


def _check_texts(item: Any) -> None:
    """protobuf gives bytes for a text that is not UTF-8."""
    for field, value in item.ListFields():
        texts = [value] if isinstance(value, bytes | str) else value
        if field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in texts):
            where = f"the field {field.name} of a {item.DESCRIPTOR.name}"
            raise errors.WorkloadError(f"{where} of the ONNX model is not UTF-8")


def _check_tensor(tensor: Any) -> None:
    where = f"the tensor {names.quoted(tensor.name)} of the ONNX model"
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise errors.WorkloadError(
            f"{where} has external data; save the model with all data in one file"
        )
    if (refused := input_rules.unread_type(tensor.data_type)) is not None:
        raise errors.WorkloadError(f"{where} is of the element type {refused}: not supported")
    if any(extent < 0 for extent in tensor.dims):
        raise errors.WorkloadError(f"{where} has a negative extent")
    if math.prod(tensor.dims) > _MAX_ELEMENTS_A_BYTE * tensor.ByteSize():
        raise errors.WorkloadError(f"{where} has fewer elements than its shape says")


def _check_operators(graph: Any) -> None:
    known = {*onnx_frontend._get_convert_map(), *operators.CONVERTED, *conversion.WITH_GRAPHS}
    known.add("Constant")
    unknown: dict[str, str] = {}
    for node in schemas.nodes(graph):
        if node.domain not in _DOMAINS or node.op_type not in known:
            operator = ".".join(filter(None, (node.domain, node.op_type)))
            unknown.setdefault(operator, next(filter(None, (node.name, *node.output)), ""))
    if unknown:
        raise errors.WorkloadError(
            "the ONNX model cannot be imported: unsupported operators "
            f"{input_rules.listed(sorted(unknown))}, of the nodes "
            f"{input_rules.listed([unknown[each] for each in sorted(unknown)])}"
        )


def _check_graph(graph: Any, outer: frozenset[str]) -> None:
    """Every value is there before it is read: the nodes are in order, without a cycle."""
    known = {*outer, ""}
    known.update(item.name for item in (*graph.input, *graph.initializer))
    for node in graph.node:
        for name in node.input:
            if name not in known:
                raise errors.WorkloadError(
                    f"the node {schemas.described(node.name, node.op_type)} of the ONNX model "
                    f"reads {names.quoted(name)}, which nothing computes before it"
                )
        for inner in schemas.graphs_of(node):
            _check_graph(inner, frozenset(known))
        known.update(node.output)
    for output in graph.output:
        if output.name not in known:
            raise errors.WorkloadError(
                f"nothing computes the output {names.quoted(output.name)} of the ONNX model"
            )


def _rename(proto: Any) -> dict[str, str]:
    """Give everything an identifier for a name, the same wherever it stands; original -> new."""
    taken: set[str] = set()
    renamed = {"": ""}

    def new(name: str) -> str:
        if name not in renamed:
            renamed[name] = names.identifier(name, taken)
        return renamed[name]

    for item in list(_messages(proto.graph)):
        for field in _NAME_FIELDS.get(item.DESCRIPTOR.name, ()):
            value = getattr(item, field)
            if isinstance(value, str):
                setattr(item, field, new(value))
            else:
                value[:] = [new(name) for name in value]
    return renamed


def _check_values(mod: tvm.IRModule) -> None:
    """No value is too large to be computed; constants are, when operators are lowered."""
    types: list[Any] = []
    relax.analysis.post_order_visit(mod["main"], lambda value: types.append(value.ty))
    for kind in types:
        if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
            continue
        extents = [int(e.value) if isinstance(e, tvm.tirx.IntImm) else None for e in kind.shape]
        size_bytes = math.prod(e for e in extents if e is not None)
        size_bytes *= grammar.element_bytes(str(kind.dtype))
        if size_bytes > MAX_VALUE_BYTES:
            raise errors.WorkloadError(
                f"the ONNX model has a value of the shape {names.quoted(extents)}, "
                f"{size_bytes:,} bytes; {MAX_VALUE_BYTES:,} are allowed"
            )
