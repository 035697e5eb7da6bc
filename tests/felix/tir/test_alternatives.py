"""Programs whose space has too many schedules to be made: some of it, the same everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from tvm import s_tir, te, topi

from felix.task import Task
from felix.tir import design_space
from felix.tir.design_space import post_order, schedule_rules, variants


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


@pytest.mark.parametrize(
    ("make", "n", "target"), [(softmaxes, 6, "llvm"), (products, 6, "llvm"), (products, 6, "cuda")]
)
def test_of_very_many_schedules_some_are_made(
    make: Callable[[int, str], Task], n: int, target: str
) -> None:
    task = make(n, target)
    space = design_space.generate(task.mod, task.target)
    assert 9 <= len(space.schedules) <= design_space.MAX_CHOSEN
    texts = [str(schedule.trace) for schedule in space.schedules]
    assert len(set(texts)) == len(texts)
    assert all(schedule_rules.is_sound(schedule.mod) for schedule in space.schedules)
    again = design_space.generate(task.mod, task.target)
    assert [str(schedule.trace) for schedule in again.schedules] == texts


def test_of_a_chain_whose_space_is_small_all_are_made() -> None:
    task = products(4, "llvm")
    context = design_space.tune_context(task.mod, task.target)
    plain = [str(schedule.trace) for schedule in context.generate_design_space()]
    space = design_space.generate(task.mod, task.target)
    assert [str(schedule.trace) for schedule in space.schedules] == plain and len(plain) == 81


def test_what_is_made_of_many_is_part_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    task = softmaxes(2, "llvm")
    whole = traces(task)
    monkeypatch.setattr(post_order, "MAX_FULL", 27)
    monkeypatch.setattr(design_space, "MAX_CHOSEN", 27)
    some = traces(task)
    assert len(whole) == 81 and len(some) == 27 and some < whole


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
