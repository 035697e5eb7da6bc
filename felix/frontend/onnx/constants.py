"""Small values of an ONNX model that are known when it is imported: shapes, above all.

Exporters compute shapes by nodes: the shape of a tensor, parts of it, products, concatenations.
TVM converts some of these to calls whose result it does not know, so that tensors lose their rank.
Here a node whose inputs are known is computed at once, by ONNX's reference evaluator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

#: Elements of the largest value that is computed.
MAX_ELEMENTS = 1024
#: What shapes are computed by; none of it takes long if inputs and result are small.
_ARITHMETIC = frozenset(
    """
    Abs Add And Cast CastLike Ceil Compress Concat Constant ConstantOfShape Div Equal Expand
    Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual
    Max Min Mod Mul Neg NonZero Not Or Pow Range ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum Reshape Round ScatterElements ScatterND Shape Sign Size Slice Split Sqrt Squeeze Sub
    Sum Tile TopK Transpose Unique Unsqueeze Where Xor
    """.split()
)
#: Element types of values.
TYPES = frozenset(
    """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64
    """.split()
)
#: Results of these are no longer than their inputs; their extents follow from data.
_NO_LONGER = frozenset({"Compress", "NonZero", "Unique"})
#: What computing a node may raise; its conversion then says what is wrong.
_PYTHONS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)
_FAILURES = (*_PYTHONS, ValueError, shape_inference.InferenceError, onnx.defs.SchemaError)


def fold(
    operator: str,
    values: Sequence[Any],
    options: Mapping[str, Any],
    tables: Sequence[Any],
    n_outputs: int = 1,
    opset: int = 23,
) -> Any:
    """A node's value as a constant, or several as a tuple; None where they are not known.

    Args:
        operator: of the node.
        values: its operands; None for those that it leaves out.
        options: its attributes.
        tables: what TVM's importer finds constants in.
        n_outputs: how many values it has.
        opset: the version of ONNX's operators.
    """
    if operator not in _ARITHMETIC:
        return None
    shape = _extents(getattr(getattr(values[0], "ty", None), "shape", None)) if values else None
    if operator in ("Shape", "Size") and shape is not None and options.keys() <= {"start", "end"}:
        of_shape = slice(options.get("start"), options.get("end"))
        result = shape[of_shape] if operator == "Shape" else [math.prod(shape)]
        return _constant(np.array(result, "int64").reshape([-1] * (operator == "Shape")))
    arrays = [_operand(value, tables) for value in values]
    is_unknown = any((a is None) != (v is None) for a, v in zip(arrays, values, strict=True))
    if is_unknown or not (values or (operator == "Constant" and "value" not in options)):
        return None
    try:
        results = _computed(operator, arrays, options, n_outputs, opset)
    except _FAILURES:
        return None
    if results is None or any(each.dtype.name not in TYPES for each in results):
        return None
    constants = [_constant(each) for each in results]
    return constants[0] if n_outputs == 1 else relax.Tuple(constants)


def _computed(
    operator: str, arrays: Sequence[Any], options: Mapping[str, Any], n_outputs: int, opset: int
) -> list[np.ndarray] | None:
    """What a node computes; None where that may be large, or the operator lacks an attribute."""
    if not options.keys() <= set(onnx.defs.get_schema(operator, opset).attributes):
        return None
    given = [numpy_helper.from_array(a, f"x{i}") for i, a in enumerate(arrays) if a is not None]
    read = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(n_outputs)]
    node = helper.make_node(operator, read, [each.name for each in outputs], **options)
    graph = helper.make_graph([node], "node", [], outputs, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph.output
    if operator not in _NO_LONGER and not all(map(_is_small, inferred)):
        return None
    with np.errstate(divide="raise", invalid="raise"):
        return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, {})]


def _is_small(output: Any) -> bool:
    kind = output.type.tensor_type
    dims = kind.shape.dim
    is_closed = kind.HasField("shape") and all(dim.HasField("dim_value") for dim in dims)
    return is_closed and math.prod(dim.dim_value for dim in dims) <= MAX_ELEMENTS


def _constant(array: np.ndarray) -> Any:
    return relax.const(np.array(array, order="C"), str(array.dtype))


def _operand(value: Any, tables: Sequence[Any]) -> Any:
    """A small value as an array: an integer, or a number that is no parameter."""
    is_constant = isinstance(value, tvm.ir.GenericConst)
    found = value.value.numpy() if is_constant else known(value, tables)
    return None if found is None or found.size > MAX_ELEMENTS else found


def known(value: Any, tables: Sequence[Any]) -> Any:
    """A small integer value as an array; None where it is not known."""
    if isinstance(value, tvm.tirx.IntImm):
        return np.array(int(value), "int64")
    if isinstance(value, relax.ShapeExpr):
        extents = _extents(value)
        return None if extents is None else np.array(extents, "int64")
    kind: Any = getattr(value, "ty", None)
    if not str(getattr(kind, "dtype", "")).startswith(("int", "uint", "bool")):
        return None
    extents = _extents(kind.shape)
    is_small = extents is not None and math.prod(extents) <= MAX_ELEMENTS
    return array(value, tables) if is_small else None


def small(value: Any, tables: Sequence[Any]) -> Any:
    """The value of an initializer or a constant of at most `MAX_ELEMENTS`; None of others."""
    found = known(value, tables)
    extents = _extents(getattr(getattr(value, "ty", None), "shape", None))
    if found is not None or extents is None or math.prod(extents) > MAX_ELEMENTS:
        return found
    return array(value, tables)


def array(value: Any, tables: Sequence[Any]) -> Any:
    """The value of an initializer or a constant; None where it is not known."""
    constant = None if value is None else onnx_frontend.get_constant(value, tables)
    return constant.value.numpy() if isinstance(constant, tvm.ir.GenericConst) else None


def _extents(shape: Any) -> list[int] | None:
    """The extents of a tensor; None if one is open, or the number of them."""
    extents: list[Any] = list(shape) if isinstance(shape, relax.ShapeExpr) else [None]
    is_closed = all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)
    return [int(extent) for extent in extents] if is_closed else None
