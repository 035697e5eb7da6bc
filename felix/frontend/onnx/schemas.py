"""What ONNX's schemas say of a node: its operands, attributes and outputs, and what it computes.

TVM's conversions take what a node has for what its operator has: they drop attributes that do not
exist, and compute something of operands that ONNX does not define it for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

from felix import names

#: Of these only the first input is required: models leave others empty against the schema, or mean
#: Microsoft's operator of the name, which takes others; TVM's conversions know it.
_LENIENT = frozenset({"Attention", "Resize", "Upsample"})
#: ONNX's operators that exporters write into files of older opsets, and the first of these: as
#: ONNX Runtime reads them.
_EARLY = {"LayerNormalization": 7}
#: Operators that a later version defines otherwise, and that are converted as they were.
_DEPRECATED = frozenset({"GroupNormalization"})
_DOMAINS = ("", "ai.onnx")
#: Attributes that are 0 or 1.
_FLAGS = frozenset(
    """
    align_corners allowzero antialias ceil_mode count_include_pad detect_negative detect_positive
    exclude_outside exclusive fmod inverse is_causal keepdims largest layout linear_before_reset
    noop_with_empty_axes onesided periodic reverse saturate select_last_index sorted spatial
    storage_order training_mode transA transB upper
    """.split()
)
#: The largest number that is taken for an axis.
_MAX_AXIS = 2**15
_ANY = ""
#: Texts that attributes may be, by the operator, or of any operator.
_TEXTS = {
    (_ANY, "auto_pad"): "NOTSET SAME_UPPER SAME_LOWER VALID",
    (_ANY, "keep_aspect_ratio_policy"): "stretch not_larger not_smaller",
    (_ANY, "nearest_mode"): "round_prefer_floor round_prefer_ceil floor ceil",
    (_ANY, "padding_mode"): "zeros border reflection",
    (_ANY, "round_mode"): "up down nearest",
    ("BitShift", "direction"): "LEFT RIGHT",
    ("DepthToSpace", "mode"): "DCR CRD",
    ("Gelu", "approximate"): "none tanh",
    ("GridSample", "mode"): "bilinear nearest bicubic",
    ("NegativeLogLikelihoodLoss", "reduction"): "none sum mean",
    ("Pad", "mode"): "constant reflect edge wrap",
    ("Resize", "mode"): "nearest linear cubic",
    ("RoiAlign", "mode"): "avg max",
    ("ScatterElements", "reduction"): "none add mul max min",
    ("ScatterND", "reduction"): "none add mul max min",
    ("SoftmaxCrossEntropyLoss", "reduction"): "none sum mean",
    ("SpaceToDepth", "mode"): "DCR CRD",
    ("TensorScatter", "mode"): "linear circular",
    ("Upsample", "mode"): "nearest bilinear",
    **{(name, "direction"): "forward reverse bidirectional" for name in ("LSTM", "GRU", "RNN")},
}
#: Those from an opset on.
_LATER_TEXTS = {
    ("GridSample", "mode"): (20, "linear nearest cubic"),
    ("Upsample", "mode"): (7, "nearest linear"),
}
_OF_SCHEMA = defs.OpSchema.FormalParameterOption


def schema(operator: str, opset: int) -> defs.OpSchema | None:
    """ONNX's schema of an operator at a version, or the newest where it is younger than that.

    Conversions go by an operator's name alone, whatever its domain.
    """
    return at(operator, opset) or at(operator, defs.onnx_opset_version())


def at(operator: str, opset: int, domain: str = "") -> defs.OpSchema | None:
    """ONNX's schema of an operator at a version; None where it has none."""
    try:
        return defs.get_schema(operator, max(1, opset), domain)
    except defs.SchemaError:
        return None


def _own(node: Any, opset: int) -> defs.OpSchema | None:
    """ONNX's schema of a node of ONNX's; None where it has none at that version."""
    found = at(node.op_type, opset, "" if node.domain in _DOMAINS else node.domain)
    is_gone = found is not None and found.deprecated and node.op_type not in _DEPRECATED
    return None if is_gone else found


def described(name: str, operator: str) -> str:
    """A node, in a message."""
    return f"{names.quoted(name)} (operator {names.quoted(operator)})"


def nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a GraphProto and of the graphs in them."""
    for node in graph.node:
        yield node
        for inner in graphs_of(node):
            yield from nodes(inner)


def graphs_of(node: Any) -> list[Any]:
    """The graphs among the attributes of a NodeProto."""
    lists = ((*each.graphs, *([each.g] if each.HasField("g") else [])) for each in node.attribute)
    return list(itertools.chain.from_iterable(lists))


def inputs(graph: Any) -> dict[str, Any]:
    """The inputs of a GraphProto that are no initializers, by name."""
    known = {tensor.name for tensor in graph.initializer}
    return {item.name: item for item in graph.input if item.name not in known}


def version(model: Any, domain: str = "") -> int:
    """Of the operators of a domain that a ModelProto asks for."""
    same = _DOMAINS if domain in _DOMAINS else (domain,)
    return next((int(each.version) for each in model.opset_import if each.domain in same), 1)


def refused(node: Any, opset: int) -> str | None:
    """What is wrong with a node whatever its operands are, as "lacks ..."; None where nothing is.

    Args:
        node: a NodeProto.
        opset: the version of the operators of its domain.
    """
    if (lacks := _missing(node, opset)) is not None:
        return f"lacks its input {lacks!r}"
    own = _own(node, opset)
    if own is None:
        is_onnx = node.domain in _DOMAINS and schema(node.op_type, opset) is not None
        is_unknown = is_onnx and opset < _EARLY.get(node.op_type, opset + 1)
        return f"is of an operator that opset {opset} does not have" if is_unknown else None
    if len(node.input) > own.max_input:
        return f"has {len(node.input)} inputs, {own.max_input} are the most"
    return _refused_outputs(node, own) or _refused_attributes(node, own, opset)


def _refused_outputs(node: Any, own: defs.OpSchema) -> str | None:
    if len(node.output) > own.max_output:
        return f"has {len(node.output)} outputs, {own.max_output} are the most"
    for attribute in node.attribute:  # or ONNX's inference ends the process
        if node.op_type == "Split" and attribute.name == "num_outputs":
            if attribute.i != len(node.output):
                return f"has {len(node.output)} outputs, its attribute says {attribute.i}"
    for index, formal in enumerate(own.outputs):
        is_there = index < len(node.output) and node.output[index]
        if formal.option == _OF_SCHEMA.Single and not is_there:
            return f"lacks its output {formal.name!r}"
    return None


def _refused_attributes(node: Any, own: defs.OpSchema, opset: int) -> str | None:
    given = {each.name: each for each in node.attribute}
    if len(given) < len(node.attribute):
        return "has two attributes of one name"
    for name, attribute in given.items():
        if name not in own.attributes:
            return f"has the attribute {names.quoted(name)}, which opset {opset} does not have"
        expected = own.attributes[name].type.name
        actual = onnx.AttributeProto.AttributeType.Name(attribute.type)
        if actual != expected:
            return (
                f"has the attribute {names.quoted(name)} of the type {actual.lower()}, not "
                f"{expected.lower()}"
            )
        if (allowed := _allowed(node, attribute, opset)) is not None:
            return f"has the attribute {names.quoted(name)} of another value than {allowed}"
    for name, formal in own.attributes.items():
        if formal.required and name not in given:
            return f"lacks its attribute {names.quoted(name)}"
    return None


def texts(operator: str, name: str, opset: int) -> list[str]:
    """What a text may be that is an attribute; nothing where any."""
    since, later = _LATER_TEXTS.get((operator, name), (opset + 1, ""))
    listed = _TEXTS.get((operator, name)) or _TEXTS.get((_ANY, name), "")
    return (later if opset >= since else listed).split()


def _allowed(node: Any, attribute: Any, opset: int) -> str | None:
    """The values that an attribute may have, where its own is none of them."""
    name = attribute.name
    if node.op_type != "Constant" and any(map(math.isnan, (attribute.f, *attribute.floats))):
        return "a number"
    # ONNX's inference of a layer norm ends the process where an axis is beyond 32 bits.
    numbers = (attribute.i, *attribute.ints)
    if name in ("axis", "axes") and max(map(abs, numbers)) > _MAX_AXIS:
        return "an axis"
    if name in _FLAGS:
        return None if attribute.i in (0, 1) else "0 or 1"
    listed = texts(node.op_type, name, opset)
    is_one = not listed or attribute.s.decode("utf-8", "replace") in listed
    return None if is_one else f"{', '.join(listed[:-1])} or {listed[-1]}"


def _missing(node: Any, opset: int) -> str | None:
    """The first input that a node lacks and needs; None if it has all.

    TVM's conversions read inputs that are not there as None, and some give it to native code,
    which ends the process.
    """
    inputs = list(node.input)
    for index, name in enumerate(_required(node, opset, len(inputs))):
        if name is not None and (index >= len(inputs) or not inputs[index]):
            return name
    return None


def _required(node: Any, opset: int, n_inputs: int) -> list[str | None]:
    """Names of the inputs by position; None for one that may be left out."""
    found = schema(node.op_type, opset)
    if found is None:
        return ["1"]
    required: list[str | None] = []
    for formal in found.inputs:
        if formal.option == _OF_SCHEMA.Variadic:
            count = max(formal.min_arity, n_inputs - len(required))
            return required + [formal.name] * count
        required.append(formal.name if formal.option == _OF_SCHEMA.Single else None)
    return required[:1] if node.op_type in _LENIENT else required


class UndefinedNode(ValueError):
    """ONNX does not define a node for its operands and attributes."""


def inferred(
    node: Any, opset: int, types: Sequence[Any], values: Mapping[int, Any]
) -> dict[str, Any]:
    """TypeProtos of what a node computes, by name, as far as ONNX knows.

    Args:
        node: a NodeProto.
        opset: the version of the operators of its domain.
        types: TypeProtos of its operands; None for those that it leaves out or that are unknown.
        values: arrays that are known, by the position of the operand.

    Raises:
        UndefinedNode: these operands or attributes are not what the operator takes.
    """
    own = _own(node, opset)
    is_known = all(kind is not None for kind, n in zip(types, node.input, strict=True) if n)
    if own is None or own.deprecated or not is_known:
        return {}
    by_name = {name: kind for name, kind in zip(node.input, types, strict=True) if name}
    data = {node.input[i]: numpy_helper.from_array(a) for i, a in values.items()}
    versions = [helper.make_opsetid(node.domain, opset)]
    try:
        found: dict[str, Any] = shape_inference.infer_node_outputs(
            own, node, by_name, data, opset_imports=versions
        )
    except (shape_inference.InferenceError, checker.ValidationError, ValueError) as error:
        raise UndefinedNode from error
    return found


def type_of(dtype: str, shape: Sequence[int | None] | None) -> Any:
    """A TypeProto of a tensor; extents and shapes that are open are None."""
    name = {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())
    number = dict(onnx.TensorProto.DataType.items()).get(name)
    return None if number is None else helper.make_tensor_type_proto(number, shape)


def type_name(number: int) -> str:
    """What NumPy calls an element type of ONNX; its number, if it is none."""
    if number not in onnx.TensorProto.DataType.values():
        return str(number)
    name: str = onnx.TensorProto.DataType.Name(number).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def shape_of(kind: Any) -> list[int] | None:
    """The extents of a TypeProto; None where it is of none, or one is open."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    dims = kind.tensor_type.shape.dim
    is_closed = all(dim.HasField("dim_value") for dim in dims)
    return [int(dim.dim_value) for dim in dims] if is_closed else None


def conflicts(kind: Any, dtype: str, shape: Sequence[int | None] | None) -> bool:
    """Whether a tensor is of another type or shape than a TypeProto, as far as it says."""
    tensor = kind.tensor_type
    if tensor.elem_type and tensor.elem_type != type_of(dtype, None).tensor_type.elem_type:
        return True
    if not tensor.HasField("shape") or shape is None:
        return False
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    return len(dims) != len(shape) or any(
        None not in pair and pair[0] != pair[1] for pair in zip(dims, shape, strict=True)
    )
