"""Programs for a local pool, good and bad ones, and its options."""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from felix.measure import local
from felix.runner import timing
from tests.support import tir_programs

N = 64
OPTIONS = local.LocalOptions(
    builders=2,
    build_timeout_s=1.5,
    run_timeout_s=2.0,
    timing=timing.TimingOptions(max_total_s=0.05),
)


def Square() -> T.Buffer:
    """The annotation of a parameter."""
    return T.Buffer((N, N), "float32")


def _first_rows(rows: int) -> tvm.tirx.PrimFunc:
    """Writes so many rows of a product."""

    @tir_programs.prim_func(s_tir=True)
    def gemm(a: Square, b: Square, c: Square):
        T.func_attr({"tirx.noalias": True})
        for i, j, k in T.grid(rows, N, N):
            with T.sblock("c"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    c[vi, vj] = T.float32(0)
                c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]

    return gemm


gemm, unwritten_row = _first_rows(N), _first_rows(N - 1)


@tir_programs.prim_func(s_tir=True)
def other_sum(a: Square, b: Square, c: Square):
    for i, j, k in T.grid(N, N, N):
        with T.sblock("c"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                c[vi, vj] = T.float32(0)
            c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vj, vk]


def _calling(call: tvm.ir.Call) -> tvm.tirx.PrimFunc:
    """A program that calls a function of the C library."""

    @tir_programs.prim_func(s_tir=True)
    def calling(a: Square, b: Square, c: Square):
        for _i in T.serial(1):
            with T.sblock("c"):
                T.reads()
                T.writes(c[0, 0])
                T.evaluate(call)
                c[0, 0] = a[0, 0] + b[0, 0]

    return calling


null_pointer = _calling(T.call_extern("int32", "puts", T.reinterpret("handle", T.int64(0))))
abort = _calling(T.call_extern("int32", "abort"))
unknown_function = _calling(T.call_extern("int32", "no_such_function_anywhere"))


@tir_programs.prim_func(s_tir=True)
def hang(a: Square, b: Square, c: Square):
    for _i in T.serial(1):
        with T.sblock("c"):
            T.reads()
            T.writes(c[0, 0])
            c[0, 0] = T.float32(1)
            while c[0, 0] > T.float32(0):
                T.evaluate(T.call_extern("int32", "sleep", 1))
                c[0, 0] = c[0, 0] + a[0, 0] * a[0, 0] + b[0, 0] * b[0, 0]


def module(func: tvm.tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def unrolled() -> tvm.IRModule:
    """A quarter of a million multiply-adds in a row: LLVM needs minutes."""
    mod = module(gemm)  # a name of its own: TVM schedules a temporary module in place, `gemm` too
    sch = tvm.s_tir.Schedule(mod)
    for loop in sch.get_loops(sch.get_sblock("c")):
        sch.unroll(loop)
    return sch.mod


def parallel() -> tvm.IRModule:
    mod = module(gemm)
    sch = tvm.s_tir.Schedule(mod)
    sch.parallel(sch.get_loops(sch.get_sblock("c"))[0])
    return sch.mod
