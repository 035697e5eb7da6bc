"""Programs are recognised as the product and epilogue that they compute, or are said not to be.

Each recognised problem is computed by numpy from its strides, with its epilogue's C++ compiled for
the CPU, and compared with what the program itself gives when TVM builds it.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import random

import numpy as np
import pytest
import torch
import tvm
from tvm import te, tirx, topi

import felix
from felix import workloads
from felix.runner.cuda import nvrtc
from felix.templates.gemm.ampere import template
from felix.templates.gemm.problem import GemmProblem
from felix.tir import rounding
from tests.support import share, tir_programs
from tests.support.templates import attention_programs, recognised
from tests.support.templates.kernels import A100, legal
from tests.support.templates.recognised import problem, program


def _dense(dtype: str, out_dtype: str) -> tvm.IRModule:
    x, w = (
        te.placeholder((rows, 32), name=name, dtype=dtype) for name, rows in (("x", 6), ("w", 10))
    )
    bias = te.placeholder((10,), name="bias", dtype=out_dtype)
    return program(x, w, bias, topi.nn.dense(x, w, bias, out_dtype=out_dtype))


def _batch_matmul(shared: bool) -> tvm.IRModule:
    x = te.placeholder((4, 5, 8), name="x")
    y = te.placeholder((1 if shared else 4, 7, 8), name="y")
    return program(x, y, topi.nn.batch_matmul(x, y))


def _einsum(spec: str, **extents: int) -> tvm.IRModule:
    left, right = spec.partition("->")[0].split(",")
    x, y = (
        te.placeholder([extents[c] for c in axes], name=name)
        for name, axes in (("x", left), ("y", right))
    )
    return program(x, y, topi.einsum(spec, x, y))


def _quantised(kind: str) -> tvm.IRModule:
    """int8 product with int32 sums, then a scale, or a scale and a cast back to int8."""
    x = te.placeholder((9, 24), name="x", dtype="int8")
    w = te.placeholder((11, 24), name="w", dtype="int8")
    scale = te.placeholder((11,), name="scale")
    k = te.reduce_axis((0, 24), name="k")
    y = te.compute(
        (9, 11), lambda i, j: te.sum(x[i, k].astype("int32") * w[j, k].astype("int32"), k), "y"
    )
    if kind == "plain":
        return program(x, w, y)
    if kind == "int32":
        z = te.compute((9, 11), lambda i, j: te.max(te.min(y[i, j] * 3 - 7, 900), -500), "z")
        return program(x, w, z)
    z = te.compute((9, 11), lambda i, j: y[i, j].astype("float32") * scale[j], "z")
    if kind == "float":
        return program(x, w, scale, z)
    r = te.compute(
        (9, 11),
        lambda i, j: te.max(te.min(te.round(z[i, j] * 0.01), 127.0), -128.0).astype("int8"),
        "r",
    )
    return program(x, w, scale, r)


def _activated(name: str) -> tvm.IRModule:
    """A product and one function of it, with a scale for each row."""
    a, b = te.placeholder((6, 8), name="a"), te.placeholder((8, 5), name="b")
    rows = te.placeholder((6,), name="rows")
    k = te.reduce_axis((0, 8), name="k")
    y = te.compute((6, 5), lambda i, j: te.sum(a[i, k] * b[k, j], k), "y")

    def value(x: tirx.Expr) -> tirx.Expr:
        match name:
            case "silu":
                return x * te.sigmoid(x)
            case "tanh_gelu":
                return 0.5 * x * (1.0 + te.tanh(0.79788456 * (x + 0.044715 * x * x * x)))
            case "leaky":
                return tirx.Select(x > 0.0, x, x * 0.01)
            case "hard":
                return te.if_then_else(tirx.all(x > -1.0, x < 1.0), x, te.exp(-te.abs(x)))
            case "narrow":
                return (x.astype("float16") * tirx.const(0.5, "float16")).astype("float32")
            case "truncated":
                return x.astype("int32").astype("float32")
        return te.rsqrt(x * x + 1.0) + te.power(te.abs(x), 1.5) - te.erf(x)

    z = te.compute((6, 5), lambda i, j: value(y[i, j]) * rows[i], "z")
    again = te.compute((6, 5), lambda i, j: z[i, j] * z[i, j] + y[i, j], "again")
    return program(a, b, rows, again)


def _conv1x1() -> tvm.IRModule:
    x = te.placeholder((2, 4, 4, 8), name="x", dtype="float16")
    w = te.placeholder((1, 1, 8, 6), name="w", dtype="float16")
    return program(x, w, topi.nn.conv2d_nhwc(x, w, 1, 0, 1, out_dtype="float32"))


class _Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.up, self.gate = (
            torch.nn.Linear(32, 24, bias=False),
            torch.nn.Linear(32, 24, bias=False),
        )
        self.down, self.fc = torch.nn.Linear(24, 32, bias=False), torch.nn.Linear(32, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (f(x).view(2, 6, 4, 8).transpose(1, 2) for f in (self.q, self.k))
        scores = torch.softmax(q @ k.transpose(-1, -2) / 3, -1)
        y = (scores @ q).transpose(1, 2).reshape(2, 6, 32) + x
        y = y + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))
        return torch.nn.functional.gelu(self.fc(y))


def _fused(body: str, *params: str) -> tvm.IRModule:
    func = tir_programs.function(body, *params)
    return felix.Task.from_prim_func(func, "llvm", name="fused").mod


def _reshaped(rows: tuple[int, int]) -> tvm.IRModule:
    """Heads that are split and transposed behind the product, with a bias."""
    x, w = te.placeholder((12, 32), name="x"), te.placeholder((24, 32), name="w")
    bias = te.placeholder((24,), name="bias")
    y = topi.add(topi.nn.dense(x, w), bias)
    heads = topi.transpose(topi.reshape(y, (*rows, 4, 6)), (0, 2, 1, 3))
    return program(x, w, bias, topi.nn.relu(heads))


def _prologue_reshape() -> tvm.IRModule:
    """Operands that are reshaped, transposed and cast before the product."""
    x = te.placeholder((12, 16), name="x", dtype="float16")
    w = te.placeholder((16, 10), name="w", dtype="float16")
    left = topi.cast(topi.reshape(x, (3, 4, 16)), "float32")
    right = topi.cast(topi.transpose(w), "float32")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute((3, 4, 10), lambda b, i, j: te.sum(left[b, i, k] * right[j, k], k), "y")
    return program(x, w, y)


def _attention_parts() -> dict[str, tvm.IRModule]:
    kinds = ("causal", "lengths", "window", "slopes", "stripes")
    programs = {f"masked_{kind}": attention_programs.masked(kind) for kind in kinds}
    programs |= {
        f"fused_qkv_{which}": attention_programs.fused_qkv(which) for which in ("scores", "mixed")
    }
    return programs | {
        "masked_heads": attention_programs.masked_heads(),
        "grouped_queries": attention_programs.grouped_queries(),
        "sliced": attention_programs.sliced(),
        "einsum_turned_batches": _einsum("baik,abkj->abij", a=2, b=3, i=4, k=5, j=6),
        "reshaped_batches": _reshaped((2, 6)),
    }


def _gemms() -> dict[str, tvm.IRModule]:
    specs = [
        f"gemm:6,10,8,transpose_a={ta},transpose_b={tb}{batch}"
        for ta, tb, batch in itertools.product(
            ("true", "false"), ("true", "false"), ("", ",batch=3")
        )
    ]
    stages = ("bias", "relu", "gelu", "residual", "bias+gelu+residual", "gelu+gelu+bias")
    specs += [
        f"gemm:6,10,8,epilogue={e},dtype={d}" for e in stages for d in ("float32", "float16")
    ]
    specs += [
        "gemm:1,10,8,epilogue=bias",
        "gemm:10,1,8",
        "gemm:6,10,1",
        "gemm:1,1,5",
        "gemm:5,7,3,batch=2,epilogue=bias+residual,dtype=float16",
        "gemm:6,10,8,epilogue=bias+gelu,dtype=bfloat16",
        "gemm:6,10,8,dtype=bfloat16,out_dtype=float32",
        "gemm:6,10,8,transpose_b=true,epilogue=bias+relu,dtype=int8",
    ]
    return {spec: workloads.parse(spec, "llvm").mod for spec in specs}


def _models() -> dict[str, tvm.IRModule]:
    tasks = felix.extract_tasks(_Attention(), (torch.zeros(2, 6, 32),), "llvm")
    return {task.name: task.mod for task in tasks if "matmul" in task.name}


def _programs() -> dict[str, tvm.IRModule]:
    activations = ("silu", "tanh_gelu", "leaky", "hard", "narrow", "truncated", "several")
    programs = {f"activated_{name}": _activated(name) for name in activations}
    kinds = ("plain", "int32", "float", "int8")
    programs |= {f"quantised_{kind}": _quantised(kind) for kind in kinds}
    return programs | {
        "dense": _dense("float16", "float16"),
        "dense_wide": _dense("float16", "float32"),
        "dense_bfloat16": _dense("bfloat16", "float32"),
        "batch_matmul": _batch_matmul(False),
        "batch_matmul_shared": _batch_matmul(True),
        "einsum_rows": _einsum("abk,kj->abj", a=3, b=4, k=8, j=5),
        "einsum_turned": _einsum("ik,kj->ji", i=6, k=8, j=5),
        "einsum_two_sums": _einsum("ikl,klj->ij", i=6, k=4, l=2, j=5),
        "einsum_heads": _einsum("shd,thd->hst", s=6, h=4, d=8, t=5),
        "einsum_two_batches": _einsum("abik,abkj->abij", a=2, b=3, i=4, k=5, j=6),
        "einsum_left_batch": _einsum("abk,kj->baj", a=3, b=4, k=8, j=5),
        "conv1x1": _conv1x1(),
        "reshaped": _reshaped((1, 12)),
        "prologue_reshape": _prologue_reshape(),
    }


@functools.cache
def programs() -> dict[str, tvm.IRModule]:
    """Products of all forms by their names."""
    return {**_gemms(), **_programs(), **_attention_parts(), **_models()}


def of(name: str) -> GemmProblem:
    return problem(programs()[name])


def test_problems_compute_what_the_programs_compute(tmp_path: pathlib.Path) -> None:
    chosen = {name: programs()[name] for name in share.of(programs(), 9)}
    recognised.check(chosen, tmp_path, {"activated_narrow": 1e-3})


def test_orders_and_merged_axes() -> None:
    rows = of("einsum_rows")
    assert (rows.batch, rows.m, rows.n, rows.k) == (1, 12, 5, 8)
    heads = of("einsum_heads")
    assert (heads.batch, heads.a.strides, heads.b.strides) == (4, (8, 32, 1), (8, 32, 1))
    turned = of("einsum_turned")
    assert (turned.m, turned.n, turned.output.strides) == (5, 6, (0, 6, 1))
    vector = of("gemm:10,1,8")
    assert (vector.m, vector.n) == (1, 10)
    # rows of one batch are not adjacent in the result, so they are a batch that shares the weights
    left = of("einsum_left_batch")
    assert (left.batch, left.m, left.b.strides[0]) == (3, 4, 0)
    narrow = of("activated_narrow")
    assert "half" not in narrow.epilogue.expression and narrow.accumulator == "float32"


@pytest.mark.parametrize("dtype", rounding.HALF)
def test_casts_of_the_model_stay_and_extremes_keep_nan(dtype: str) -> None:
    x, w = (te.placeholder((64, 64), name=name, dtype="float16") for name in "xw")
    y = topi.nn.dense(x, w, out_dtype="float32")
    rounded = te.compute(y.shape, lambda *i: rounding.rounded(y[i], dtype))
    made = problem(program(x, w, topi.nn.relu(topi.cast(rounded, "float32"))))
    assert made.epilogue.expression == f"fmaxf({dtype}_rounded(x), 0.0f)"
    kernel = template.AmpereGemm(made, A100, "sm_80")
    source = kernel.generate(legal(kernel, random.Random(0))).source
    ptx = nvrtc.compile_ptx(source, "sm_80", headers=False)
    assert f"cvt.rn.{'bf16' if dtype == 'bfloat16' else 'f16'}.f32" in ptx
    assert "max.NaN.f32" in ptx


A, B = te.placeholder((6, 8), name="a"), te.placeholder((8, 6), name="b")


def _combined() -> tvm.IRModule:
    k = te.reduce_axis((0, 8), name="k")
    y = te.compute((6, 6), lambda i, j: te.sum(A[i, k] * B[k, j], k), "y")
    return program(A, B, te.compute((6, 6), lambda i, j: y[i, j] + y[j, i], "z"))


def _activated_operand() -> tvm.IRModule:
    return program(A, B, topi.matmul(topi.nn.relu(A), B))


def _flipped() -> tvm.IRModule:
    k = te.reduce_axis((0, 8), name="k")
    return program(A, B, te.compute((6, 6), lambda i, j: te.sum(A[5 - i, k] * B[k, j], k), "y"))


def _guarded() -> tvm.IRModule:
    """A bias of the first columns alone."""
    bias, y = te.placeholder((4,), name="bias"), topi.matmul(A, B)

    def value(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
        return y[i, j] + tirx.if_then_else(j < 4, bias[j], 0.0)

    return program(A, B, bias, te.compute((6, 6), value, "z"))


def _two_outputs() -> tvm.IRModule:
    y = topi.matmul(A, B)
    return program(A, B, y, topi.nn.relu(y))


def test_offsets_and_batch_axes() -> None:
    scores = of("fused_qkv_scores")
    assert (scores.batch, scores.inner_batch, scores.m, scores.n) == (8, 4, 6, 6)
    assert (scores.a.outer_stride, scores.a.strides) == (6 * 96, (8, 96, 1))
    assert (scores.a.offset, scores.b.offset) == (0, 32)
    assert scores.epilogue.places and scores.swapped.swapped == scores
    mixed = of("fused_qkv_mixed")
    assert (mixed.inner_batch, mixed.b.offset, mixed.output.strides) == (4, 64, (8, 32, 1))
    grouped = of("grouped_queries")
    assert (grouped.batch, grouped.inner_batch) == (6, 3)
    assert (grouped.b.outer_stride, grouped.b.strides[0]) == (8, 0)
    assert grouped.matrices(grouped.b) == 2 and grouped.matrices(grouped.a) == 6
    sliced = of("sliced")
    assert (sliced.a.offset, sliced.b.offset, sliced.epilogue.reads[0].offset) == (16, 6, 41)


@pytest.mark.parametrize(
    "mod, reason",
    [
        (workloads.parse("softmax:4x5", "llvm").mod, "2 reductions"),
        (workloads.parse("elementwise:4x5,ops=relu", "llvm").mod, "0 reductions"),
        (workloads.parse("reduce:6x8,axes=1,kind=max", "llvm").mod, "begins with 0"),
        (workloads.parse("reduce:6x8,axes=1,kind=sum", "llvm").mod, "products of two tensors"),
        (_combined(), "combines different elements"),
        (_activated_operand(), "computed before"),
        (_flipped(), "a linear form of its iterators"),
        (_guarded(), "bias where a condition holds"),
        (_two_outputs(), "2 outputs"),
        (_einsum("baick,abckj->abcij", a=2, b=3, c=2, i=4, k=5, j=6), "3 axes of its batch"),
        (_einsum("i,j->ij", i=6, j=5), "0 reductions"),
        (_einsum("ikl,lkj->ij", i=6, k=4, l=3, j=5), "axes of its sum"),
        (_einsum("ik,j->ij", i=6, k=4, j=5), "does not have"),
        (workloads.parse("gemm:6,8,4,dtype=float64", "llvm").mod, "float64"),
    ],
)
def test_what_is_not_recognised_says_why(mod: tvm.IRModule, reason: str) -> None:
    assert reason in recognised.reason(mod)


def test_each_element_is_computed_once() -> None:
    y = topi.matmul(A, B)
    repeated = te.compute((3, 6, 6), lambda _, i, j: y[i, j], "repeated")
    assert "more than once" in recognised.reason(program(A, B, repeated))


def test_hand_written_program_with_another_order_of_iterators() -> None:
    mod = _fused(
        """
C = T.sblock_alloc_buffer((6, 5), "float32")
for i, k, j in T.grid(6, 8, 5):
    with T.sblock("product"):
        vk = T.axis.reduce(8, k)
        vj = T.axis.spatial(5, j)
        vi = T.axis.spatial(6, i)
        with T.init():
            C[vi, vj] = T.float32(0)
        C[vi, vj] = A[vi, vk] * B[vk, vj] + C[vi, vj]
for j, i in T.grid(5, 6):
    with T.sblock("scaled"):
        vj, vi = T.axis.remap("SS", [j, i])
        D[vj, vi] = C[vi, vj] * T.float32(2)
""",
        'A: T.Buffer((6, 8), "float32")',
        'B: T.Buffer((8, 5), "float32")',
        'D: T.Buffer((5, 6), "float32")',
    )
    made = problem(mod)
    assert (made.a.param, made.b.param, made.m, made.n) == (1, 0, 5, 6)
    assert made.epilogue.expression == "(x * 2.0f)"
    assert np.prod(made.output.strides[1:]) == 6
