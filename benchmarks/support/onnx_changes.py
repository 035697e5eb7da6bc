"""Files of ONNX with something changed, each from a seed and a number alone.

What is changed are ONNX's own cases of one node, of numbers alone, and some graphs of several
nodes. One file in five has two changes.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from benchmarks.support import onnx_cases, onnx_graphs
from felix.frontend.onnx import schemas

_INTEGERS = (0, 1, -1, 2, 3, 4, 5, 7, -2, -3, -8, 64, 2**31)
_FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-5, 1e6, float("nan"))
_TEXTS = ("", "NOTSET", "SAME_UPPER", "VALID", "linear", "nearest", "reflect", "edge", "constant",
          "none", "mean", "LEFT", "RIGHT", "DCR", "CRD", "reverse", "tanh", "add", "max",
          "half_pixel", "asymmetric", "ij,jk->ik", "unknown")  # fmt: skip
_TYPES = ("float32 float64 float16 bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
          "bool string").split()  # fmt: skip
_EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8)
_NEW_NAMES = ("unknown", "axis", "axes", "keepdims", "alpha", "perm", "to", "k", "mode")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A changed file, and inputs of it.

    `changes` says what was changed; inputs are in the order of the graph's.
    """

    name: str
    changes: tuple[str, ...]
    model: Any
    inputs: tuple[Any, ...]
    rtol: float = 1e-3
    atol: float = 1e-6


def bases() -> list[Case]:
    """What is changed, in a fixed order."""
    rng = np.random.default_rng(0)
    found = []
    for name, case in sorted(onnx_cases.collected().items()):
        inputs = case.data_sets[0][0]
        is_typed = all(item.type.HasField("tensor_type") for item in case.model.graph.input)
        if is_typed and all(np.asarray(each).dtype.kind in "biuf" for each in inputs):
            tolerances = {"rtol": case.rtol, "atol": max(case.atol, 1e-6)}
            found.append(Case(name, (), case.model, tuple(map(np.asarray, inputs)), **tolerances))
    graphs = []
    for name, text in onnx_graphs.GRAPHS.items():
        model = onnx.parser.parse_model(text)
        inputs = [_random(rng, item) for item in model.graph.input]
        graphs.append(Case(name, (), model, tuple(inputs)))
    return found + graphs * (len(found) // (9 * len(graphs)))  # a tenth


def of_attributes(originals: Sequence[Case]) -> list[Case]:
    """Each attribute of each operator changed to other values, in one case of the operator."""
    first: dict[str, Case] = {}
    for case in originals:
        if len(case.model.graph.node) == 1:
            first.setdefault(case.model.graph.node[0].op_type, case)
    found = []
    for operator, case in first.items():
        if case.model.graph.node[0].domain or not onnx.defs.has(operator):
            continue
        version = schemas.version(case.model)
        formals = onnx.defs.get_schema(operator, version, "").attributes
        given = {each.name: each for each in case.model.graph.node[0].attribute}
        for name, formal in sorted(formals.items()):
            now = given.get(name, formal.default_value if formal.default_value.type else None)
            value = None if now is None else helper.get_attribute_value(now)
            for other in _others(operator, name, int(formal.type), value):
                model = onnx.ModelProto()
                model.CopyFrom(case.model)
                (node,) = model.graph.node
                if name in given:
                    node.attribute.remove(given[name])
                node.attribute.append(helper.make_attribute(name, other, None, int(formal.type)))
                change = f"{operator}: {name} is {other}"
                found.append(dataclasses.replace(case, changes=(change,), model=model))
    return found


def _others(operator: str, name: str, kind: int, value: Any) -> list[Any]:
    """Values that an attribute has not."""
    types = onnx.AttributeProto
    if kind == types.INT:
        return [each for each in (0, 1, 2, -1) if each != value]
    if kind == types.FLOAT:
        return [each for each in (0.5, 2.0) if each != value]
    if kind == types.STRING:
        newest = onnx.defs.onnx_opset_version()
        texts = {each for opset in (1, newest) for each in schemas.texts(operator, name, opset)}
        return [each for each in (*sorted(texts), "unknown") if each.encode() != value]
    if kind == types.INTS and value:
        return [[each + 1 for each in value], list(reversed(value)), list(value[:-1])]
    return []


def _random(rng: np.random.Generator, item: Any) -> np.ndarray:
    kind = item.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    values = rng.uniform(0.0, 3.0, [dim.dim_value for dim in kind.shape.dim])
    return np.asarray(values).astype(dtype)


def changed(originals: Sequence[Case], seed: int, number: int) -> Case:
    """The file of a number: one of the originals with one change or two."""
    rng = random.Random(f"{seed}:{number}")
    original = rng.choice(originals)
    model = onnx.ModelProto()
    model.CopyFrom(original.model)
    names = [item.name for item in model.graph.input]
    values = dict(zip(names, original.inputs, strict=False))
    changes: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 1, 2))):
        made = None
        while made is None:
            made = rng.choice(_CHANGES)(rng, model)
        changes.append(made)
    inputs = tuple(_fitting(values[item.name], item) for item in model.graph.input)
    return dataclasses.replace(original, changes=tuple(changes), model=model, inputs=inputs)


def _fitting(value: np.ndarray, item: Any) -> np.ndarray:
    """Values of the type and shape that an input has now: the same ones, repeated."""
    kind = item.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    dims = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in kind.shape.dim]
    shape = tuple(dims) if kind.HasField("shape") else value.shape
    with np.errstate(all="ignore"):
        fitting = value if value.shape == shape else np.resize(value, shape)
        return np.asarray(fitting).astype(dtype)


# Each change returns what it changed, in words, or None where there is nothing of the kind.


def _node(rng: random.Random, model: Any) -> Any:
    return rng.choice(model.graph.node)


def _attribute(rng: random.Random, model: Any) -> tuple[Any, Any] | None:
    pairs = [(node, each) for node in model.graph.node for each in node.attribute]
    return rng.choice(pairs) if pairs else None


def _drop_attribute(rng: random.Random, model: Any) -> str | None:
    if (found := _attribute(rng, model)) is None:
        return None
    node, attribute = found
    node.attribute.remove(attribute)
    return f"{node.op_type} without {attribute.name}"


def _rename_attribute(rng: random.Random, model: Any) -> str | None:
    if (found := _attribute(rng, model)) is None:
        return None
    node, attribute = found
    before, attribute.name = attribute.name, rng.choice((*_NEW_NAMES, attribute.name.upper()))
    return f"{node.op_type}: {before} is called {attribute.name}"


def _value(rng: random.Random, kind: int) -> Any:
    single = {
        onnx.AttributeProto.INT: lambda: rng.choice(_INTEGERS),
        onnx.AttributeProto.FLOAT: lambda: rng.choice(_FLOATS),
        onnx.AttributeProto.STRING: lambda: rng.choice(_TEXTS),
    }
    of_many = {
        onnx.AttributeProto.INTS: onnx.AttributeProto.INT,
        onnx.AttributeProto.FLOATS: onnx.AttributeProto.FLOAT,
        onnx.AttributeProto.STRINGS: onnx.AttributeProto.STRING,
    }
    if kind in of_many:
        return [single[of_many[kind]]() for _ in range(rng.choice((0, 1, 2, 3, 4)))]
    return single[kind]()


_KINDS = tuple(
    getattr(onnx.AttributeProto, name)
    for name in ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS")
)


def _set(node: Any, attribute: Any, value: Any, kind: int) -> None:
    made = helper.make_attribute(attribute.name, value, attr_type=kind)
    node.attribute[list(node.attribute).index(attribute)].CopyFrom(made)


def _retype_attribute(rng: random.Random, model: Any) -> str | None:
    if (found := _attribute(rng, model)) is None:
        return None
    node, attribute = found
    name, kind = attribute.name, rng.choice([each for each in _KINDS if each != attribute.type])
    value = _value(rng, kind)
    _set(node, attribute, value, kind)
    return f"{node.op_type}: {name} is {onnx.AttributeProto.AttributeType.Name(kind)} {value}"


def _change_attribute(rng: random.Random, model: Any) -> str | None:
    found = _attribute(rng, model)
    if found is None or found[1].type not in _KINDS:
        return None
    node, attribute = found
    name, kind = attribute.name, attribute.type
    value = _value(rng, kind)
    if kind == onnx.AttributeProto.INTS and attribute.ints and rng.random() < 0.7:
        value = list(attribute.ints)
        value[rng.randrange(len(value))] = rng.choice(_INTEGERS)
    _set(node, attribute, value, kind)
    return f"{node.op_type}: {name} is {value}"


def _add_attribute(rng: random.Random, model: Any) -> str | None:
    """One that the operator has in some version."""
    node = _node(rng, model)
    given = {each.name for each in node.attribute}
    if not onnx.defs.has(node.op_type, node.domain):
        return None
    formals = onnx.defs.get_schema(node.op_type, node.domain).attributes
    names = sorted(set(formals) - given)
    kinds = {name: int(formals[name].type.value) for name in names}
    names = [name for name in names if kinds[name] in _KINDS]
    if not names:
        return None
    name = rng.choice(names)
    value = _value(rng, kinds[name])
    node.attribute.append(helper.make_attribute(name, value, attr_type=kinds[name]))
    return f"{node.op_type}: {name} is {value}"


def _remove_input(rng: random.Random, model: Any) -> str | None:
    node = _node(rng, model)
    if not node.input:
        return None
    place = rng.randrange(len(node.input))
    if rng.random() < 0.5:
        node.input[place] = ""
        return f"{node.op_type}: input {place} is left out"
    del node.input[place]
    return f"{node.op_type} without input {place}"


def _swap_inputs(rng: random.Random, model: Any) -> str | None:
    node = _node(rng, model)
    if len(node.input) < 2:
        return None
    i, j = rng.sample(range(len(node.input)), 2)
    node.input[i], node.input[j] = node.input[j], node.input[i]
    return f"{node.op_type}: inputs {i} and {j} are swapped"


def _repeat_input(rng: random.Random, model: Any) -> str | None:
    node = _node(rng, model)
    if not node.input:
        return None
    node.input.append(rng.choice(node.input))
    return f"{node.op_type}: {node.input[-1]!r} once more"


def _retype_input(rng: random.Random, model: Any) -> str | None:
    if not model.graph.input:
        return None
    item, name = rng.choice(model.graph.input), rng.choice(_TYPES)
    number = onnx.TensorProto.STRING
    if name != "string":
        number = {"float32": 1, "float64": 11, "bfloat16": 16}.get(name) or (
            helper.np_dtype_to_tensor_dtype(np.dtype(name))
        )
    before, has_all = item.type.tensor_type.elem_type, rng.random() < 0.6
    for each in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if each is item or (has_all and each.type.tensor_type.elem_type == before):
            each.type.tensor_type.elem_type = number
    return f"{item.name} {'and what is of its type are' if has_all else 'is'} {name}"


def _reshape_input(rng: random.Random, model: Any) -> str | None:
    if not model.graph.input:
        return None
    item = rng.choice(model.graph.input)
    kind = item.type.tensor_type
    shape: list[Any] = [dim.dim_value for dim in kind.shape.dim]
    way = rng.randrange(6)
    if way < 3 and shape:
        shape[rng.randrange(len(shape))] = rng.choice(_EXTENTS)
    elif way == 3 and shape:
        del shape[rng.randrange(len(shape))]
    elif way == 4 and shape:
        shape[rng.randrange(len(shape))] = rng.choice(("n", 0))
    else:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice(_EXTENTS))
    item.CopyFrom(helper.make_tensor_value_info(item.name, kind.elem_type, shape))
    if rng.random() < 0.7:  # what follows is open
        del model.graph.value_info[:]
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
    return f"{item.name} has the shape {shape}"


def _change_opset(rng: random.Random, model: Any) -> str | None:
    newest = onnx.defs.onnx_opset_version()
    version = rng.choice((*range(1, newest + 1), 99))
    model.opset_import[0].version = version
    return f"opset {version}"


def _change_output(rng: random.Random, model: Any) -> str | None:
    """One less, or one more, of a node; the graph's follow."""
    node = _node(rng, model)
    if rng.random() < 0.3 or not node.output:
        node.output.append("more")
        return f"{node.op_type} with one more output"
    place = rng.randrange(len(node.output))
    name = node.output[place]
    if rng.random() < 0.5:
        del node.output[place]
    else:
        node.output[place] = ""
    for item in [item for item in model.graph.output if item.name == name]:
        model.graph.output.remove(item)
    return f"{node.op_type} without output {place}"


_CHANGES: tuple[Callable[[random.Random, Any], str | None], ...] = (
    _drop_attribute,
    _rename_attribute,
    _retype_attribute,
    _change_attribute,
    _change_attribute,
    _add_attribute,
    _remove_input,
    _swap_inputs,
    _repeat_input,
    _retype_input,
    _reshape_input,
    _reshape_input,
    _change_opset,
    _change_output,
)
