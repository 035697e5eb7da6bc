"""Buffers, and indices that are data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx, topi
from tvm.ir.expr import TensorLoad
from tvm_ffi import structural

from felix import errors
from felix.builder import task_program
from felix.runner.checking import reference
from felix.space import sketch as sketching
from felix.task import Task
from felix.tir import bounds
from tests.support import legal_rows, tir_programs
from tests.support.tir_programs import FLOATS, I32

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
    "options", [", offset_factor=1", ", offset_factor=4", ", strides=(20, 1)", ", elem_offset=0"]
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


def copy(value, store="B[v]", params=FLOATS):
    return tir_programs.copy(value, store, params=params)


REFUSED_INDICES = {
    "an index": ("A[I[v]]", "clamp it: T.min"),
    "an index from below": ("A[T.max(I[v], 0)]", "clamp it"),
    "an index from above": ("A[T.min(I[v], 15)]", "clamp it"),
    "a clamp that is off by one": ("A[T.min(T.max(I[v], 0), 16)]", "clamp it"),
    "a remainder of data, towards 0": ("A[T.truncmod(I[v], 16)]", "clamp it"),
    "a guard that data pass": ("T.if_then_else(I[v] < 16, A[I[v]], T.float32(0))", "clamp it"),
    "a sum that overflows": ("A[T.min(T.max(I[v] + 1, 0), 15)]", "not proved to fit int32"),
    "a float": ('A[T.max(T.min(T.Cast("int32", A[v]), 15), 0)]', "not proved to fit int32"),
    "choices by different data": (
        "A[T.Select(I[v] < 3, v, 0) - T.Select(I[v] < 5, v, 0) + 1]",
        "clamp it",
    ),
    "an index of an index": ("A[T.min(T.max(I[I[v]], 0), 15)]", "clamp it"),
}


@pytest.mark.parametrize("what", REFUSED_INDICES)
def test_what_data_choose_is_refused_unless_it_is_guarded(what):
    value, message = REFUSED_INDICES[what]
    with pytest.raises(errors.WorkloadError) as caught:
        Task.from_prim_func(copy(value))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_store_at_an_index_of_data_is_refused():
    with pytest.raises(errors.WorkloadError, match="a scatter"):
        Task.from_prim_func(copy("A[v]", "B[T.min(T.max(I[v], 0), 15)]"))


def test_a_block_does_not_change_what_it_takes_indices_from():
    func = copy("I[T.min(T.max(I[v], 0), 15)]", "I[v]", params=(I32,))
    with pytest.raises(errors.WorkloadError, match="takes an index from a buffer that it stores"):
        Task.from_prim_func(func)


def test_an_index_is_not_bound_to_data_before():
    body = """
for i in range(16):
    with T.sblock("copy"):
        v = T.axis.spatial(16, i)
        w: T.let[T.int32] = T.min(T.max(I[v], 0), 15)
        B[v] = A[w]
        I[v] = 99
"""
    with pytest.raises(errors.WorkloadError, match="is bound to data before"):
        Task.from_prim_func(tir_programs.function(body, *FLOATS))


ACCEPTED = {
    "a clamp": "A[T.min(T.max(I[v], 0), 15)]",
    "a remainder": "A[I[v] % 16]",
    "a wrap": "A[T.truncmod(T.truncmod(I[v], 16) + 16, 16)]",
    "a mask": "A[T.bitwise_and(I[v], 15)]",
    "an index of an index": "A[I[I[v] % 16] % 16]",
    "choices by an equal comparison": "A[T.Select(v < 3, v, 0) - T.Select(v < 3, v, 0)]",
    "a choice between bounds": "A[15 - T.Select(v <= 10, 15 - v, v)]",
    "a shift and a divisor": 'T.Cast("float32", T.shift_left(1, I[v] % 32) // '
    "T.Select(I[v] == 0, 1, I[v]))",
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_is_guarded_is_accepted(what):
    bounds.prove(Task.from_prim_func(copy(ACCEPTED[what])).func)


def test_programs_of_te_are_guarded():
    """A gather, a shift and a division by data: as numpy has it where the data are legal."""
    x, i = te.placeholder((5, 4), "int32", name="x"), te.placeholder((6,), "int32", name="i")
    y = te.compute((6, 4), lambda a, b: (x[i[a], b] << i[a]) // i[a], name="y")
    task = Task.from_te([x, i, y], "llvm")
    values = np.arange(20, dtype="int32").reshape(5, 4)
    chosen = np.array([1, 4, 2, 2, 3, 1], dtype="int32")
    tensors = [tvm.runtime.tensor(a) for a in (values, chosen, np.zeros((6, 4), "int32"))]
    tvm.tirx.build(task.mod, "llvm")["main"](*tensors)
    expected = (values[chosen] << chosen[:, None]) // chosen[:, None]
    np.testing.assert_array_equal(tensors[2].numpy(), expected)
    with pytest.raises(errors.WorkloadError, match="clamp it"):
        Task.from_prim_func(te.create_prim_func([x, i, y]))


def lets(depth):
    """n0 = 2x; n1 = n0 + n0; n2 = n1 + n1; ..."""
    x = te.placeholder((8,), name="x")
    names = [tvm.tirx.Var(f"n{level}", "float32") for level in range(depth)]

    def value(j):
        result = names[-1]
        for level in reversed(range(depth)):
            bound = x[j] * 2.0 if level == 0 else names[level - 1] + names[level - 1]
            result = tvm.tirx.Let(names[level], bound, result)
        return result

    return [x, te.compute((8,), value, name="y")]


def test_a_let_is_its_value():
    task = Task.from_te(lets(3), "llvm")
    tensors = [tvm.runtime.tensor(np.full(8, fill, "float32")) for fill in (1.5, 0)]
    tvm.tirx.build(task.mod, "llvm")["main"](*tensors)
    assert tensors[1].numpy().tolist() == [12.0] * 8
    assert task.flops == 8 * 7


def test_lets_count_as_often_as_they_are_used():
    with pytest.raises(errors.WorkloadError, match="more than 50000 nodes"):
        Task.from_te(lets(30), "llvm")


def test_indices_of_an_embedding_are_measured_with_legal_values():
    table, i = te.placeholder((7, 3), name="table"), te.placeholder((50,), "int32", name="i")
    task = Task.from_te([table, i, topi.take(table, i, axis=0, mode="clip")], "llvm")
    args = task_program.arguments(task.mod)
    values = reference.inputs(args, seed=0, positive=False)[1]
    assert args[1].index_bound == 7
    assert set(values.tolist()) <= set(range(7)) and len(set(values.tolist())) > 3


def test_a_gather_counts_what_it_loads_at_most():
    table, i = te.placeholder((1000, 3), name="table"), te.placeholder((5,), "int32", name="i")
    task = Task.from_te([table, i, topi.take(table, i, axis=0, mode="clip")], "llvm")
    assert task.min_bytes == 4 * (5 + 2 * 5 * 3)
