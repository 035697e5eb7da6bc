"""What data may choose: indices, shifts and divisors that are guarded, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, topi

from felix import errors
from felix.measure import task_program
from felix.measure.checking import reference
from felix.task import Task
from felix.tir import bounds
from tests.support import tir_programs

I32 = 'I: T.Buffer((16,), "int32")'
J32 = 'J: T.Buffer((16,), "int32")'
FLOATS = (tir_programs.A16, tir_programs.B16, I32)


def copy(value, store="B[v]", params=FLOATS):
    return tir_programs.copy(value, store, params=params)


REFUSED = {
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


@pytest.mark.parametrize("what", REFUSED)
def test_what_data_choose_is_refused_unless_it_is_guarded(what):
    value, message = REFUSED[what]
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
