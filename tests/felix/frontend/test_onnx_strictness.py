"""What is no valid ONNX is refused by name; what is valid, and rare, is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is an optional extra")

import torch
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from felix import errors, frontend
from felix.frontend.onnx import rules, schemas
from tests.felix.frontend.test_networks import assert_agrees
from tests.felix.frontend.test_onnx_reading import result
from tests.support.hostile import onnx_models as models
from tests.support.hostile.onnx_models import one

X = np.arange(1, 7, dtype="float32").reshape(2, 3)
INTEGERS = np.array([7, -7, 2**31 - 1, -(2**31), 5], "int32")
SCALE = np.ones(3, "float32")


def refusal(model: Any) -> str:
    with pytest.raises(errors.WorkloadError) as raised:
        frontend.import_onnx(model.SerializeToString())
    return str(raised.value)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (one("Softmax", X, axes=0), "the attribute 'axes', which opset 23 does not have"),
        (one("Softmax", X, axis=0.0), "the attribute 'axis' of the type float, not int"),
        (one("Softmax", X, axis=2), "float32 (2, 3) and the attributes axis"),
        (one("ReduceMax", X, keepdims=2), "the attribute 'keepdims' of another value than 0 or 1"),
        (one("Gelu", X, approximate="erf"), "'approximate' of another value than none or tanh"),
        (one("Concat", X, X), "lacks its attribute 'axis'"),
        (one("Exp", X, X), "has 2 inputs, 1 are the most"),
        (one("Gelu", X, opset=19), "is of an operator that opset 19 does not have"),
        (one("Upsample", X, np.ones(2, "float32"), opset=10), "opset 10 does not have"),
        (one("Add", X, X.astype("float64")), "operands of float32 (2, 3), float64"),
        (one("Sqrt", X.astype("int64")), "not defined for operands of int64 (2, 3)"),
        (one("LayerNormalization", X, SCALE, epsilon=-1.0), "'epsilon' is not in the range"),
        (one("HardSigmoid", X, beta=float("nan")), "'beta' of another value than a number"),
        (one("LpNormalization", X, p=5), "its attribute 'p' is not in the range [1, 2]"),
        (one("Mod", X, X), "floats need its attribute 'fmod' before opset 28"),
        (one("Clip", X, SCALE), "its operand 1 has 3 elements, not one"),
        (one("ReduceSum", X, np.array(1), known=1), "its axes are no list"),
        (one("NegativeLogLikelihoodLoss", X, np.zeros(3, "int64")), "its labels have another"),
        (one("SoftmaxCrossEntropyLoss", X, np.zeros((2, 1), "int64")), "its labels have another"),
        (one("SoftmaxCrossEntropyLoss", X, np.zeros(2, "float32")), "that ONNX's operator has"),
    ],
)  # fmt: skip
def test_a_node_is_what_onnx_defines(model: Any, words: str) -> None:
    message = refusal(model)
    (node,) = model.graph.node
    assert f"the node 'y' (operator '{node.op_type}')" in message and words in message


def test_outputs_of_a_node() -> None:
    x = [models.value("x", [4, 8])]
    many = models.model([models.node("Relu", ["x"], ["y", "z"])], (), x)
    assert "has 2 outputs, 1 are the most" in refusal(many)
    far = models.node("LayerNormalization", ["x", "s"], ["y", "mean"], axis=2**31)
    scale = models.onnx.numpy_helper.from_array(np.ones(8, "float32"), "s")
    assert "'axis' of another value than an axis" in refusal(models.model([far], [scale], x))
    none = models.model([models.node("TopK", ["x", "k"], ["", "y"])], [models.integers("k", 1)], x)
    assert "lacks its output 'Values'" in refusal(none)


def test_an_attribute_is_there_once() -> None:
    model = one("Softmax", X, axis=0)
    model.graph.node[0].attribute.append(model.graph.node[0].attribute[0])
    assert "has two attributes of one name" in refusal(model)


def test_outputs_are_of_the_type_that_is_declared() -> None:
    model = one("ArgMax", X)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    assert "its output 'y' is int64, and the model declares float32" in refusal(model)


def test_shapes_that_are_declared_of_outputs_do_not_matter() -> None:
    model = one("Relu", X)
    model.graph.output[0].CopyFrom(models.value("y", [5, 5]))
    assert result(model, X).tolist() == X.tolist()


@pytest.mark.parametrize(
    ("place", "shape", "name"),
    [(1, [2, 15, 3], "W"), (2, [1, 15, 4], "R"), (3, [1, 15], "B"), (5, [4, 1, 5], "initial_h")],
)
def test_operands_of_a_recurrent_operator_fit(place: int, shape: list[int], name: str) -> None:
    shapes: list[Any] = [[4, 2, 3], [1, 15, 3], [1, 15, 5], [1, 30], None, [1, 2, 5]]
    assert rules.broken("GRU", shapes, {"hidden_size": 5}) is None
    assert "lacks its attribute 'hidden_size'" in str(rules.broken("GRU", shapes, {}))
    shapes[place] = shape
    assert f"its operand {name!r} is not" in str(rules.broken("GRU", shapes, {"hidden_size": 5}))
    assert "'X'" in str(rules.broken("GRU", [[4, 2], *shapes[1:]], {"hidden_size": 5}))


def test_an_attention_has_as_many_values_as_keys() -> None:
    shapes = [[1, 2, 4, 8], [1, 2, 6, 8], [1, 2, 5, 8]]
    assert "number of rows" in str(rules.broken("Attention", shapes, {}))
    shapes[2] = [1, 2, 6, 8]
    assert rules.broken("Attention", shapes, {}) is None
    assert "three axes" in str(rules.broken("Attention", shapes, {"q_num_heads": 2}))
    assert rules.broken("Attention", [None] * 3, {"num_heads": 2}) is None


@pytest.mark.parametrize("operator", ["Div", "Mod"])
@pytest.mark.parametrize("divisors", [[2, 2, -1, -1, 0], [0, -1, 3, -3, 1]])
def test_no_divisor_ends_the_process(operator: str, divisors: list[int]) -> None:
    y = np.array(divisors, "int32")
    found = result(one(operator, INTEGERS, y), INTEGERS, y).tolist()
    for x, divisor, quotient in zip(INTEGERS.tolist(), divisors, found, strict=True):
        whole = 0 if not divisor else int(np.trunc(x / divisor))
        right = whole if operator == "Div" else x % divisor if divisor else 0
        assert quotient == (right + 2**31) % 2**32 - 2**31  # of 32 bits


def test_integers_without_a_sign_are_divided() -> None:
    x, y = np.array([200, 7, 255], "uint8"), np.array([3, 0, 255], "uint8")
    assert result(one("Div", x, y), x, y).tolist() == [66, 0, 1]
    assert result(one("Div", x, y[[0, 0, 2]], known=1), x).tolist() == [66, 2, 1]


def test_zeros_are_quantised_to_zeros() -> None:
    node = models.node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    kind = TensorProto.UNDEFINED
    model = models.model([node], (), [models.value("x", [3])], node.output, kind=kind)
    y, scale, zero = result(model, np.zeros(3, "float32"))
    assert (y.tolist(), float(scale), int(zero)) == ([0, 0, 0], 1.0, 0)
    x = np.array([-1.0, 0.3, 2.0], "float32")
    right = ReferenceEvaluator(model).run(None, {"x": x})
    assert_agrees(result(model, x), tuple(map(torch.from_numpy, map(np.asarray, right))), 1e-6)


def test_regions_of_16_bits() -> None:
    x, regions = np.ones((1, 1, 8, 8), "float16"), np.array([[0, 0, 4, 4]], "float16")
    batches = np.zeros(1, "int64")
    found = result(one("RoiAlign", x, regions, batches), x, regions, batches)
    assert found.dtype == torch.float16 and found.flatten().tolist() == [1.0]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses(reduction: str) -> None:
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((2, 3, 4)).astype("float32"), SCALE * [1, 2, 4]
    labels = rng.integers(0, 3, (2, 4))
    options = {"reduction": reduction, "ignore_index": 1}
    args = (x, labels, weights.astype("float32"))
    model = one("NegativeLogLikelihoodLoss", *args, **options)
    right = torch.nn.functional.nll_loss(*map(torch.from_numpy, args), **options)
    assert_agrees(result(model, *args), right, 1e-6)


def test_a_type_of_no_number_has_no_name() -> None:
    assert schemas.type_name(TensorProto.DOUBLE) == "float64"
    assert schemas.type_name(12345) == "12345"
