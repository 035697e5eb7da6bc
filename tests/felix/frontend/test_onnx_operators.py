"""ONNX operators that Felix converts itself, against PyTorch, and shapes computed by nodes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional
from tvm import relax

from felix import errors, frontend
from felix.frontend.onnx import constants
from tests.felix.frontend.test_networks import assert_agrees, run
from tests.support import share
from tests.support.hostile import onnx_models
from tests.support.hostile.onnx_models import BOOL, FLOAT, INT64, integers, node, value

UNDEFINED = TensorProto.UNDEFINED


def model(nodes, inputs, constants=(), opset=23, kind=FLOAT):
    """The bytes of a model with the output y."""
    given = [value(name, shape, of) for name, of, shape in inputs]
    return onnx_models.model(nodes, constants, given, opset=opset, kind=kind).SerializeToString()


def attention(heads, mask=(), inputs=("q", "k", "v"), **attributes):
    names = [*inputs, *(["m"] if mask else [])]
    operator = node("Attention", names, ["y"], **attributes)
    shapes = {"q": [2, 4, 5, 8], "k": [2, heads, 6, 8], "v": [2, heads, 6, 8]}
    values = [(name, FLOAT, shapes[name]) for name in inputs if name]
    return model([operator], values + ([("m", *mask)] if mask else []))


@pytest.mark.parametrize(
    "options, heads",
    share.crossed(
        [
            {},
            {"is_causal": 1},
            {"scale": 0.3},
            {"mask": (BOOL, [5, 6])},
            {"mask": (FLOAT, [2, 1, 5, 6])},
        ],
        [4, 2],
    ),
)
def test_attention_of_onnx_is_pytorchs(heads, options):
    torch.manual_seed(0)
    args = [torch.randn(2, n, rows, 8) for n, rows in ((4, 5), (heads, 6), (heads, 6))]
    mask = None
    if "mask" in options:
        kind, shape = options["mask"]
        mask = torch.rand(shape) > 0.3 if kind == BOOL else torch.randn(shape)
        if kind == BOOL:
            mask[2] = False  # a row without anything gives zeros
        args.append(mask)
    imported = frontend.import_onnx(attention(heads, **options))
    reference = functional.scaled_dot_product_attention(
        *args[:3],
        attn_mask=mask,
        is_causal=bool(options.get("is_causal")),
        scale=options.get("scale"),
        enable_gqa=heads != 4,
    )
    assert_agrees(run(imported, frontend.lowered(imported), args), reference, 2e-5)


@pytest.mark.parametrize("options", [{"inputs": ("q", "k")}, {"inputs": ("q", "", "v")}])
def test_attention_without_an_operand_is_refused(options):
    with pytest.raises(errors.WorkloadError, match="Attention"):
        frontend.import_onnx(attention(4, **options))


def _sliced(start, end, step):
    bounds = [integers(*each) for each in (("a", start), ("b", end), ("c", 0), ("d", step))]
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "a", "b", "c", "d"], ["t"]),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    return model(nodes, [("x", FLOAT, [2, 3, 4])], bounds, 17)


def test_a_slice_of_a_shape_is_a_constant():
    x = torch.randn(2, 3, 4)
    imported = frontend.import_onnx(_sliced(-1, -(2**62), -1))
    assert_agrees(run(imported, frontend.lowered(imported), [x]), x.reshape(4, 3, 2), 0)
    with pytest.raises(errors.WorkloadError, match="Slice"):
        frontend.import_onnx(_sliced(0, 3, 0))


def test_a_product_of_a_shape_that_data_decide_gives_no_task():
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["rows"], to=FLOAT),
        node("MatMul", ["rows", "w"], ["y"]),
    ]
    weights = helper.make_tensor("w", FLOAT, [4, 2], [1.0] * 8)
    made = model(nodes, [("x", FLOAT, [1, 4])], [weights])
    assert frontend.extract_tasks_onnx(made, "llvm") == []


def test_two_inputs_of_one_name_are_refused():
    operator = node("Relu", ["x"], ["y"])
    with pytest.raises(errors.WorkloadError, match="two inputs of the name 'x'"):
        frontend.import_onnx(model([operator], [("x", FLOAT, [2]), ("x", FLOAT, [2])]))


@pytest.mark.parametrize("shape", [[2, 3, 4], [3, 1], [5, 2, 3, 4], [1], [2, 1, 4]])
def test_a_shape_of_expand_may_be_an_initializer(shape):
    x = torch.randn(2, 1, 4)
    given = numpy_helper.from_array(np.array(shape, "int64"), "s")
    operator = node("Expand", ["x", "s"], ["y"])
    imported = frontend.import_onnx(model([operator], [("x", FLOAT, [2, 1, 4])], [given]))
    expected = x * torch.ones(shape)
    assert_agrees(run(imported, frontend.lowered(imported), [x]), expected, 0)


def test_a_shape_that_is_an_input_needs_its_value():
    nodes = [
        node("Neg", ["s"], ["n"]),
        node("Abs", ["n"], ["t"]),
        node("Expand", ["x", "t"], ["y"]),
    ]
    made = model(nodes, [("x", FLOAT, [2, 1, 4]), ("s", INT64, [3])])
    with pytest.raises(errors.WorkloadError, match=r"'Expand'.*'shape' must be known.*'s'"):
        frontend.import_onnx(made)
    imported = frontend.import_onnx(made, values={"s": [2, 3, 4]})
    assert [spec.name for spec in imported.inputs] == ["x"]
    x = torch.randn(2, 1, 4)
    assert_agrees(run(imported, frontend.lowered(imported), [x]), x.expand(2, 3, 4), 0)
    for wrong, words in (
        ({"t": [2]}, "no input 't'"),
        ({"s": [[2]]}, "shape"),
        ({"s": "a"}, "no"),
    ):
        with pytest.raises(errors.WorkloadError, match=f"values: .*{words}"):
            frontend.import_onnx(made, values=wrong)


@pytest.mark.parametrize(
    "axis, dtype, is_known",
    share.of(itertools.product([-1, 0, 1], ["float32", "float16", "int32"], [True, False]), 5),
)
def test_one_hot_has_the_type_of_its_values(axis, dtype, is_known):
    values, indices = np.array([2, 7], dtype), np.array([[0, -1, 2], [5, -3, 1]])
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    operator = node("OneHot", ["x", "d", "v"], ["y"], axis=axis)
    inputs = [("x", INT64, [2, 3])] + ([] if is_known else [("v", kind, [2])])
    constants = [numpy_helper.from_array(np.array(3), "d")]
    if is_known:
        constants.append(numpy_helper.from_array(values, "v"))
    content = model([operator], inputs, constants, 17, kind)
    given = {"x": indices} | ({} if is_known else {"v": values})
    (expected,) = ReferenceEvaluator(content).run(None, given)
    imported = frontend.import_onnx(content)
    args = [torch.tensor(array) for array in given.values()]
    assert_agrees(run(imported, frontend.lowered(imported), args), torch.tensor(expected), 0)


# ----------------------- shapes that an ONNX model computes by nodes are known when it is imported


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
    ("Max", [SIX, np.array([2])], {}),
    ("Split", [SIX], {"split": [2, 4]}),
    ("NonZero", [SIX > 0], {}),
    ("Cast", [SIX], {"to": TensorProto.FLOAT}),
    ("Floor", [SIX.astype("float32") / 2], {}),
    ("ConstantOfShape", [np.array([2, 3])], {}),
    ("Constant", [], {"value_ints": [3, 4]}),
    ("Constant", [], {"value_float": 0.5}),
]


@pytest.mark.parametrize(("operator", "arrays", "attributes"), CASES)
def test_values_are_those_of_onnx(operator, arrays, attributes):
    given = {f"x{number}": array for number, array in enumerate(arrays)}
    inputs = [
        value(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
        for name, array in given.items()
    ]
    outputs = [f"y{number}" for number in range(len(attributes.get("split", [0])))]
    made = onnx_models.model(
        [node(operator, [*given], outputs, **attributes)],
        inputs=inputs,
        outputs=outputs,
        kind=UNDEFINED,
        opset=11 if "split" in attributes else 23,
    )
    expected = ReferenceEvaluator(made).run(None, given)
    actual = folded(operator, arrays, attributes, made.opset_import[0].version, len(outputs))
    for each, right in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(each, right)
        assert each.dtype == right.dtype


def folded(operator, arrays, attributes, opset=23, n_outputs=1):
    given = [constants._constant(array) for array in arrays]
    made = constants.fold(operator, given, attributes, ({}, {}), n_outputs, opset)
    fields = made.fields if isinstance(made, relax.Tuple) else [made]
    return None if made is None else [each.value.numpy() for each in fields]


def test_what_is_undefined_large_random_or_unknown_is_left_to_tvm():
    assert folded("Div", [SIX, np.array(0)], {}) is None
    assert folded("Tile", [SIX, np.array([2**40])], {}) is None
    assert folded("ConstantOfShape", [np.array([2**20, 2**20])], {}) is None
    assert folded("Bernoulli", [SIX.astype("float32")], {}) is None
    assert folded("Add", [SIX, SIX], {"alpha": 2}) is None
    assert folded("Shape", [SIX], {"alpha": 2}) is None


def test_a_shape_may_be_an_output():
    nodes = [node("Shape", ["x"], ["y"], start=1), node("Size", ["x"], ["n"])]
    made = onnx_models.model(nodes, outputs="yn", inputs=[value("x", [2, 6, 4])], kind=INT64)
    imported = frontend.import_onnx(made.SerializeToString())
    shape, size = run(imported, frontend.lowered(imported), [torch.zeros(2, 6, 4)])
    assert (shape.tolist(), int(size)) == ([6, 4], 48)


def test_a_computed_shape_gives_a_known_result():
    """[2, 6, 4] reshaped to [shape[0] * 3, -1] by nodes, then sliced: its rank must be known."""
    numbers = {"three": 3, "rest": -1, "zero": 0, "one": 1, "two": 2}
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Mul", ["batch", "three"], ["rows"]),
        node("Concat", ["rows", "rest"], ["extents"], axis=0),
        node("Reshape", ["x", "extents"], ["flat"]),
        node("Slice", ["flat", "zero", "two", "one"], ["part"]),
        node("Relu", ["part"], ["y"]),
    ]
    shapes = [integers(name, number) for name, number in numbers.items()]
    imported = frontend.import_onnx(model(nodes, [("x", FLOAT, [2, 6, 4])], shapes, 17))
    assert imported.outputs[0].shape == (6, 2)


@pytest.mark.parametrize(
    "shape, attributes",
    [([3], {"axis": 1}), ([3, 1], {"axis": 1}), ([2, 3], {"axis": 0}), ([3, 4], {}), ([1], {})],
)
def test_older_operators_say_where_the_axes_of_an_operand_are(shape, attributes):
    nodes = [
        node("Sub", ["x", "b"], ["d"], broadcast=1, **attributes),
        node("Pow", ["d", "two"], ["s"], broadcast=1),
        node("Add", ["s", "x"], ["y"]),
    ]
    two = numpy_helper.from_array(np.float32([2]), "two")
    data = model(nodes, [("x", FLOAT, [2, 3, 4]), ("b", FLOAT, shape)], [two], opset=6)
    x, b = torch.randn(2, 3, 4), torch.randn(shape)
    behind = 3 - attributes["axis"] - len(shape) if attributes else 0
    imported = frontend.import_onnx(data)
    expected = (x - b.reshape(*shape, *[1] * behind)) ** 2 + x
    assert_agrees(run(imported, frontend.lowered(imported), [x, b]), expected, 1e-5)


def test_nothing_has_no_largest_element():
    nodes = [node("Slice", ["x", "zero", "zero"], ["n"]), node("ArgMax", ["n"], ["y"], axis=0)]
    zero = numpy_helper.from_array(np.int64([0]), "zero")
    with pytest.raises(errors.WorkloadError, match=r"operator 'ArgMax'.*without elements"):
        frontend.import_onnx(model(nodes, [("x", FLOAT, [4, 3])], [zero], kind=INT64))
