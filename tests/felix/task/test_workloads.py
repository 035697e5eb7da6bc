"""Operators: values against PyTorch, schedulability on both targets, parameters and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from felix import errors, workloads
from felix.tir import design_space
from felix.workloads import catalogue, torch_forms
from tests.support import share, workload_values

SUITE = workloads.CHECK_SUITE


@pytest.mark.parametrize("name", share.of(SUITE, 14))
def test_values_of_the_suite(name):
    instance = SUITE[name]
    task = instance("llvm")
    workload_values.check(instance.operator, instance.params, task, 2e-5)


@pytest.mark.parametrize(
    "name, tolerance",
    share.crossed(
        [
            "gemm_bias_gelu_residual",
            "conv2d_stride2",
            "conv_transpose2d",
            "max_pool2d_padded",
            "avg_pool2d_valid",
            "softmax",
            "layer_norm",
            "rms_norm",
            "mean_last_two",
            "max_last",
            "elementwise_unary",
        ],
        [("float64", 1e-10), ("float16", 4e-3), ("bfloat16", 2.5e-2)],
    ),
)
def test_values_of_other_dtypes(name, tolerance):
    dtype, rtol = tolerance
    instance = SUITE[name]
    params = {**instance.params, "dtype": dtype}
    task = workloads.build(instance.operator, params)
    assert {str(p.ty.dtype) for p in task.func.params} == {dtype}
    workload_values.check(instance.operator, params, task, rtol)


@pytest.mark.parametrize("op", [*workloads.pointwise.UNARY, *workloads.pointwise.BINARY])
def test_values_of_every_elementwise_operation(op):
    params = {"shape": (3, 7), "ops": (op,)}
    task = workloads.build("elementwise", params)
    workload_values.check("elementwise", params, task, 1e-5)


def test_layer_norm_keeps_its_digits_when_the_mean_is_large():
    task = workloads.layer_norm((4, 64))
    x, gamma, beta = workload_values.random_inputs(task)
    x += 1000
    got = workload_values.run(task, [x, gamma, beta])
    tensors = [torch.from_numpy(a.astype("float64")) for a in (x, gamma, beta)]
    want = torch_forms.form("layer_norm", {"shape": (4, 64)}).call(*tensors).numpy()
    np.testing.assert_allclose(got, want, atol=2e-3)


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_every_instance_has_default_design_spaces(kind):
    for name, instance in share.of(SUITE.items(), 20):
        task = instance(kind)
        spaces = design_space.tune_context(task.mod, task.target).generate_design_space()
        assert len(spaces) >= 1, name
        assert any(len(sch.trace.insts) > 1 for sch in spaces), name


def test_suite_covers_the_whole_catalogue():
    assert {instance.operator for instance in SUITE.values()} == set(workloads.OPERATORS)
    assert set(torch_forms.FORMS) == set(workloads.OPERATORS)
    keys = [instance("llvm").key for instance in SUITE.values()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "name, params, shape",
    [
        ("conv2d", dict(n=1, h=56, w=56, ci=64, co=64, padding=1), (1, 56, 56, 64)),
        ("conv2d", dict(n=1, h=57, w=57, ci=4, co=4, stride=2, layout="NCHW"), (1, 4, 28, 28)),
        ("conv_transpose2d", dict(n=1, h=7, w=7, ci=4, co=8), (1, 14, 14, 8)),
        ("gemm", dict(m=1, n=11008, k=197), (1, 11008)),
        ("reduce", dict(shape=(4, 5, 6)), ()),
        ("reduce", dict(shape=(4, 5, 6), axes=(1,), keepdims=True), (4, 1, 6)),
    ],
)
def test_output_shapes(name, params, shape):
    task = workloads.build(name, params)
    assert tuple(int(e) for e in task.func.params[-1].ty.shape) == shape


def test_indices_are_64_bit_only_where_they_must_be():
    def loop_dtype(task):
        loop = task.func.body.block.body
        loop = loop.seq[0] if hasattr(loop, "seq") else loop
        return str(loop.loop_var.ty.dtype)

    assert loop_dtype(workloads.gemm(512, 512, 512)) == "int32"
    assert loop_dtype(workloads.elementwise((2**16, 2**16), ("relu",))) == "int64"
    assert loop_dtype(workloads.reduce((2**33,))) == "int64"
    assert loop_dtype(workloads.gemm(2**16, 2**16, 8, epilogue=("relu",))) == "int64"


@pytest.mark.parametrize(
    "text, name, params",
    [
        ("gemm:512,512,256", "gemm", dict(m=512, n=512, k=256)),
        (
            "gemm:m=64,n=48,k=32,epilogue=bias+relu,transpose_b=true",
            "gemm",
            dict(m=64, n=48, k=32, epilogue=("bias", "relu"), transpose_b=True),
        ),
        (
            "conv2d:1,14,14,8,16,1x3,stride=2x1,padding=0x1,layout=NHWC",
            "conv2d",
            dict(n=1, h=14, w=14, ci=8, co=16, kernel=(1, 3), stride=(2, 1), padding=(0, 1)),
        ),
        ("softmax:12x17x9,axis=-2", "softmax", dict(shape=(12, 17, 9), axis=-2)),
        (
            "reduce:6x7x8,axes=0+2,kind=mean",
            "reduce",
            dict(shape=(6, 7, 8), axes=(0, 2), kind="mean"),
        ),
        (
            "layer_norm:8x12x16,-2x-1,epsilon=1e-6",
            "layer_norm",
            dict(shape=(8, 12, 16), axes=(-2, -1), epsilon=1e-6),
        ),
        (
            "elementwise:32x64,ops=mul@1+relu",
            "elementwise",
            dict(shape=(32, 64), ops=("mul@1", "relu")),
        ),
    ],
)
def test_text_form_equals_the_call(text, name, params):
    assert workloads.parse(text).key == getattr(workloads, name)(**params).key


@pytest.mark.parametrize(
    "text, words",
    [
        ("gem:1,2,3", ["unknown operator", "gem", "gemm"]),
        ("frobnicate", ["unknown operator", "known", "conv2d"]),
        ("gemm:1,2", ["missing", "k"]),
        ("gemm:1,2,3,4", ["unexpected", "'4'"]),
        ("gemm:0,2,3", ["m must be at least 1", "0"]),
        ("gemm:-5,2,3", ["m must be at least 1", "-5"]),
        ("gemm:a,2,3", ["m must be an integer", "'a'"]),
        ("gemm:1.5,2,3", ["m must be an integer"]),
        ("gemm:1,2,3,m=4", ["m is given twice"]),
        ("gemm:1,2,3,kk=4", ["unknown parameter 'kk'", "k"]),
        ("gemm:1,2,3,epilogue=bias+rellu", ["epilogue", "rellu", "relu"]),
        ("gemm:1,2,3,dtype=int4", ["dtype", "float32", "float16", "int4"]),
        ("gemm:1,2,3,transpose_a=maybe", ["transpose_a", "true or false"]),
        ("gemm:1099511627776,2,3", ["m must be less than"]),
        ("gemm:1000000000,1000000000,3", ["larger than 1 TiB"]),
        ("conv2d:1,8,8,6,8,3,groups=4", ["groups must divide", "ci=6"]),
        ("conv2d:1,8,8,6,8,9", ["kernel", "larger than the padded input"]),
        ("conv2d:1,8,8,6,8,3x3x3", ["kernel must have 2 values", "3"]),
        ("conv2d:1,8,8,6,8,3,padding=-1", ["padding must be at least 0"]),
        ("conv2d:1,8,8,6,8,3,layout=HWCN", ["layout", "NHWC, NCHW"]),
        ("conv_transpose2d:1,8,8,4,4,3,padding=3", ["padding must be less than the kernel"]),
        ("conv_transpose2d:1,8,8,4,4,3,output_padding=2", ["output_padding"]),
        ("pool2d:1,8,8,4,2,padding=2", ["padding must be less than the kernel"]),
        ("softmax:4x5,axis=2", ["axis", "[-2, 1]", "2"]),
        ("gemm:m=1,k=3,2", ["unexpected positional value '2'"]),
        ("softmax:", ["missing", "shape"]),
        ("softmax:shape=", ["shape must have at least one extent"]),
        ("softmax:0x5", ["shape must be at least 1"]),
        ("reduce:4x5,axes=0+0", ["axes", "distinct"]),
        ("reduce:4x5,axes=", ["axes", "at least one"]),
        ("elementwise:4x5,ops=foo", ["ops", "foo"]),
        ("elementwise:4x5,ops=relu@1", ["relu takes no operand"]),
        ("elementwise:4x5,ops=add@z", ["operand axes"]),
        ("layer_norm:4x5,epsilon=tiny", ["epsilon must be a number"]),
        ("", ["unknown operator"]),
    ],
)
def test_bad_input_is_one_clear_line(text, words):
    with pytest.raises(errors.WorkloadError) as caught:
        workloads.parse(text)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


@pytest.mark.parametrize("value", [True, 2.0, "4", None, [4], -1, 2**41, np.float32(3)])
def test_extents_must_be_positive_integers(value):
    with pytest.raises(errors.WorkloadError, match="m must be"):
        workloads.gemm(value, 4, 4)
    assert workloads.gemm(np.int64(4), 4, 4).key == workloads.gemm(4, 4, 4).key


def test_wrong_calls_name_the_operator():
    with pytest.raises(errors.WorkloadError, match="gemm: missing a required argument: 'k'"):
        workloads.gemm(1, 2)
    with pytest.raises(errors.WorkloadError, match="parameters must be an object"):
        workloads.build("gemm", [1, 2, 3])
    with pytest.raises(errors.TargetError, match="nonsense"):
        workloads.gemm(1, 2, 3, target="nonsense")


def test_schemas_describe_every_parameter():
    for operator in workloads.OPERATORS.values():
        schema = operator.schema
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) <= set(schema["properties"])
        assert "target" not in schema["properties"]
        for name, value in schema["properties"].items():
            assert value["description"], (operator.name, name)
            assert name in schema["required"] or "default" in value
    gemm = workloads.OPERATORS["gemm"].schema
    assert gemm["required"] == ["m", "n", "k"]
    assert gemm["properties"]["m"]["minimum"] == 1
    assert gemm["properties"]["dtype"]["enum"] == [
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
    assert gemm["properties"]["epilogue"]["items"]["enum"] == list(workloads.common.EPILOGUES)


def test_text_form_reaches_every_parameter_kind():
    kinds = {p.kind for operator in workloads.OPERATORS.values() for p in operator.parameters}
    assert kinds == {"int", "ints", "per_axis", "names", "words", "choice", "bool", "float"}
    name, params = catalogue.parse_params("gemm:4,4,4,batch=none")
    assert (name, params["batch"]) == ("gemm", None)
    assert math.prod(catalogue.parse_params("softmax:2x3x4")[1]["shape"]) == 24
