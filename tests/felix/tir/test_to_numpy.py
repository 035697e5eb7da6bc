"""The numpy reference agrees with TVM where it understands a program, and says so where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from felix import workloads
from felix.builder import task_program
from felix.runner.checking import reference
from felix.task import Task
from felix.tir import to_numpy
from tests.support import in_place, share, tir_programs


def _by_numpy(mod: tvm.IRModule) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """The outputs by name, and the parameters that they are computed of."""
    text = to_numpy.source(mod)
    assert text is not None
    scope: dict[str, Any] = {}
    exec(text, scope)
    args = task_program.arguments(mod)
    arrays = reference.inputs(args, 0, positive=False)
    named = {a.name: x for a, x in zip(args, arrays, strict=True) if a.is_input}
    return scope["compute"](named), arrays


def _compute(mod: tvm.IRModule) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    (got, arrays), args = _by_numpy(mod), task_program.arguments(mod)
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(mod, "llvm")["main"](*tensors)
    want = {a.name: t.numpy() for a, t in zip(args, tensors, strict=True) if a.is_output}
    return got, want


SPECS = [
    "gemm:33,17,65",
    "gemm:16,16,16,epilogue=bias+relu",
    "gemm:16,24,8,batch=3,transpose_a=true,transpose_b=true,epilogue=bias+gelu+residual",
    "softmax:4x5x19,axis=-1",
    "layer_norm:12x40",
    "rms_norm:12x40",
    "reduce:6x8x10,axes=0+2,kind=max",
    "elementwise:8x9,ops=mul@1+relu",
    "gemm:16,24,40,dtype=bfloat16,epilogue=bias+gelu",
    "gemm:16,24,40,dtype=float16,out_dtype=float32,transpose_b=true",
    "gemm:16,24,40,dtype=int8,batch=2,epilogue=bias+relu+residual",
    "softmax:4x33,dtype=bfloat16",
    "reduce:6x8x10,axes=1,kind=max,dtype=int8",
]


@pytest.mark.parametrize("spec", share.of(SPECS, 7))
def test_numpy_program_equals_tvm(spec: str) -> None:
    mod = workloads.parse(spec, "llvm").mod
    got, want = _compute(mod)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert reference.mismatch(got[name], value, task_program.tolerance(mod)) is None


def test_numpy_computes_float8_as_the_reference_does() -> None:
    task = workloads.gemm(8, 24, 40, dtype="float8_e4m3fn", epilogue=("bias",), target="cuda")
    text = to_numpy.source(task.mod)
    assert text is not None and text.count("import ml_dtypes") == 1
    args, (got, _) = task_program.arguments(task.mod), _by_numpy(task.mod)
    (index, want), *_ = task_program.on_cpu(task.mod, task.target, args)(0, False).items()
    assert want.dtype.name == "bfloat16" and got[args[index].name].dtype == want.dtype
    assert reference.mismatch(got[args[index].name], want, 1e-2) is None


def test_programs_that_are_not_plain_have_no_reference() -> None:
    x = te.placeholder((1, 4, 8, 8), name="x")
    w = te.placeholder((4, 4, 3, 3), name="w")
    conv = topi.nn.conv2d_nchw(x, w, 1, 1, 1)
    assert to_numpy.source(tvm.IRModule({"main": te.create_prim_func([x, w, conv])})) is None
    half = te.compute((4,), lambda i: te.const(1, "float16") + te.const(2, "float16"), name="h")
    assert to_numpy.source(tvm.IRModule({"main": te.create_prim_func([half])})) is None


def test_reference_text_is_importable_without_tvm() -> None:
    a = te.placeholder((8,), name="np")  # a name that would shadow the module
    mod = tvm.IRModule({"main": te.create_prim_func([a, te.compute((8,), lambda i: a[i] * 2.0)])})
    text = to_numpy.source(mod)
    assert text is not None and "tvm" not in text
    got, want = _compute(mod)
    assert np.allclose(*got.values(), *want.values())


@pytest.mark.parametrize("name", in_place.PROGRAMS)
def test_numpy_changes_no_input_of_a_program_that_does(name: str) -> None:
    mod = Task.from_prim_func(in_place.program(name)).mod
    got, want = _compute(mod)  # which calls numpy first, then TVM with copies of the same arrays
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert reference.mismatch(got[key], value, 1e-5) is None


@pytest.mark.parametrize(
    "start, update",
    [
        ("x[v]", "y[v] + w[v, r]"),
        ("T.float32(1)", "y[v] + w[v, r] * w[v, r]"),
        ("T.float32(0)", "T.max(y[v], w[v, r])"),
        ("T.float32('-inf')", "T.max(y[v], w[v, r])"),
        ("T.min_value('float32')", "T.max(y[v], w[v, r])"),
    ],
)
def test_a_reduction_begins_with_what_the_program_says(start: str, update: str) -> None:
    body = f"""
for i, k in T.grid(16, 4):
    with T.sblock("y"):
        v, r = T.axis.remap("SR", [i, k])
        with T.init():
            y[v] = {start}
        y[v] = {update}
"""
    shapes = {"x": "16,", "w": "16, 4", "y": "16,"}
    params = [f'{name}: T.Buffer(({shape}), "float32")' for name, shape in shapes.items()]
    mod = tvm.IRModule({"main": tir_programs.function(body, *params)})
    got, want = _compute(mod)
    assert reference.mismatch(got["y"], want["y"], 1e-6) is None


@pytest.mark.parametrize(
    "func",
    [
        tir_programs.copy("A[v]", where="i < 10"),
        tir_programs.copy("A[v]", loop=8),
        tir_programs.copy("A[v]", binding="i // 2"),
        tir_programs.copy("B[v] + B[0]"),
        tir_programs.copy("B[15 - v]"),
    ],
    ids=["predicate", "few points", "points twice", "one element", "reversed"],
)
def test_what_depends_on_the_points_visited_has_no_reference(func: tvm.tirx.PrimFunc) -> None:
    assert to_numpy.source(tvm.IRModule({"main": func})) is None


def test_a_diagonal_has_no_reference() -> None:
    x = te.placeholder((8, 8), name="x")
    func = te.create_prim_func([x, te.compute((8,), lambda i: x[i, i] * 2.0)])
    assert to_numpy.source(tvm.IRModule({"main": func})) is None
