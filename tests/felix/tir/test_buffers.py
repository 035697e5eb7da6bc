"""Where elements of buffers lie: what says the same as nothing is accepted, the rest refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural

from felix import errors
from felix.sketch import sketch as sketching
from felix.task import Task
from tests.support import legal_rows, tir_programs

_BODY = """
C = T.sblock_alloc_buffer((12, 20), "float32")
for i, j in T.grid(12, 20):
    with T.sblock("first"):
        v, w = T.axis.remap("SS", [i, j])
        C[v, w] = A[v, w] * T.float32(2)
for i, k in T.grid(12, 20):
    with T.sblock("sum"):
        v, w = T.axis.remap("SR", [i, k])
        with T.init():
            B[v] = T.float32(0)
        B[v] = B[v] + C[v, w]
"""
OUTPUT = 'B: T.Buffer((12,), "float32")'


def sums(options: str = "") -> Any:
    """Sums of the rows of twice A; with options of A's declaration."""
    return tir_programs.function(_BODY, f'A: T.Buffer((12, 20), "float32"{options})', OUTPUT)


@pytest.mark.parametrize(
    "options",
    [", offset_factor=1", ", offset_factor=4", ", strides=(20, 1)", ", elem_offset=0"],
)
def test_what_says_that_a_buffer_is_plain_changes_nothing(options: str) -> None:
    task, plain = Task.from_prim_func(sums(options)), Task.from_prim_func(sums())
    tvm.ir.assert_structural_equal(task.func, plain.func)
    assert task.key == plain.key


def test_one_variable_may_be_the_offset_of_several_buffers() -> None:
    func = tir_programs.function(
        "n = T.int32()\n"
        'A = T.match_buffer(a, (16,), "float32", elem_offset=n)\n'
        'B = T.match_buffer(b, (16,), "float32", elem_offset=n)\n'
        'for i in range(16):\n    with T.sblock("copy"):\n'
        "        v = T.axis.spatial(16, i)\n        B[v] = A[v]\n",
        "a: T.handle",
        "b: T.handle",
    )
    assert Task.from_prim_func(func).key == Task.from_prim_func(tir_programs.copy("A[v]")).key


def _built_in_python(**options: Any) -> tirx.PrimFunc:
    """B[v] = A[v] whose buffers are those of `tirx.decl_buffer`, which have a layout."""
    plain = tir_programs.copy("A[v]")
    made = {old: tirx.decl_buffer((16,), "float32", old.name, **options) for old in plain.params}
    body = structural.structural_map(
        plain.body,
        (
            (TensorLoad, lambda load: tirx.BufferLoad(made[load.source], load.indices)),
            (
                tirx.BufferStore,
                lambda store: tirx.BufferStore(made[store.buffer], store.value, store.indices),
            ),
        ),
    )
    return tirx.PrimFunc(list(made.values()), body, plain.ret_type, plain.attrs)


def test_buffers_made_in_python_have_a_layout_that_is_plain() -> None:
    func = _built_in_python()
    assert func.params[0].ty.layout is not None
    assert Task.from_prim_func(func).key == Task.from_prim_func(tir_programs.copy("A[v]")).key


def test_a_layout_that_is_not_plain_is_refused() -> None:
    every_other = tirx.layout.TileLayout(tirx.layout.S[(16,) : (2,)])
    with pytest.raises(errors.WorkloadError, match="buffer 'A' has a layout that is not that of"):
        Task.from_prim_func(_built_in_python(layout=every_other))


REFUSED = {
    ", elem_offset=8": "buffer 'A' has the element offset 8; give it the element offset 0",
    ", strides=(32, 1)": "buffer 'A' has explicit strides that are not those of its shape",
    ", strides=(1, 12)": "give it the shape of its memory",
    ', strides=("n", 1)': "has explicit strides that are not those of its shape",
}


@pytest.mark.parametrize("options", REFUSED)
def test_a_buffer_that_lies_otherwise_is_refused(options: str) -> None:
    with pytest.raises(errors.WorkloadError, match=REFUSED[options]) as caught:
        Task.from_prim_func(sums(options))
    assert "\n" not in str(caught.value)


def test_an_intermediate_buffer_has_no_variable_offset() -> None:
    func = sums(", offset_factor=1")
    copied = s_tir.Schedule(func)
    copied.cache_read(copied.get_sblock("first"), 0, "global")
    with pytest.raises(errors.WorkloadError, match="'A_global' has an element offset that is no"):
        Task.from_prim_func(copied.mod["main"])


def test_tvm_gives_the_offset_to_copies() -> None:
    """Why a variable offset does not stay: a copy of 240 elements is written from n to n + 240."""
    sch = s_tir.Schedule(sums(", offset_factor=1"))
    sch.cache_read(sch.get_sblock("first"), 0, "global")
    func = sch.mod["main"]
    (copy,) = (b for b in func.body.block.alloc_buffers if b.name == "A_global")
    assert copy.elem_offset.same_as(func.params[0].elem_offset)


def _run(mod: tvm.IRModule, data: Any) -> Any:
    result = tvm.runtime.tensor(np.zeros(12, "float32"))
    tvm.tirx.build(mod, "llvm")["main"](tvm.runtime.tensor(data), result)
    return result.numpy()


def test_schedules_apply_to_the_program_that_has_a_variable_offset() -> None:
    own = sums(", offset_factor=4").with_attr("global_symbol", "main")
    data = np.random.default_rng(0).random((12, 20), "float32")
    for sketch in sketching.sketches(Task.from_prim_func(own, "llvm -num-cores 2")):
        row = legal_rows.draw(sketch, 1, seed=0)[0]
        applied = s_tir.Schedule(tvm.IRModule({"main": own}))
        sketch.schedule(row).trace.apply_to_schedule(applied, remove_postproc=False)
        np.testing.assert_allclose(_run(applied.mod, data), 2 * data.sum(1), rtol=1e-5)
