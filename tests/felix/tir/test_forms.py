"""Blocks that cannot be tuned are refused by what they are, not by one of their parts.

Uneven windows become windows of one size, and compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, topi

from felix import errors
from felix.task import Task
from felix.tir import validate
from tests.support import tir_programs

ROWS = te.placeholder((12, 20), name="x")
LINE = te.placeholder((12,), name="y")
UPDATES = te.placeholder((5,), name="u")
WHERE = te.placeholder((5,), "int32", name="i")
PLACES = te.placeholder((1, 5), "int32", name="i")

OF_TVM: dict[str, Callable[[], list[te.Tensor]]] = {
    "cumsum_generic": lambda: [ROWS, topi.cumsum(ROWS, axis=1)],
    "scatter_elements_generic": lambda: [
        LINE,
        WHERE,
        UPDATES,
        topi.scatter_elements(LINE, WHERE, UPDATES, 0, "update"),
    ],
    "scatter_nd_generic": lambda: [
        LINE,
        PLACES,
        UPDATES,
        topi.scatter_nd(LINE, PLACES, UPDATES, "update"),
    ],
    "sort_cpu": lambda: [LINE, topi.sort(LINE)],
    "argsort_cpu": lambda: [LINE, topi.argsort(LINE)],
    "topk_cpu": lambda: [ROWS, *topi.topk(ROWS, 3)],
    "exclusive_scan": lambda: [ROWS, topi.gpu.cumsum(ROWS, 1)],
    "sort_gpu": lambda: [ROWS, topi.gpu.sort(ROWS)],
}


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("block", OF_TVM)
def test_a_scan_a_sort_and_a_scatter_of_tvm_are_refused_as_such(block: str, target: str) -> None:
    with tvm.target.Target({"kind": "cuda", "arch": "sm_90"}):
        tensors = OF_TVM[block]()
    _refused_as_code(block, lambda: Task.from_te(tensors, target))


def test_the_reason_is_the_same_among_other_blocks() -> None:
    tensors = [ROWS, topi.nn.relu(topi.cumsum(topi.exp(ROWS), axis=1))]
    _refused_as_code("cumsum_generic", lambda: Task.from_te(tensors))


def test_loops_without_a_block_are_refused_at_the_task() -> None:
    body = 'C = T.sblock_alloc_buffer((16,), "float32")\n'
    body += "for i in range(16):\n    C[i] = A[i]\n    B[i] = C[i]"
    func = tir_programs.function(body)
    _refused_as_code("root", lambda: Task.from_prim_func(func))


def _refused_as_code(block: str, make: Callable[[], Any]) -> None:
    with pytest.raises(errors.WorkloadError) as caught:
        make()
    message = str(caught.value)
    assert message.startswith(f"block '{block}' has loops or calls of its own")
    assert "in a network TVM or PyTorch runs it" in message and "\n" not in message


NESTED = """
for i in range(4):
    with T.sblock("outer"):
        v = T.axis.spatial(4, i)
        for j in range(4):
            with T.sblock("inner"):
                w = T.axis.spatial({})
                B[{}] = A[{}]
"""
OPAQUE = """
with T.sblock("outer"):
    for j in range(16):
        with T.sblock("inner"):
            w = T.axis.spatial(16, j)
            B[w] = A[w]
for j in range(16):
    with T.sblock("other"):
        w = T.axis.spatial(16, j)
        C[w] = A[w]
"""


@pytest.mark.parametrize(
    "body",
    [
        NESTED.format("16, v * 4 + j", "w", "w"),
        NESTED.format("4, j", "v * 4 + w", "v * 4 + w"),
        OPAQUE,
    ],
)
def test_a_block_in_a_block_is_refused(body: str) -> None:
    buffers = (tir_programs.A16, tir_programs.B16, 'C: T.Buffer((16,), "float32")')
    _refused_as_nested(tir_programs.function(body, *buffers), "inner", "outer")


def test_what_blockize_leaves_is_refused_by_name() -> None:
    x, y = te.placeholder((16, 32), name="x"), te.placeholder((24, 32), name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y, topi.nn.dense(x, y)]))
    loops = sch.get_loops(sch.get_sblock("T_matmul_NT"))
    outer, inner = zip(*(sch.split(loop, [None, 8]) for loop in loops), strict=True)
    sch.reorder(*outer, *inner)
    sch.blockize(inner[0])
    _refused_as_nested(sch.mod["main"], "T_matmul_NT_init", "T_matmul_NT_o")


def _refused_as_nested(func: Any, inner: str, outer: str) -> None:
    with pytest.raises(errors.WorkloadError) as caught:
        Task.from_prim_func(func)
    message = str(caught.value)
    assert message.startswith(f"block '{inner}' is inside of block '{outer}'")
    assert "give the program before blockize or tensorize" in message and "\n" not in message


def pool(kind: str) -> list[te.Tensor]:
    x = te.placeholder((1, 2, 15, 17), name="x")
    return [x, topi.nn.adaptive_pool(x, (4, 5), kind)]


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_the_result_is_that_of_the_uneven_windows(kind: str) -> None:
    func = te.create_prim_func(pool(kind))
    data = -np.random.default_rng(0).random((1, 2, 15, 17), dtype="float32")
    inputs = (data, np.zeros((1, 2, 4, 5), "float32"))
    even, uneven = tir_programs.results([Task.from_te(pool(kind)).func, func], inputs)
    np.testing.assert_allclose(even[1], uneven[1], rtol=1e-6)


def test_a_program_without_such_windows_stays_as_it_is() -> None:
    x = te.placeholder((6, 8), name="x")
    func = te.create_prim_func([x, topi.sum(x, axis=1)])
    assert validate.even(func).same_as(func)
