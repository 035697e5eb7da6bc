"""Operators without a conversion that ONNX defines by others, and functions of the model, written
out as these; and inputs whose values are given.

What ONNX writes out depends on types, not on weights, which stay out of what it reads: a message
of more than 2 GB cannot be read at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper
from tvm.relax.frontend.onnx import onnx_frontend

from felix import errors, names
from felix.frontend.onnx import operators, rules, schemas

#: Elements of initializers that ONNX sees: shapes may be among them.
_MAX_ELEMENTS = 1024
#: Of functions that TVM converts these are computed as ONNX's text says.
_INEXACT = frozenset({"Mish"})
#: Of functions that are made here.
_DOMAIN = "felix"
#: What our conversion of an attention reads.
_OF_ATTENTION = frozenset({"scale", "is_causal"})


def with_values(proto: Any, values: Mapping[str, Any]) -> None:
    """Make inputs of a model initializers: those of these values, and those without elements
    that say how a node computes, as axes do.

    Raises:
        WorkloadError: there is no such input, or the value has another shape.
    """
    graph = proto.graph
    inputs = schemas.inputs(graph)
    for name, value in values.items():
        if name not in inputs:
            listed = ", ".join(names.quoted(each) for each in inputs) or "none"
            raise errors.WorkloadError(
                f"values: the model has no input {names.quoted(name)}; its inputs are {listed}"
            )
        array = _array(name, value, inputs[name].type.tensor_type)
        graph.initializer.append(numpy_helper.from_array(array, name))
        graph.input.remove(inputs[name])
    first = {node.input[0] for node in graph.node if node.input}
    for name in inputs.keys() - values.keys() - first:
        kind = inputs[name].type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim if dim.HasField("dim_value")]
        if len(shape) == len(kind.shape.dim) and 0 in shape:
            empty = np.empty(shape, helper.tensor_dtype_to_np_dtype(kind.elem_type))
            graph.initializer.append(numpy_helper.from_array(empty, name))
            graph.input.remove(inputs[name])


def _array(name: str, value: Any, kind: Any) -> np.ndarray:
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    try:
        array = np.asarray(value).astype(dtype)
    except (TypeError, ValueError) as error:
        raise errors.WorkloadError(
            f"values: the value of {names.quoted(name)} is no tensor of {dtype}"
        ) from error
    dims = [dim.dim_value for dim in kind.shape.dim]
    fits = len(dims) == array.ndim and all(
        not dim or dim == extent for dim, extent in zip(dims, array.shape, strict=True)
    )
    if kind.HasField("shape") and not fits:
        raise errors.WorkloadError(
            f"values: the value of {names.quoted(name)} has the shape {array.shape}; the model's "
            f"input has {tuple(dims)}"
        )
    return array


def expand(proto: Any) -> Any:
    """The model without functions that have no conversion; itself where it has none.

    Raises:
        WorkloadError: ONNX cannot write one out.
    """
    kept = _kept(proto)
    others = [node for node in schemas.nodes(proto.graph) if not _is_kept(node, kept)]
    if not others and not proto.functions:
        return proto
    weights, light = _without_weights(proto)
    try:
        _give_defaults(light)
        _check(light, kept)
        _complete(light, kept)
        made = inliner.inline_selected_functions(
            light, sorted(("", name) for name in kept), exclude=True, inline_schema_functions=True
        )
    except (RuntimeError, onnx.shape_inference.InferenceError) as error:
        raise errors.WorkloadError(
            "the ONNX model cannot be imported: ONNX cannot write out its functions "
            f"{', '.join(sorted(_names(others, proto)))}"
        ) from error
    del made.graph.input[len(proto.graph.input) :]
    made.graph.initializer.extend(weights.values())
    return made


def _names(nodes: Sequence[Any], proto: Any) -> set[str]:
    """What is written out of a model, by name."""
    return {names.quoted(each.op_type) for each in nodes} | {
        names.quoted(each.name) for each in proto.functions
    }


def _give_defaults(model: Any) -> None:
    """Give calls of the model's own functions the attributes that these have by default."""
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    bodies = (model.graph, *model.functions)
    for node in (node for body in bodies for node in schemas.nodes(body)):
        function = functions.get((node.domain, node.op_type, node.overload))
        given = {each.name for each in node.attribute}
        for each in function.attribute_proto if function is not None else ():
            if each.name not in given:
                node.attribute.append(each)


def _check(model: Any, kept: set[str]) -> None:
    """ONNX defines every function that is written out for its operands.

    Raises:
        WorkloadError: it does not; what is written out would compute something else.
    """
    types = _types(model, data_prop=True)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if _is_kept(node, kept):
            continue
        known = {i: arrays[name] for i, name in enumerate(node.input) if name in arrays}
        operands = [types.get(name) for name in node.input]
        where = (
            "the ONNX model cannot be imported: "
            f"the node {schemas.described(node.name, node.op_type)}: "
        )
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        shapes = [schemas.shape_of(kind) for kind in operands]
        if (wrong := rules.broken(node.op_type, shapes, attributes)) is not None:
            raise errors.WorkloadError(where + wrong)
        try:
            schemas.inferred(node, schemas.version(model, node.domain), operands, known)
        except schemas.UndefinedNode as error:
            raise errors.WorkloadError(
                f"{where}its operands or attributes are not those that ONNX's operator has"
            ) from error


def _complete(model: Any, kept: set[str]) -> None:
    """Give functions the defaults of their attributes, and those that lack an operand a body.

    Without these ONNX would leave attributes out of what it writes, and find no type.
    """
    nodes = [node for node in model.graph.node if not _is_kept(node, kept)]
    for node in nodes:
        schema = _schema(node, model)
        given = {each.name for each in node.attribute}
        for name, formal in schema.attributes.items() if schema else ():
            if name not in given and formal.default_value.type:
                node.attribute.append(formal.default_value)
    lacking = [node for node in nodes if "" in node.input and _schema(node, model)]
    if not lacking:
        return
    types = _types(model, data_prop=False)
    model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    for number, node in enumerate(lacking):
        versions = _schema(node, model).context_dependent_function_opset_versions
        version = max(
            (v for v in versions if v <= schemas.version(model, node.domain)), default=None
        )
        if version is None or any(name and name not in types for name in node.input):
            continue
        body = onnx.FunctionProto()
        body.ParseFromString(
            _schema(node, model).get_context_dependent_function_with_opset_version(
                version,
                node.SerializeToString(),
                [types.get(n, onnx.TypeProto()).SerializeToString() for n in node.input],
            )
        )
        body.domain, body.name = _DOMAIN, f"f{number}"
        node.domain, node.op_type = body.domain, body.name
        model.functions.append(body)


def _types(model: Any, data_prop: bool) -> dict[str, Any]:
    """Types of what a model reads and computes, by name, as far as ONNX knows."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=data_prop).graph
    return {item.name: item.type for item in (*inferred.input, *inferred.value_info)}


def _schema(node: Any, model: Any) -> Any:
    """ONNX's schema of a node; None where it has none."""
    return schemas.at(node.op_type, schemas.version(model, node.domain), node.domain)


def _kept(proto: Any) -> set[str]:
    """Functions of ONNX that are converted as they are, wherever the model has them."""
    functions = {
        each.name
        for each in onnx.defs.get_all_schemas()
        if each.has_function or each.has_context_dependent_function
    }
    own, theirs = operators.CONVERTED, set(onnx_frontend._get_convert_map()) - _INEXACT
    kept = functions & (own | theirs)
    return kept - {node.op_type for node in schemas.nodes(proto.graph) if not _is_converted(node)}


def _is_kept(node: Any, kept: set[str]) -> bool:
    """Whether a node is none of a function of ONNX, or of one that is converted."""
    if not onnx.defs.has(node.op_type, node.domain):
        return True
    schema = onnx.defs.get_schema(node.op_type, node.domain)
    is_function = schema.has_function or schema.has_context_dependent_function
    return not is_function or (not node.domain and node.op_type in kept)


def _is_converted(node: Any) -> bool:
    """Whether a node has nothing that the conversion of its operator leaves to the function."""
    given = {each.name for each in node.attribute}
    if node.op_type == "Attention" and "num_heads" not in given:
        is_plain = given <= _OF_ATTENTION and not any((*node.input[4:], *node.output[1:]))
        return is_plain and not ("is_causal" in given and any(node.input[3:]))
    if node.op_type == "LayerNormalization":
        return not any(node.output[1:])
    return True


def _without_weights(proto: Any) -> tuple[dict[str, Any], Any]:
    """Large initializers by name, and the model with inputs of the types of all instead."""
    graph = proto.graph
    weights = {t.name: t for t in graph.initializer if math.prod(t.dims) > _MAX_ELEMENTS}
    inputs = {item.name for item in graph.input}
    typed = [
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in graph.initializer
        if tensor.name not in inputs
    ]
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    light.graph.name = graph.name
    light.graph.node.extend(graph.node)
    light.graph.input.extend([*graph.input, *typed])
    light.graph.output.extend(graph.output)
    light.graph.value_info.extend(graph.value_info)
    light.graph.initializer.extend(t for t in graph.initializer if t.name not in weights)
    return weights, light
