"""Design spaces where a rule of TVM fails: it is lost for one block, and the rest stays."""

from __future__ import annotations

from collections import Counter

import pytest
from tvm import te, topi
from tvm.s_tir import meta_schedule as ms

from felix import workloads
from felix.sketch import sketch as sketching
from felix.task import Task
from felix.tir import design_space
from felix.tir.design_space import schedule_rules
from felix.verify import compare
from tests.corpus import outcome
from tests.support import legal_rows

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
    report = compare.check_rows(sketch, legal_rows.draw(sketch, 1, seed=0))
    assert (report.checked, report.mismatches) == (1, ())


def test_where_no_rule_fails_the_space_is_tvms_own() -> None:
    task = workloads.gemm(64, 48, 32, target="cuda")
    context = design_space.tune_context(task.mod, task.target)
    plain = [str(schedule.trace) for schedule in context.generate_design_space()]
    space = design_space.generate(task.mod, task.target)
    assert [str(schedule.trace) for schedule in space.schedules] == plain


def test_a_block_is_not_moved_into_a_producer_that_others_read() -> None:
    """AutoInline does so with one of the parts, and the others then read what nothing stores."""
    task = corpus_task("split_of_exp", "cuda")
    context = design_space.tune_context(task.mod, task.target)
    stock = context.generate_design_space()
    assert not all(schedule_rules.is_sound(schedule.mod) for schedule in stock)
    space = design_space.generate(task.mod, task.target)
    assert all(schedule_rules.is_sound(schedule.mod) for schedule in space.schedules)
