"""Programs that would leave their buffers are refused; right ones of every usual form are not."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tvm

from felix import errors, workloads
from felix.task import Task
from felix.tir import bounds, grammar, reader
from tests.support import share
from tests.support.tir_programs import FLOATS, I32, J32, copy, function, results

BIG = 2**16


def made(case):
    """A copy of a value, or what the function of the case makes."""
    return copy(case) if isinstance(case, str) else case()


#: Values that are copied, and other programs.
OUT_OF_BOUNDS = {
    "a loop longer than its iterator's domain": lambda: copy("A[v]", loop=1000),
    "a predicate that lets too much through": lambda: copy("A[v]", loop=1000, where="i < 17"),
    "a predicate that holds elsewhere": lambda: copy("A[v]", loop=32, where="i >= 16"),
    "a binding that is stretched": lambda: copy("A[v]", binding="i * 2"),
    "a binding that depends on data": lambda: copy(
        "A[v]", binding="T.max(T.min(I[i], 15), 0)",
        params=FLOATS),
    "a predicate that depends on data": lambda: copy("A[v]", where="I[i] > 0", params=FLOATS),
    "a binding that is shifted": lambda: copy("A[v]", binding="i + 1"),
    "a binding that is negative": lambda: copy("A[v]", binding="i - 1"),
    "a domain longer than the buffer": lambda: copy("A[v]", loop=16, domain=17),
    "a store beyond the end": lambda: copy("A[v]", "B[v + 1]"),
    "a store before the start": lambda: copy("A[v]", "B[v - 1]"),
    "a load beyond the end": "A[v + 1]",
    "a guard that is off by one": "T.if_then_else(v < 16, A[v + 1], T.float32(0))",
    "a guard's other branch": "T.if_then_else(v < 15, A[v + 1], A[v + 1])",
    "a guard with or": "T.if_then_else(T.Or(v < 15, v > 2), A[v + 1], T.float32(0))",
    "a guard that is negated":
        "T.if_then_else(T.Not(T.And(v >= 1, v < 4)), A[v - 1], T.float32(0))",
    "a guard of another variable": lambda: function(
        """
for i, j in T.grid(16, 16):
    with T.sblock("copy"):
        v, w = T.axis.remap("SS", [i, j])
        B[v] = T.if_then_else(w < 15, A[v + 1], T.float32(0))
"""),
    "a Select, which guards nothing": "T.Select(v < 15, A[v + 1], T.float32(0))",
    "a condition's own load":
        "T.if_then_else(T.And(v < 15, A[v + 1] > T.float32(0)), T.float32(1), T.float32(0))",
    "an index behind if_then_else": "A[T.if_then_else(v < 8, v, v + 8)]",
    "an index behind Select": "A[T.Select(v < 8, v, v + 8)]",
    "an index behind likely": "A[T.if_then_else(T.likely(v < 8), v, v + 8)]",
    "an index of popcount": "A[T.popcount(v)]",
    "an index of clz": "A[T.min(T.clz(v), 15)]",
    "an index of a mask that is too long": "A[T.bitwise_and(v, 31)]",
    "an index of a mask below 0": "A[T.bitwise_and(v, -2)]",
    "an index of bits": "A[T.bitwise_xor(v, 1)]",
    "an overflow below a mask": "A[T.bitwise_and(v * 2000000000, 15)]",
    "a shift by data": lambda: copy('T.Cast("float32", T.shift_left(I[v], I[v]))', params=FLOATS),
    "an index of a shift": "A[T.shift_left(v, 4)]",
    "an index of a shift by too much": "A[T.min(T.max(T.shift_left(v, v * 4), 0), 15)]",
    "a truncated remainder of a negative number": "A[T.truncmod(v - 8, 4) + 2]",
    "a truncated quotient of a negative number": "A[T.truncdiv(v - 8, 4) + 1]",
    "a floored quotient of a negative number": "A[(v - 8) // 4]",
    "a remainder of a negative divisor": "A[v % T.int32(-4)]",
    "a quotient of a negative divisor": "A[v // T.int32(-4)]",
    "a product that overflows 32 bits": "A[(v * 1000000 * 1000000) % 16]",
    "a sum that overflows 32 bits": "A[T.max(T.min(v + 2147483647, 15), 0)]",
    "a difference that overflows 32 bits": "A[T.max(-2147483648 - v, 0)]",
    "a product that overflows 64 bits":
        'A[(T.Cast("int64", v) * T.int64(9223372036854775807)) % T.int64(16)]',
    "an overflow in a condition": "T.if_then_else(v * 2000000000 < 15, A[v + 1], T.float32(0))",
    "an overflow in a condition that is a number": 'A[T.Cast("int32", v * 2000000000 < 5)]',
    "an overflow in the condition of a Select": "A[T.Select(v * 2000000000 < 5, 1, 2)]",
    "an unsigned number below 0": 'A[T.Cast("int32", T.Cast("uint32", v) - T.uint32(1))]',
    "a cast to fewer bits": 'A[T.Cast("int32", T.Cast("int8", v * 20))]',
    "an index of few bits": 'A[T.Cast("int8", v)]',
    "a cast from a float": 'A[T.Cast("int32", T.Cast("float32", v) * T.float32(2))]',
    "a clamped float that fits no integer":
        'A[T.max(T.min(T.Cast("int32", T.Cast("float32", v) * T.float32(1e9)), 15), 0)]',
    "a division by 0": "A[v // (v - 3)]",
    "a quotient that does not fit":
        "A[T.min(T.max((v + T.int32(-2147483648)) // T.int32(-1), 0), 15)]",
    "data divided by data": lambda: copy("I[v] // J[v]", "J[v]", params=(I32, J32)),
    "data modulo data": lambda: copy("T.truncmod(I[v], J[v])", "J[v]", params=(I32, J32)),
    "a wide buffer with 32-bit indices": lambda: function(
        f"""
for i, j in T.grid({BIG}, {BIG}):
    with T.sblock("copy"):
        v, w = T.axis.remap("SS", [i, j])
        B[v, w] = A[v, w]
""", f'A: T.Buffer(({BIG}, {BIG}), "int8")', f'B: T.Buffer(({BIG}, {BIG}), "int8")'),
    "the init of a reduction": lambda: function(
        """
for i, k in T.grid(16, 4):
    with T.sblock("sum"):
        v, r = T.axis.remap("SR", [i, k])
        with T.init():
            B[v + 1] = T.float32(0)
        B[v] = B[v] + A[v]
"""),
    "the second of two blocks": lambda: function(
        """
C = T.sblock_alloc_buffer((8,), "float32")
for i in range(8):
    with T.sblock("first"):
        v = T.axis.spatial(8, i)
        C[v] = A[v]
for i in range(16):
    with T.sblock("second"):
        v = T.axis.spatial(16, i)
        B[v] = C[v]
"""),
    "a loop inside a block": lambda: function(
        """
for i in range(4):
    with T.sblock("outer"):
        v = T.axis.spatial(4, i)
        for j in range(5):
            B[v * 4 + j] = A[v]
"""),
    "a store guarded too late": lambda: function(
        """
for i in range(16):
    with T.sblock("copy"):
        v = T.axis.spatial(16, i)
        if v <= 15:
            B[v + 1] = A[v]
"""),
    "a store in the other branch": lambda: function(
        """
for i in range(16):
    with T.sblock("copy"):
        v = T.axis.spatial(16, i)
        if v < 15:
            B[v + 1] = A[v]
        else:
            B[v + 1] = A[v]
"""),
}  # fmt: skip


@pytest.mark.parametrize("what", OUT_OF_BOUNDS)
def test_programs_that_may_leave_their_buffers_are_refused(what):
    with pytest.raises(errors.WorkloadError) as caught:
        Task.from_prim_func(made(OUT_OF_BOUNDS[what]))
    assert "\n" not in str(caught.value)


def test_a_refusal_names_buffer_index_and_values():
    with pytest.raises(errors.WorkloadError) as caught:
        Task.from_prim_func(copy("A[v * 3 + 1]"))
    message = str(caught.value)
    assert "buffer 'A' may be accessed out of bounds: index 0, '((v * 3) + 1)'" in message
    assert "[0, 16): it takes 1 to 46" in message


def test_a_refusal_names_block_iterator_and_values():
    with pytest.raises(errors.WorkloadError) as caught:
        Task.from_prim_func(copy("A[v]", loop=1000))
    message = str(caught.value)
    assert "block 'copy' binds 'v' to 'i'" in message and "takes 0 to 999" in message


IN_BOUNDS = {
    "a masked index": "A[T.bitwise_and(v * 7, 15)]",
    "bits of data": lambda: copy(
        'T.Cast("float32", T.bitwise_or(T.shift_right(I[v], 3), T.bitwise_not(I[v])))',
        params=FLOATS),
    "a guard of both sides":
        "T.if_then_else(T.And(v >= 1, v < 15), A[v - 1] + A[v + 1], T.float32(0))",
    "a guard and its other branch": "T.if_then_else(v < 1, A[v], A[v - 1])",
    "a guard with or, negated":
        "T.if_then_else(T.Or(v < 1, v >= 15), T.float32(0), A[v - 1] + A[v + 1])",
    "either of two guards": "T.if_then_else(T.Or(v == 3, v == 5), A[v - 3], T.float32(0))",
    "more alternatives than are told apart": lambda: copy(
        "T.if_then_else(" + " or ".join(f"v == {i}" for i in range(16)) +
        " or v * 2 == 3, A[v], T.float32(0))"),
    "a condition as an index": 'A[T.Cast("int32", v < 5)]',
    "a guard by inequality": "T.if_then_else(v != 0, A[v - 1], T.float32(0))",
    "a guard that is likely": "T.if_then_else(T.likely(v < 8), A[v + 8], T.float32(0))",
    "a branch that is never taken": "T.if_then_else(v < 16, A[v], A[v + 1000])",
    "a predicate": lambda: copy("A[v]", loop=32, where="i < 16"),
    "a predicate of a stretched binding": lambda: copy(
        "A[v]", binding="i * 3", where="i * 3 < 16"),
    "a quotient and its remainder": "A[v // 4 * 4 + v % 4]",
    "a term that cancels": "A[v * 1000 - v * 999]",
    "a remainder of anything": "A[(v * 7 + 3) % 16] + A[(v - 9) % 16]",
    "truncated division of positive numbers": "A[T.truncdiv(v, 2) + T.truncmod(v, 2)]",
    "truncated division of negative numbers": "A[T.truncmod(v - 8, 4) + 3]",
    "a multiple taken out of a quotient": "A[(v * 8 + 7) // 8]",
    "a clamp": "A[T.max(T.min(v * 3 - 5, 15), 0)]",
    "an index behind if_then_else": "A[T.if_then_else(v < 8, v + 8, v - 8)]",
    "popcount": "A[T.popcount(v) % 16]",
    "a clamped float of an iterator": lambda: copy(
        'A[T.max(T.min(T.Cast("int32", T.floor((T.Cast("float32", v) + T.float32(0.5)) '
        '* T.float32(0.5))), 15), 0)]'),
    "a cast that fits": 'A[T.Cast("int32", T.Cast("int8", v))]',
    "data in a condition": lambda: copy(
        "T.if_then_else(I[v] + 2147483647 < 3, J[v], J[15 - v])", "J[v]", params=(I32, J32)),
    "data divided by a number": lambda: copy("I[v] // 3 + T.truncmod(I[v], 5)", "J[v]",
                                     params=(I32, J32)),
    "a branch of statements": lambda: function(
        """
for i in range(16):
    with T.sblock("copy"):
        v = T.axis.spatial(16, i)
        if v < 8:
            B[v + 8] = A[v]
        else:
            B[v - 8] = A[v]
"""),
    "a sum of two guarded variables": lambda: function(
        """
for i, r in T.grid(8, 3):
    with T.sblock("window"):
        v, w = T.axis.remap("SR", [i, r])
        with T.init():
            B[v] = T.float32(0)
        B[v] = B[v] + T.if_then_else(1 <= v * 2 + w and v * 2 + w < 17, A[v * 2 + w - 1],
                                     T.float32(0))
"""),
    "two guarded sums in one index": lambda: function(
        """
for i, j, r, s in T.grid(4, 4, 3, 3):
    with T.sblock("window"):
        v, w, y, x = T.axis.remap("SSRR", [i, j, r, s])
        with T.init():
            B[v * 4 + w] = T.float32(0)
        B[v * 4 + w] = B[v * 4 + w] + T.if_then_else(
            1 <= v + y and v + y < 5 and 1 <= w + x and w + x < 5,
            A[(v + y - 1) * 4 + (w + x - 1)], T.float32(0))
"""),
    "a guarded quotient": lambda: copy("T.if_then_else(v // 2 >= 1, A[(v // 2 - 1) * 2 + v % 2], "
                               "T.float32(0))"),
}  # fmt: skip


@pytest.mark.parametrize("what", IN_BOUNDS)
def test_programs_that_stay_inside_are_accepted(what):
    assert Task.from_prim_func(made(IN_BOUNDS[what])).func is not None


@pytest.mark.parametrize("what", share.of(IN_BOUNDS, 12))
def test_what_is_accepted_is_what_was_given(what):
    """The program that is made anew computes what the original does."""
    func = made(IN_BOUNDS[what])
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 9, 16).astype(str(parameter.dtype)) for parameter in func.params]
    given, made_anew = results([func, Task.from_prim_func(func).func], inputs)
    for left, right in zip(given, made_anew, strict=True):
        np.testing.assert_array_equal(left, right)


def test_wide_programs_keep_their_wide_indices():
    task = workloads.parse("elementwise:65536x65536,ops=relu")
    extents = {str(extent.ty.dtype) for extent in task.func.params[0].ty.shape}
    assert extents == {"int64"}
    bounds.prove(task.func)


def test_indices_are_not_narrowed_where_a_step_would_overflow():
    """The buffers are small, the product on the way is not: 32 bits would wrap around."""
    func = copy('A[(T.Cast("int64", v) * T.int64(4294967296)) // T.int64(4294967296)]')
    (block,) = (b for b in grammar.blocks(Task.from_prim_func(func).func.body) if b.iter_vars)
    assert str(block.body.value.indices[0].ty.dtype) == "int64"


def test_a_proof_gives_up_in_time():
    """Conditions that could be combined in millions of ways, in several blocks, cost seconds."""
    names = [f"v{i}" for i in range(8)]
    rng = np.random.default_rng(0)

    def weighted():
        return " + ".join(f"{name} * {rng.integers(1, 9)}" for name in names)

    condition = " and ".join(f"{weighted()} < {bound}" for bound in range(50, 60))
    block = f"""
for {", ".join(f"i{i}" for i in range(8))} in T.grid(4, 4, 4, 4, 4, 4, 4, 4):
    with T.sblock("BLOCK"):
        {", ".join(names)} = T.axis.remap("SSSSSSSS", [{", ".join(f"i{i}" for i in range(8))}])
        B[v0] = T.if_then_else({condition}, A[0], A[0])
"""
    last = block.replace("A[0], A[0]", f"A[{weighted()}], A[0]")
    body = "".join(block.replace("BLOCK", f"b{i}") for i in range(3)) + last
    started = time.process_time()
    with pytest.raises(errors.WorkloadError, match="index 0"):
        bounds.prove(reader.read(tvm.ir.save_json(function(body))))
    assert time.process_time() - started < 10
