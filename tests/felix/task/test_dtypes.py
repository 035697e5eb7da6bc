"""Element types of operators: sums, outputs, names and refusals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm

from felix import errors, workloads
from felix.builder import task_program
from felix.runner.checking import reference
from felix.task import Task
from felix.workloads import catalogue, torch_forms
from tests.support import tir_programs, workload_values


def _dtypes(task: Task) -> list[str]:
    """Of the parameters; the output is the last one."""
    return [str(param.ty.dtype) for param in task.func.params]


@pytest.mark.parametrize(
    "text",
    [
        "gemm:17,16,64,dtype=int8",
        "gemm:17,16,64,dtype=int8,transpose_a=true,transpose_b=true,epilogue=bias+relu+residual",
        "gemm:17,16,64,dtype=int8,epilogue=scale+bias+gelu+residual,out_dtype=float32",
        "gemm:17,16,64,dtype=int8,epilogue=bias+relu+scalar_scale+scale,out_dtype=float32",
        "gemm:33,5,21,dtype=bfloat16,out_dtype=float32,epilogue=bias+gelu",
        "gemm:33,5,21,dtype=bfloat16,out_dtype=float32,epilogue=scale+bias",
        "gemm:3,5,21,batch=2,epilogue=scale+gelu+scalar_scale",
        "conv2d:1,7,7,4,6,3,padding=1,epilogue=scale+bias+relu",
        "conv1d:1,9,8,4,3,layout=NCW,epilogue=bias+scalar_scale",
        "conv_transpose2d:1,4,4,3,5,layout=NCHW,epilogue=scale+residual",
        "depthwise_conv2d:1,6,6,4,epilogue=scale,dtype=float64",
        "gemm:3,5,21,dtype=float16,out_dtype=float32,batch=2",
        "reduce:6x7x8,axes=1,kind=max,dtype=int8",
        "reduce:6x7x8,axes=0+2,kind=min,dtype=int8",
        "pool2d:1,8,8,4,3,padding=1,dtype=int8",
        "global_pool2d:1,5,5,4,kind=max,dtype=int8",
    ],
)
def test_values_are_those_of_pytorch(text: str) -> None:
    name, params = catalogue.parse_params(text)
    workload_values.check(name, params, workloads.build(name, params), 1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "conv1d:1,9,8,4,3,padding=1",
        "conv2d:1,7,7,4,6,3,padding=1,stride=2,epilogue=bias+relu",
        "conv3d:1,4,4,4,3,5,2",
        "depthwise_conv2d:1,6,6,4",
        "conv_transpose2d:1,4,4,3,5",
    ],
)
def test_convolutions_of_int8_are_those_of_wider_numbers(text: str) -> None:
    """PyTorch has no convolution of int8; in float64 it is the same."""
    name, params = catalogue.parse_params(text)
    task = workloads.build(name, {**params, "dtype": "int8"})
    inputs = workload_values.random_inputs(task)
    form = torch_forms.form(name, params)
    tensors = [torch_forms.tensor(array.astype("float64")) for array in inputs]
    got = workload_values.run(task, inputs)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, form.call(*tensors).numpy())


@pytest.mark.parametrize("out_dtype, rtol", [("bfloat16", 8e-3), ("float16", 1e-3)])
def test_scaled_products_of_int8_are_those_of_pytorch(out_dtype: str, rtol: float) -> None:
    """Rounded once, at the end; also where no type is asked for."""
    text = "gemm:17,16,64,dtype=int8,epilogue=scale+bias"
    name, params = catalogue.parse_params(text)
    for asked in [{"out_dtype": out_dtype}, {}][: 2 if out_dtype == "bfloat16" else 1]:
        task = workloads.build(name, params | asked)
        assert _dtypes(task) == ["int8", "int8", "float32", out_dtype, out_dtype]
        workload_values.check(name, params | asked, task, rtol)
        assert "between its calls" not in torch_forms.form(name, params | asked).note


def test_scaled_convolutions_of_int8_are_those_of_wider_numbers() -> None:
    name, params = catalogue.parse_params("conv2d:1,7,7,4,6,3,padding=1,epilogue=scale+bias+relu")
    task = workloads.build(name, {**params, "dtype": "int8", "out_dtype": "float32"})
    inputs = workload_values.random_inputs(task)
    tensors = [torch_forms.tensor(array.astype("float64")) for array in inputs]
    expected = torch_forms.form(name, params).call(*tensors).numpy()
    np.testing.assert_allclose(workload_values.run(task, inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "text, dtypes, name",
    [
        ("gemm:8,8,8,dtype=bfloat16", ["bfloat16"] * 3, "gemm_8x8x8_bfloat16"),
        ("gemm:8,8,8,dtype=bfloat16,out_dtype=bfloat16", ["bfloat16"] * 3, "gemm_8x8x8_bfloat16"),
        ("gemm:8,8,8,dtype=bfloat16,out_dtype=none", ["bfloat16"] * 3, "gemm_8x8x8_bfloat16"),
        ("gemm:8,8,8,dtype=bfloat16,out_dtype=float32,epilogue=bias",
         ["bfloat16", "bfloat16", "float32", "float32"], "gemm_8x8x8_bias_bfloat16_to_float32"),
        ("conv1d:1,5,4,4,dtype=bfloat16,out_dtype=float16", ["bfloat16", "bfloat16", "float16"],
         "conv1d_1x5x4x4_k3_bfloat16_to_float16"),
        ("gemm:8,8,8,dtype=float16,out_dtype=bfloat16,epilogue=residual",
         ["float16", "float16", "bfloat16", "bfloat16"],
         "gemm_8x8x8_residual_float16_to_bfloat16"),
        ("gemm:8,8,8,dtype=int8", ["int8", "int8", "int32"], "gemm_8x8x8_int8"),
        ("gemm:8,8,8,dtype=float8_e4m3fn", ["float8_e4m3fn"] * 2 + ["bfloat16"],
         "gemm_8x8x8_float8_e4m3fn"),
        ("gemm:8,8,8,dtype=float8_e5m2,out_dtype=float16", ["float8_e5m2"] * 2 + ["float16"],
         "gemm_8x8x8_float8_e5m2_to_float16"),
        ("conv2d:1,5,5,4,4,dtype=int8,epilogue=bias+residual",
         ["int8", "int8", "int32", "int32", "int32"], "conv2d_1x5x5x4x4_k3x3_bias_residual_int8"),
        ("conv2d:1,5,5,4,4,dtype=int8,epilogue=bias+scale+bias+scalar_scale",
         ["int8", "int8", "int32", "float32", "bfloat16", "float32", "bfloat16"],
         "conv2d_1x5x5x4x4_k3x3_bias_scale_bias_scalar_scale_int8_to_bfloat16"),
        ("gemm:8,8,8,dtype=float64,epilogue=scale", ["float64"] * 4, "gemm_8x8x8_scale_float64"),
        ("gemm:8,8,8,dtype=float8_e4m3fn,epilogue=scale,out_dtype=float16",
         ["float8_e4m3fn"] * 2 + ["float32", "float16"],
         "gemm_8x8x8_scale_float8_e4m3fn_to_float16"),
        ("softmax:4x8,dtype=bfloat16", ["bfloat16"] * 2, "softmax_4x8_axis1_bfloat16"),
    ],
)  # fmt: skip
def test_types_of_parameters_and_names(text: str, dtypes: list[str], name: str) -> None:
    task = workloads.parse(text, "cuda")
    assert (_dtypes(task), task.name) == (dtypes, name)


@pytest.mark.parametrize(
    "text, message",
    [
        ("gemm:8,8,8,dtype=int8,out_dtype=float32", "out_dtype of dtype=int8 must be int32, got"),
        ("gemm:8,8,8,out_dtype=bfloat16", "out_dtype of dtype=float32 must be float32"),
        (
            "conv2d:1,8,8,4,4,dtype=float8_e4m3fn,out_dtype=float64",
            "must be bfloat16 or float16 or float32, got float64",
        ),
        (
            "gemm:8,8,8,dtype=int8,out_dtype=bfloat16",
            r"with a scale \(epilogue=scale\) it is bfloat16 or float16 or float32",
        ),
        (
            "gemm:8,8,8,dtype=int8,epilogue=scale,out_dtype=int32",
            "dtype=int8 with a scale must be bfloat16 or float16 or float32, got int32",
        ),
        ("gemm:8,8,8,dtype=int8,epilogue=gelu", "gelu needs floats, and sums of int8 are int32"),
        (
            "conv2d:1,8,8,4,4,dtype=int8,epilogue=gelu+scale",
            r"put a scale before it, like epilogue=scale\+gelu",
        ),
        ("gemm:8,8,8,dtype=float8", "dtype must be one of .* float8_e4m3fn"),
        ("gemm:8,8,8,out_dtype=int8", "out_dtype must be one of"),
        ("reduce:8x8,dtype=int8", "a maximum or minimum, not kind=sum"),
        ("pool2d:1,8,8,4,kind=avg,dtype=int8", "not kind=avg"),
        ("softmax:8x8,dtype=int8", "dtype must be one of float32, float64, float16, bfloat16"),
    ],
)
def test_types_without_a_meaning_are_refused(text: str, message: str) -> None:
    with pytest.raises(errors.WorkloadError, match=message) as raised:
        workloads.parse(text, "cuda")
    assert "\n" not in str(raised.value)


def test_float8_is_refused_on_a_cpu() -> None:
    """If TVM's code for CPUs became right here, the refusal could go."""
    with pytest.raises(errors.WorkloadError, match="tuned for cuda alone"):
        workloads.gemm(8, 8, 8, dtype="float8_e4m3fn", target="llvm")
    task = workloads.gemm(1, 1, 1, dtype="float8_e4m3fn", out_dtype="float32", target="cuda")
    zero, one = (np.full((1, 1), x, ml_dtypes.float8_e4m3fn) for x in (0, 1))
    tensors = [tvm.runtime.tensor(x) for x in (zero, one, np.zeros((1, 1), np.float32))]
    tvm.tirx.build(task.mod, "llvm")["main"](*tensors)
    assert tensors[2].numpy()[0, 0] != 0


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    "text", ["gemm:8,32,48,transpose_b=true", "conv2d:1,6,6,8,16,3,padding=1"]
)
def test_references_of_float8_are_exact(text: str, dtype: str) -> None:
    """Sums of few float8 products need no rounding in float32; of zeros and small values, too."""
    name, params = catalogue.parse_params(text)
    params |= {"dtype": dtype, "out_dtype": "float32"}
    task = workloads.build(name, params, "cuda")
    args = task_program.arguments(task.mod)
    outputs = task_program.on_cpu(task.mod, task.target, args)(0, False)
    inputs = [
        x
        for x, arg in zip(reference.inputs(args, 0, positive=False), args, strict=True)
        if arg.is_input
    ]
    least_normal = float(ml_dtypes.finfo(inputs[0].dtype).smallest_normal)
    is_small = np.abs(inputs[0].astype(np.float64)) < 2 * least_normal
    assert dtype == "float8_e5m2" or is_small.any()
    form = torch_forms.form(name, {key: params[key] for key in params if "dtype" not in key})
    exact = form.call(*[torch_forms.tensor(x.astype(np.float64)) for x in inputs]).numpy()
    np.testing.assert_allclose(outputs[2], exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "text, operations",
    [
        ("gemm:7,11,13,dtype=int8", 2 * 7 * 11 * 13),
        ("conv2d:1,14,14,8,16,3,padding=1,dtype=int8", 2 * 14 * 14 * 8 * 16 * 9),
        ("gemm:7,11,13,dtype=float8_e4m3fn", 2 * 7 * 11 * 13),
        ("reduce:6x7x8,axes=1,kind=max,dtype=int8", 0),
    ],
)
def test_operations_of_narrow_types(text: str, operations: int) -> None:
    assert workloads.parse(text, "cuda").flops == operations


@pytest.mark.parametrize(
    "text, message",
    [
        ("gemm:16,16,16,dtype=int8", "m of more than 16"),
        ("gemm:32,16,16,dtype=int8,batch=2", "takes two matrices"),
        ("gemm:16,8,16,dtype=float8_e4m3fn", "multiples of 16"),
        ("gemm:16,16,16,dtype=float8_e5m2", "two matrices of float8_e4m3fn"),
        ("conv2d:1,5,5,4,4,dtype=int8", "convolutions are of floats of 16 bits and more"),
        ("conv2d:1,5,5,4,4,dtype=bfloat16,out_dtype=float32", "the type of their inputs"),
    ],
)
def test_what_pytorch_has_no_call_for_is_told(text: str, message: str) -> None:
    with pytest.raises(errors.WorkloadError, match=message):
        torch_forms.form(*catalogue.parse_params(text))


@pytest.mark.parametrize(
    "epilogue, note",
    [
        ("bias+relu", "scales of 1"),
        ("scalar_scale+scale+relu", "scales of its call"),
        ("scale+bias+scalar_scale", "scales of 1"),
    ],
)
def test_pytorch_multiplies_float8_as_the_task_does(epilogue: str, note: str) -> None:
    text = f"gemm:24,32,48,dtype=float8_e4m3fn,out_dtype=float32,epilogue={epilogue}"
    task = workloads.parse(text, "cuda")
    form = torch_forms.form(*catalogue.parse_params(text))
    args = task_program.arguments(task.mod)
    inputs = reference.inputs(args, 0, positive=False)[:-1]
    assert form.note.startswith(note)
    (expected,) = task_program.on_cpu(task.mod, task.target, args)(0, False).values()
    stored = form.stored([torch_forms.tensor(array.copy()) for array in inputs])
    assert stored[1].mT.is_contiguous()
    got = form.call(*stored).numpy()
    assert reference.mismatch(got, expected, task_program.tolerance(task.mod)) is None


COPY = """
for i in range(4):
    with T.sblock("t"):
        v = T.axis.spatial(4, i)
        B[v] = {}
"""
E4 = 'A: T.Buffer((4,), "float8_e4m3fn")'


@pytest.mark.parametrize(
    "value, dtype, message",
    [
        ("A[v] + A[v]", "float8_e4m3fn", "Add of a float8_e4m3fn; cast it to float32 first"),
        ('T.Cast("float8_e5m2", A[v])', "float8_e5m2", "float8 may be read, not computed"),
        ('T.Cast("int32", A[v])', "int32", "cast it to float32"),
        ("T.exp(A[v])", "float8_e4m3fn", "exp is called with a float8_e4m3fn"),
        ("T.if_then_else(v < 2, A[v], T.float8_e4m3fn(0.3))", "float8_e4m3fn", "only 0"),
    ],
)
def test_float8_is_read_alone(value: str, dtype: str, message: str) -> None:
    program = tir_programs.function(COPY.format(value), E4, f'B: T.Buffer((4,), "{dtype}")')
    with pytest.raises(errors.WorkloadError, match=message):
        Task.from_prim_func(program, "cuda")


def test_float8_may_be_copied_and_padded() -> None:
    text = COPY.format("T.if_then_else(v < 2, A[v], T.float8_e4m3fn(0))")
    program = tir_programs.function(text, E4, 'B: T.Buffer((4,), "float8_e4m3fn")')
    task = Task.from_prim_func(program, "cuda")
    assert task.min_bytes == 4 + 4
    args = task_program.arguments(task.mod)
    inputs = reference.inputs(args, 0, positive=False)
    outputs = task_program.on_cpu(task.mod, task.target, args)(0, False)
    assert outputs[1].dtype == ml_dtypes.float8_e4m3fn and task_program.tolerance(task.mod) == 0
    values = outputs[1].astype(np.float32)
    assert values.tolist() == [*inputs[0].astype(np.float32)[:2].tolist(), 0, 0]
