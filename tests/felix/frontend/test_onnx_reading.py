"""What ONNX files say is read, or refused by name: operands, attributes, functions, loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is an optional extra")

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from felix import errors, frontend
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.support.hostile import onnx_models as models
from tests.support.hostile.onnx_models import one


def result(content: Any, *args: np.ndarray, values: Any = None) -> Any:
    imported = frontend.import_onnx(content.SerializeToString(), values=values)
    return run(imported, frontend.lowered(imported), [torch.from_numpy(x) for x in args])


def test_a_window_that_begins_outside() -> None:
    x = np.arange(7, dtype="float32").reshape(1, 1, 7)
    options = {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_LOWER"}
    assert result(one("MaxPool", x, **options), x).flatten().tolist() == [1, 3, 5, 6]


def test_regions_are_scaled_before_half_a_pixel() -> None:
    x = np.arange(64, dtype="float32").reshape(1, 1, 8, 8)
    regions, batches = np.array([[0, 0, 20, 20]], "float32"), np.zeros(1, "int64")
    options = {"spatial_scale": 0.25, "sampling_ratio": 2, "opset": 16}
    model = one("RoiAlign", x, regions, batches, **options)
    (right,) = ReferenceEvaluator(model).run(None, {"x0": x, "x1": regions, "x2": batches})
    assert_agrees(result(model, x, regions, batches), torch.from_numpy(right), 1e-6)


def test_all_outputs_of_a_norm() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
    node = models.node("LayerNormalization", ["x", "s"], ["y", "mean", "deviation"])
    scale = numpy_helper.from_array(np.ones(4, "float32"), "s")
    model = models.model([node], [scale], [models.value("x", [3, 4])], node.output, opset=17)
    right = ReferenceEvaluator(model).run(None, {"x": x})
    assert_agrees(result(model, x), tuple(map(torch.from_numpy, right)), 1e-6)


@pytest.mark.parametrize(
    "operator, axis, options",
    [("ReduceMax", 1, {"keepdims": 0}), ("ReduceMean", -1, {}), ("CumSum", 0, {"reverse": 1})],
)
def test_axes_may_be_inputs_whose_values_are_given(operator: str, axis: int, options: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype("float32")
    axes = np.array(axis) if operator == "CumSum" else np.array([axis])
    model = one(operator, x, axes, **options)
    (right,) = ReferenceEvaluator(model).run(None, {"x0": x, "x1": axes})
    assert_agrees(result(model, x, values={"x1": axes}), torch.tensor(right.copy()), 1e-6)
    with pytest.raises(errors.WorkloadError, match=r"must be known.*'x1'.* in `values`"):
        frontend.import_onnx(model.SerializeToString())


def test_the_largest_of_infinities_is_infinite() -> None:
    x = np.array([[-np.inf, -np.inf], [1, -np.inf]], "float32")
    model = one("ReduceMax", x, np.array([1]), known=1)
    assert result(model, x).flatten().tolist() == [-np.inf, 1]


@pytest.mark.parametrize(
    "dividend, divisor, right",
    [(1.0, 0.1, 0.1), (5.5, np.inf, 5.5), (-7.5, 2.0, -1.5), (1e30, 3.0, 0.0)],
)
def test_remainders_are_cs(dividend: float, divisor: float, right: float) -> None:
    x, y = np.array([dividend], "float32"), np.array([divisor], "float32")
    expected = np.fmod(x, y)
    assert right == 0.0 or np.allclose(expected, right)
    np.testing.assert_array_equal(result(one("Mod", x, y, fmod=1), x, y).numpy(), expected)


def test_a_loop_of_known_rounds_and_a_function_of_the_model() -> None:
    """y = 8 x + 7: a function doubles and adds 1, three times."""
    inputs = [models.value("i", [], models.INT64), models.value("going", [], models.BOOL)]
    inputs.append(models.value("a", [2]))
    called = helper.make_node("twice", ["a"], ["b"], domain="mine")
    body = models.graph([models.node("Identity", ["going"], ["on"]), called], inputs, ["on", "b"])
    body.output[0].type.tensor_type.elem_type = models.BOOL
    number = helper.make_tensor("one", models.FLOAT, [], [1.0])
    nodes = [
        models.node("Add", ["p", "p"], ["r"]),
        models.node("Constant", [], ["one"], value=number),
        models.node("Add", ["r", "one"], ["q"]),
    ]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("mine", "twice", ["p"], ["q"], nodes, opsets)
    loop = models.node("Loop", ["rounds", "", "x"], ["y"], body=body)
    rounds = numpy_helper.from_array(np.array(3), "rounds")
    model = models.model([loop], [rounds], [models.value("x", [2])])
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    x = np.array([1, -2], "float32")
    np.testing.assert_array_equal(result(model, x).numpy(), 8 * x + 7)


def test_a_graph_that_does_not_fit_its_node_is_refused() -> None:
    body = models.graph([models.node("Relu", ["a"], ["b"])], [models.value("a", [2])], ["b"])
    scan = models.node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_input_axes=[5])
    content = models.model([scan], [], [models.value("x", [3, 2])]).SerializeToString()
    with pytest.raises(errors.WorkloadError, match=r"'Scan'\): its graphs or attributes do not"):
        frontend.import_onnx(content)


def test_an_operator_is_written_out_as_onnx_defines_it() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype("float32")
    labels = np.array([4, 0, 2])
    model = one("SoftmaxCrossEntropyLoss", x, labels, reduction="mean", opset=13)
    (right,) = ReferenceEvaluator(model).run(None, {"x0": x, "x1": labels})
    assert_agrees(result(model, x, labels), torch.tensor(right), 1e-6)


@pytest.mark.parametrize(
    "model, words",
    [
        (one("Cast", np.zeros(2, "float32"), to=TensorProto.FLOAT8E5M2), "float8e5m2"),
        (one("Relu", np.zeros(2, "float32"), np.zeros(2, "float32")), "has 2 inputs, 1 are"),
        (one("BatchNormalization", np.zeros((1, 2), "float32"), *[np.ones(2, "float32")] * 4,
             opset=6), "training is not supported"),
        (one("NonMaxSuppression", np.zeros((1, 2, 4), "float32"), np.zeros((1, 1, 2), "float32")),
         "follows from data"),
        (one("RandomNormalLike", np.zeros(2, "float32")), "random"),
        (one("MaxPool", np.zeros((1, 1, 4), "float32"), kernel_shape=[2], auto_pad="SAME"),
         "'auto_pad' of another value than NOTSET"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused_by_name(model: Any, words: str) -> None:
    with pytest.raises(errors.WorkloadError, match=rf"\(operator '\w+'\).*{words}"):
        frontend.import_onnx(model.SerializeToString())


def test_tensors_of_few_bits_are_refused() -> None:
    numbers = onnx.TensorProto(name="x", data_type=TensorProto.INT4, dims=[2], raw_data=b"!")
    model = models.model([models.node("Cast", ["x"], ["y"], to=1)], [numbers], [])
    with pytest.raises(errors.WorkloadError, match=r"'x' of the ONNX model is of .* int4"):
        frontend.import_onnx(model.SerializeToString())
