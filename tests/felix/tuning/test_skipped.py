"""Tasks of a run that cannot be tuned: skipped by name, and the others are tuned."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir

import felix
from felix import errors, events
from felix.cli import progress, report
from felix.measure import limits
from felix.task import Task
from felix.tuning import results
from tests.support import tuning_fakes as fakes

BAD_WEIGHT = 3.0
REASON = "index expression cannot be modelled"


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task whose sketches cannot be modelled, as those of no task of this weight can."""

    def make(task: Task) -> list[Any]:
        if task.weight == BAD_WEIGHT:
            raise errors.UnsupportedSchedule(f"{task.name}: {REASON}")
        return fakes.sketches(task)

    fakes.use(monkeypatch, make)
    return fakes.task(32, weight=BAD_WEIGHT)


def tune(tasks: list[Task], emitted: list[Any] | None = None) -> results.NetworkResult:
    return felix.tune(
        tasks,
        trials=16,
        options=fakes.small(),
        model=fakes.Model(),
        on_event=None if emitted is None else emitted.append,
    )


def test_a_task_that_cannot_be_modelled_is_skipped_and_the_others_are_tuned(bad: Task) -> None:
    good = [fakes.task(64), fakes.task(128, weight=2.0)]
    emitted: list[Any] = []
    network = tune([good[0], bad, good[1]], emitted)
    (event,) = [e for e in emitted if isinstance(e, events.Skipped)]
    assert (event.task, event.task_index) == (bad.name, 1) and REASON in event.reason
    assert progress.text(event) == f"{bad.name} is skipped: {event.reason}"
    assert network.skipped == (network.results[1],)
    assert network.results[1].failure() == f"{bad.name}: skipped: {event.reason}"
    with pytest.raises(errors.TuningError, match=f"{bad.name}: skipped: .*{REASON}"):
        network.results[1].best  # noqa: B018
    assert network.reason == "trials" and len(network.results[0].records) >= 4
    best_us = [network.results[i].best.latency_us for i in (0, 2)]
    assert network.latency_us == pytest.approx(best_us[0] + 2 * best_us[1])
    assert network.curve[-1][2] == pytest.approx(network.latency_us)
    rows = report.to_json(network, [{}] * 3, [None] * 3)["tasks"]
    assert [row["skipped"] for row in rows] == [None, event.reason, None]


def test_the_only_task_that_cannot_be_modelled_is_an_error(bad: Task) -> None:
    with pytest.raises(errors.TuningError, match=f"{bad.name}: {REASON}"):
        felix.tune(bad, trials=8, options=fakes.small(), model=fakes.Model())


def test_where_tvm_itself_fails_only_that_task_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(task: Task) -> list[Any]:
        if task.weight == BAD_WEIGHT:
            raise s_tir.ScheduleError("ScheduleError: no such block")
        return fakes.sketches(task)

    fakes.use(monkeypatch, make)
    network = tune([fakes.task(32, weight=BAD_WEIGHT), fakes.task(64)])
    assert [bool(result.skipped) for result in network.results] == [True, False]
    assert "no such block" in (network.results[0].skipped or "")
    assert network.results[0].best_or_none is None


def test_a_run_of_skipped_tasks_alone_ends_as_failed(bad: Task) -> None:
    network = tune([bad, fakes.task(16, weight=BAD_WEIGHT)])
    assert network.reason == "failed" and network.latency_us is None
    assert len(network.skipped) == 2 and network.curve == ()


def test_a_task_that_is_too_large_is_skipped(monkeypatch: pytest.MonkeyPatch, bad: Task) -> None:
    small, large = fakes.task(64), fakes.task(128)
    check = limits.check

    def refuse_large(task: Task, capacity: limits.Capacity) -> None:
        none = limits.Capacity(0, capacity.peak_gflops)
        check(task, none if task.key == large.key else capacity)

    monkeypatch.setattr(limits, "check", refuse_large)
    network = tune([large, small])
    assert [bool(result.skipped) for result in network.results] == [True, False]
    assert "too large" in (network.results[0].skipped or "")
    assert network.results[1].best.latency_us > 0


def test_a_run_goes_on_without_its_skipped_tasks(bad: Task, tmp_path: Any) -> None:
    arguments: dict[str, Any] = {"options": fakes.small(), "model": fakes.Model(), "out": tmp_path}
    first = felix.tune([bad, fakes.task(64)], trials=8, **arguments)
    again = felix.tune([bad, fakes.task(64)], trials=16, resume=True, **arguments)
    assert len(first.results[1].records) == 8 and len(again.results[1].records) == 16
    assert again.results[0].skipped == first.results[0].skipped
