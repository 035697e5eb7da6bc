"""Norms folded into the product behind them compute what the program computes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, topi

import felix
from felix.builder import task_program
from felix.runner.checking import reference
from felix.templates.gemm.norms.folding import Folded, fold
from felix.templates.gemm.problem import GemmProblem
from felix.templates.gemm.recognise import recognise
from felix.templates.gemm.stages import NotPlain
from tests.support import share

ROWS, K, N = 6, 32, 10


def _program(kind: str, dtype: str = "float32", epilogue: str = "") -> felix.Task:
    """A norm of rows, a product, and an epilogue."""
    x = te.placeholder((ROWS, K), name="x", dtype=dtype)
    w = te.placeholder((N, K), name="w", dtype=dtype)
    gamma = te.placeholder((K,), name="gamma", dtype=dtype)
    beta = te.placeholder((K,), name="beta", dtype=dtype)
    params = [x, w, gamma]
    k = te.reduce_axis((0, K), name="k")
    k2 = te.reduce_axis((0, K), name="k2")
    wide = topi.cast(x, "float32")
    if kind == "layer":
        params.append(beta)
        mean = te.compute((ROWS,), lambda i: te.sum(wide[i, k] / K, k), "mean")
        centred = te.compute((ROWS, K), lambda i, c: wide[i, c] - mean[i], "centred")
    else:
        centred = wide
    squares = te.compute(
        (ROWS,), lambda i: te.sum(centred[i, k2] * centred[i, k2] / K, k2), "squares"
    )

    def value(i: te.Var, c: te.Var) -> te.Expr:
        factor = gamma[c].astype("float32")
        if kind == "divided":
            return centred[i, c] / te.sqrt(squares[i] + 1e-5) * factor
        normed = centred[i, c] * te.rsqrt(squares[i] + 1e-5) * factor
        if kind == "activated":
            return te.max(normed, 0.0)
        return normed + beta[c].astype("float32") if kind == "layer" else normed

    normed = topi.cast(te.compute((ROWS, K), value, "normed"), dtype)
    product = topi.nn.dense(normed, w, out_dtype="float32")
    if "residual" in epilogue:
        rest = te.placeholder((ROWS, N), name="rest", dtype=dtype)
        params.append(rest)
        product = topi.add(topi.nn.relu(product), topi.cast(rest, "float32"))
    return felix.Task.from_te([*params, topi.cast(product, dtype)], "llvm", name="norm_product")


def _outputs(task: felix.Task, folded: Folded) -> tuple[np.ndarray, np.ndarray]:
    """The output of the program, and of the three programs one after the other."""
    arrays = reference.inputs(task_program.arguments(task.mod), 1, positive=False)
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.tirx.build(task.mod, "llvm")["main"](*tensors)
    known = {n: tvm.runtime.tensor(array) for n, array in enumerate(arrays[:-1])}
    for program in (folded.weights, folded.rows, folded.product):
        outputs = {}
        for name, param in zip(
            program.outputs, program.func.params[len(program.inputs) :], strict=True
        ):
            shape = [int(extent) for extent in param.ty.shape]
            empty = np.full(shape, np.nan, reference.np_dtype(str(param.ty.dtype)))
            outputs[name] = tvm.runtime.tensor(empty)
        built = tvm.tirx.build(tvm.IRModule({"main": program.func}), "llvm")["main"]
        built(*(known[name] for name in program.inputs), *outputs.values())
        known |= outputs
    return tensors[-1].numpy(), known[len(arrays) - 1].numpy()


@pytest.mark.parametrize(
    "kind, dtype, epilogue",
    share.crossed(["rms", "divided", "layer"], ["float32", "float16"], ["", "residual"]),
)
def test_folded_programs_compute_the_same(kind: str, dtype: str, epilogue: str) -> None:
    task = _program(kind, dtype, epilogue)
    folded = fold(task.func)
    expected, actual = _outputs(task, folded)
    tolerance = 1e-5 if dtype == "float32" else 4e-3
    assert reference.mismatch(actual, expected, tolerance) is None
    problem = recognise(tvm.IRModule({"main": folded.product.func}))
    assert isinstance(problem, GemmProblem), problem
    assert {problem.a.dtype, problem.b.dtype} == {dtype}
    # The weights' program has weights alone, so that it is run once where they are constant.
    assert 0 not in folded.weights.inputs and "row_statistics" in folded.product.inputs
    (statistics,) = [param for param in folded.rows.func.params[1:]]
    assert list(map(int, statistics.shape)) == [1 + (kind == "layer"), ROWS]


def test_what_is_not_folded_says_why() -> None:
    with pytest.raises(NotPlain, match="no sum of products"):
        fold(_program("activated").func)
    with pytest.raises(NotPlain, match="no product of it"):
        fold(felix.workloads.gemm(8, 8, 8).func)
    with pytest.raises(NotPlain):
        fold(felix.workloads.softmax((8, 8)).func)
