"""Design spaces where a rule of TVM fails for one block; the default schedule.

Programs whose space has too many schedules to be made: some of it, the same everywhere.

Which failures of a rule on a block are TVM's to have, and which are ours to see."""

from __future__ import annotations

import math
import pathlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import s_tir, te, topi
from tvm.s_tir import meta_schedule as ms

import felix
from felix import errors, target, workloads
from felix.builder import task_program
from felix.builder.cuda import build as cuda_build
from felix.database import metaschedule_files
from felix.runner import protocol
from felix.runner.cuda import nvrtc
from felix.space import sketch as sketching
from felix.task import Task
from felix.tir import design_space
from felix.tir.design_space import default_schedule, post_order, schedule_rules, variants
from felix.tir.design_space.variants import STOCK, Prefix
from felix.tuning import results
from felix.workloads import suite
from tests.corpus import outcome
from tests.support import legal_rows, share, tir_programs

TILING = "meta_schedule.tiling_structure"


def corpus_task(name: str, target: str) -> Task:
    return Task.from_te(outcome.PROGRAMS[name](), target, name)


def instruction_counts(sketch: sketching.Sketch) -> Counter[str]:
    return Counter(inst.kind for inst in sketch.instructions)


def tilings(sketch: sketching.Sketch) -> int:
    return sum(TILING in inst.attrs for inst in sketch.instructions)


@pytest.mark.parametrize("name", ["dense_softmax", "sum_of_sum", "mean_and_variance"])
def test_sums_keep_the_schedules_that_other_rules_give(name: str) -> None:
    """CrossThreadReduction fails at one of the sums."""
    task = corpus_task(name, "cuda")
    with pytest.raises((LookupError, RuntimeError)):
        design_space.tune_context(task.mod, task.target).generate_design_space()
    sketches = sketching.trace_sketches(task)
    assert len(sketches) > 1
    assert any(instruction_counts(sketch)["Bind"] > 3 or tilings(sketch) for sketch in sketches)


def test_a_product_whose_softmax_cannot_be_spread_is_still_tiled() -> None:
    sketches = sketching.trace_sketches(corpus_task("dense_softmax", "cuda"))
    assert [tilings(sketch) for sketch in sketches] == [1] * len(sketches)
    assert any(instruction_counts(sketch)["SampleCategorical"] > 3 for sketch in sketches)


def test_two_products_that_are_added_are_both_tiled() -> None:
    """MultiLevelTiling moves the sum under one product, where the other is not computed."""
    (sketch,) = sketching.trace_sketches(corpus_task("dense_twice_shared", "llvm"))
    assert tilings(sketch) == 2
    assert instruction_counts(sketch)["SamplePerfectTile"] == 6


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_without_any_rule_one_sound_schedule_is_left(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def fail(context: ms.TuneContext) -> None:
        raise RuntimeError("TVM cannot")

    monkeypatch.setattr(ms.TuneContext, "generate_design_space", fail)
    x = te.placeholder((40, 30), name="x")
    (sketch,) = sketching.trace_sketches(Task.from_te([x, topi.sum(topi.exp(x), axis=1)], target))
    legal_rows.checked(sketch, 1, seed=0)


def test_a_block_is_not_moved_into_a_producer_that_others_read() -> None:
    """AutoInline does so with one of the parts, and the others then read what nothing stores."""
    task = corpus_task("split_of_exp", "cuda")
    context = design_space.tune_context(task.mod, task.target)
    stock = context.generate_design_space()
    assert not all(schedule_rules.is_sound(schedule.mod) for schedule in stock)
    space = design_space.generate(task.mod, task.target)
    assert all(schedule_rules.is_sound(schedule.mod) for schedule in space.schedules)


def softmaxes(n: int, target: str) -> Task:
    x = result = te.placeholder((13, 97), name="x")
    for _ in range(n):
        result = topi.nn.softmax(result, axis=-1)
    return Task.from_te([x, result], target, f"softmaxes_{n}")


def products(n: int, target: str) -> Task:
    x = result = te.placeholder((37, 48), name="x")
    weights = [te.placeholder((48, 48), name=f"w{i}") for i in range(n)]
    for weight in weights:
        result = topi.nn.relu(topi.nn.dense(result, weight))
    return Task.from_te([x, *weights, result], target, f"products_{n}")


def without_samples(schedule: s_tir.Schedule) -> str:
    """The trace up to the rule that samples where blocks are computed, without decisions."""
    text = str(schedule.trace).partition("sample_compute_location")[0]
    return re.sub(r"decision=[^)]*", "", text)


def traces(task: Task) -> set[str]:
    return set(map(without_samples, design_space.generate(task.mod, task.target).schedules))


@pytest.mark.slow("makes schedules of the largest spaces")
@pytest.mark.parametrize(
    ("make", "target"), share.of([(softmaxes, "llvm"), (products, "llvm"), (products, "cuda")], 1)
)
def test_of_very_many_schedules_some_are_made(
    make: Callable[[int, str], Task], target: str
) -> None:
    task = make(6, target)
    space = design_space.generate(task.mod, task.target)
    assert 9 <= len(space.schedules) <= design_space.MAX_CHOSEN
    texts = [str(schedule.trace) for schedule in space.schedules]
    assert len(set(texts)) == len(texts)
    assert all(schedule_rules.is_sound(schedule.mod) for schedule in space.schedules)
    again = design_space.generate(task.mod, task.target)
    assert [str(schedule.trace) for schedule in again.schedules] == texts


@pytest.mark.parametrize(
    ("make", "n"),
    [(lambda: workloads.gemm(64, 48, 32, target="cuda"), 3), (lambda: products(4, "llvm"), 81)],
    ids=["product", "chain"],
)
def test_where_no_rule_fails_a_small_space_is_tvms_own(make: Callable[[], Task], n: int) -> None:
    task = make()
    context = design_space.tune_context(task.mod, task.target)
    plain = [str(schedule.trace) for schedule in context.generate_design_space()]
    space = design_space.generate(task.mod, task.target)
    assert [str(schedule.trace) for schedule in space.schedules] == plain and len(plain) == n


def test_what_is_made_of_many_is_part_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    task = softmaxes(2, "llvm")
    whole = traces(task)
    monkeypatch.setattr(post_order, "MAX_FULL", 27)
    monkeypatch.setattr(design_space, "MAX_CHOSEN", 27)
    some = traces(task)
    assert len(whole) == 81 and len(some) == 27 and some < whole


@pytest.mark.slow("makes variants of large spaces")
def test_a_variant_of_many_reductions_is_made_of_some() -> None:
    task = softmaxes(5, "cuda")
    machine = variants.Machine(8, True, 8)
    spaces = list(design_space.generate_variants(task.mod, task.target, machine))
    assert [str(space.variant) for space in spaces] == ["row_groups"]


def test_blocks_with_most_work_meet_in_all_alternatives() -> None:
    mod = products(6, "llvm").mod
    names = [f"T_matmul_NT{f'_{i}' if i else ''}" for i in range(6)]
    made: list[post_order.Choice] = []

    def make(
        choice: post_order.Choice, counts: dict[post_order.Place, int]
    ) -> list[s_tir.Schedule]:
        counts.update({(0, name): 3 for name in names})
        made.append(choice)
        return [s_tir.Schedule(mod)]

    some = post_order.some(mod, make, 30)
    assert some is not None and len(some) == 27 == len(made) - 1
    values = [tuple(choice[0, name] for name in names) for choice in made[1:]]
    assert len(set(values)) == 27
    assert {value[:2] for value in values} == {(i, j) for i in range(3) for j in range(3)}
    assert all(len(set(value[2:])) == 1 for value in values)
    assert math.prod([3] * 5) <= post_order.MAX_FULL < math.prod([3] * 6)


def applied(error: Exception) -> list[tvm.s_tir.Schedule]:
    """The schedules of a product whose own rule raises an error on every block."""

    def failing(schedule: tvm.s_tir.Schedule, block: Any) -> list[tvm.s_tir.Schedule]:
        raise error

    schedule = tvm.s_tir.Schedule(workloads.parse("gemm:8,8,8", target="llvm").mod)

    class ParallelizeVectorizeUnroll:
        def apply(self, schedule: Any, block: Any) -> list[Any]:
            return [schedule]

    prefix = Prefix(STOCK, before_finishing=failing)
    return post_order.apply(schedule, [ParallelizeVectorizeUnroll()], prefix)


@pytest.mark.parametrize("error", [IndexError("list"), ValueError("no"), RuntimeError("TVM")])
def test_a_rule_that_fails_leaves_the_block(error: Exception) -> None:
    assert len(applied(error)) == 1


def test_a_mistake_in_a_rule_of_ours_is_seen() -> None:
    with pytest.raises(AttributeError, match="no attribute"):
        applied(AttributeError("no attribute 'foo'"))


# ---------------------------------------------------------------- the default schedule


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
    entry = metaschedule_files.DatabaseEntry(task.mod, ships.schedule.trace, (2.0,), task.target)
    metaschedule_files.export_database(tmp_path, [entry])
    database = ms.database.JSONDatabase(work_dir=str(tmp_path))
    applied = ms.tir_integration.compile_tir(database, task.mod, task.target)
    tvm.ir.assert_structural_equal(applied.mod["main"].body, ships.schedule.mod["main"].body)
