"""The default schedule: every block on threads, sums in order; what has none is refused."""

from __future__ import annotations

import pathlib

import pytest
import tvm
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

import felix
from felix import errors, records, target
from felix.measure import protocol, task_program
from felix.measure.cuda.building import build as cuda_build
from felix.measure.cuda.building import nvrtc
from felix.tir.design_space import default_schedule
from felix.tuning import results
from felix.workloads import suite
from tests.support import tir_programs

H200 = target.parse("h200")


@pytest.mark.parametrize(
    "name", ["gemm_primes", "gemm_bias_relu", "softmax", "layer_norm", "conv2d_stride2"]
)
def test_programs_compile_with_one_kernel_a_block(name: str) -> None:
    task = suite.CHECK_SUITE[name]("h200")
    schedule = default_schedule.of(task.mod, task.target)
    lowered = cuda_build.lower(schedule.mod, task.target)
    assert len(lowered.plan.launches) == len(task_program.leaf_blocks(task.mod["main"]))
    cubin = nvrtc.compile_cubin(lowered.source.text, lowered.arch, headers=lowered.source.headers)
    assert cubin.startswith(b"\x7fELF")


def test_a_scalar_result_has_one_thread() -> None:
    func = tir_programs.function(
        """
        for i in T.serial(16):
            with T.sblock("total"):
                v = T.axis.reduce(16, i)
                with T.init():
                    B[0] = T.float32(0)
                B[0] = B[0] + A[v]
        """,
        tir_programs.A16,
        'B: T.Buffer((1,), "float32")',
    )
    mod = default_schedule.on_gpu(tvm.IRModule({"main": func})).mod
    assert 'T.thread_binding(1, thread="threadIdx.x")' in mod.script()


def test_blocks_that_share_a_loop_have_none() -> None:
    func = tir_programs.function(
        """
        for i in T.serial(16):
            with T.sblock("first"):
                v = T.axis.spatial(16, i)
                B[v] = A[v]
            with T.sblock("second"):
                v = T.axis.spatial(16, i)
                C[v] = B[v]
        """,
        tir_programs.A16,
        tir_programs.B16,
        'C: T.Buffer((16,), "float32")',
    )
    with pytest.raises(errors.UnsupportedSchedule, match="second has no default schedule"):
        default_schedule.on_gpu(tvm.IRModule({"main": func}))


def test_a_thread_adds_no_millions_of_values() -> None:
    task = felix.workloads.reduce((1, 1 << 22), (1,))
    with pytest.raises(errors.UnsupportedSchedule, match="a thread would combine 4194304 values"):
        default_schedule.on_gpu(task.mod)


def test_a_cpu_runs_the_program_as_it_is() -> None:
    task = felix.workloads.gemm(8, 8, 8, target="llvm")
    schedule = default_schedule.of(task.mod, task.target)
    tvm.ir.assert_structural_equal(schedule.mod["main"], task.mod["main"])


def test_a_program_that_tvm_cannot_schedule_is_refused_by_name() -> None:
    task = felix.workloads.gemm(8, 8, 8, target="llvm")
    body = task.func.body
    named = s_tir.SBlock([], [], [], "whole", body.block.body)
    func = task.func.with_body(s_tir.SBlockRealize([], True, named))
    with pytest.raises(errors.UnsupportedSchedule, match="TVM cannot schedule the program"):
        default_schedule.of(tvm.IRModule({"main": func}), task.target)


def test_a_database_has_what_ships(tmp_path: pathlib.Path) -> None:
    task = felix.workloads.parse("gemm:16,16,16", target="h200")
    ships = results.Unscheduled(task, protocol.Measurement(latency_us=2.0))
    entry = records.DatabaseEntry(task.mod, ships.schedule.trace, (2.0,), task.target)
    records.export_database(tmp_path, [entry])
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    applied = ms.tir_integration.compile_tir(database, task.mod, task.target)
    tvm.ir.assert_structural_equal(applied.mod["main"].body, ships.schedule.mod["main"].body)
