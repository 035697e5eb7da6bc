"""Shapes that an ONNX model computes by nodes are known when it is imported."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is an optional extra")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from felix import frontend  # noqa: E402
from felix.frontend.onnx import constants  # noqa: E402

SIX = np.array([3, -1, 4, 1, -5, 9], "int64")
CASES = [
    ("Add", [SIX, np.array(2)], {}),
    ("Sub", [SIX, np.array([1])], {}),
    ("Mul", [SIX, SIX], {}),
    ("Div", [np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])], {}),
    ("Mod", [np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])], {}),
    ("Mod", [np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])], {"fmod": 1}),
    ("Equal", [SIX, np.array(-1)], {}),
    ("Where", [np.array([True, False]), np.array([1, 2]), np.array([3, 4])], {}),
    ("Concat", [SIX[:2], SIX], {"axis": 0}),
    ("Gather", [SIX, np.array([-1, 2])], {}),
    ("Gather", [SIX, np.array(1)], {"axis": 0}),
    ("Slice", [SIX, np.array([1]), np.array([2**31 - 1])], {}),
    ("Slice", [SIX, np.array([-2]), np.array([-(2**31)]), np.array([0]), np.array([-1])], {}),
    ("Slice", [SIX.reshape(2, 3), np.array([1]), np.array([3]), np.array([-1])], {}),
    ("Unsqueeze", [SIX, np.array([0, 2])], {}),
    ("Squeeze", [SIX.reshape(1, 6, 1), np.array([0])], {}),
    ("Squeeze", [SIX.reshape(1, 6, 1)], {}),
    ("Cast", [SIX], {"to": TensorProto.INT32}),
    ("Identity", [SIX], {}),
]


@pytest.mark.parametrize(("operator", "arrays", "attributes"), CASES)
def test_values_are_those_of_onnx(operator, arrays, attributes):
    names = [f"x{number}" for number in range(len(arrays))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, arrays, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph([node], "one", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (expected,) = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    actual = constants._OPERATORS[operator](arrays, attributes)
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == expected.dtype


def test_a_division_by_zero_is_left_to_tvm():
    with pytest.raises(ZeroDivisionError):
        constants._OPERATORS["Div"]([SIX, np.array(0)], {})


def test_a_computed_shape_gives_a_known_result():
    """[2, 6, 4] reshaped to [shape[0] * 3, -1] by nodes, then sliced: its rank must be known."""
    constants = {"three": [3], "rest": [-1], "zero": [0], "one": [1], "two": [2]}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Mul", ["batch", "three"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["extents"], axis=0),
        helper.make_node("Reshape", ["x", "extents"], ["flat"]),
        helper.make_node("Slice", ["flat", "zero", "two", "one"], ["part"]),
        helper.make_node("Relu", ["part"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array(value, "int64"), name)
            for name, value in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    imported = frontend.import_onnx(model.SerializeToString())
    assert imported.outputs[0].shape == (6, 2)
