"""Tasks that cannot be tuned are skipped by name; runs are watched and stopped from outside."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from tvm import s_tir

from felix import errors, events
from felix.cli import progress, report
from felix.database import records, session
from felix.measure import limits
from felix.search import descent, gradient
from felix.task import Task
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


def test_a_task_that_cannot_be_modelled_is_skipped_and_the_others_are_tuned(bad: Task) -> None:
    good = [fakes.task(64), fakes.task(128, weight=2.0)]
    emitted: list[Any] = []
    network = fakes.tune([good[0], bad, good[1]], trials=16, on_event=emitted.append)
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
        fakes.tune(bad, trials=8)


def test_where_tvm_itself_fails_only_that_task_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(task: Task) -> list[Any]:
        if task.weight == BAD_WEIGHT:
            raise s_tir.ScheduleError("ScheduleError: no such block")
        return fakes.sketches(task)

    fakes.use(monkeypatch, make)
    network = fakes.tune([fakes.task(32, weight=BAD_WEIGHT), fakes.task(64)], trials=16)
    assert [bool(result.skipped) for result in network.results] == [True, False]
    assert "no such block" in (network.results[0].skipped or "")
    assert network.results[0].best_or_none is None


def test_a_run_of_skipped_tasks_alone_ends_as_failed(bad: Task) -> None:
    network = fakes.tune([bad, fakes.task(16, weight=BAD_WEIGHT)], trials=16)
    assert network.reason == "failed" and network.latency_us is None
    assert len(network.skipped) == 2 and network.curve == ()


def test_a_task_that_is_too_large_is_skipped(monkeypatch: pytest.MonkeyPatch, bad: Task) -> None:
    small, large = fakes.task(64), fakes.task(128)
    check = limits.check

    def refuse_large(task: Task, capacity: limits.Capacity) -> None:
        none = limits.Capacity(0, capacity.peak_gflops)
        check(task, none if task.key == large.key else capacity)

    monkeypatch.setattr(limits, "check", refuse_large)
    network = fakes.tune([large, small], trials=16)
    assert [bool(result.skipped) for result in network.results] == [True, False]
    assert "too large" in (network.results[0].skipped or "")
    assert network.results[1].best.latency_us > 0


def test_a_run_goes_on_without_its_skipped_tasks(bad: Task, tmp_path: Any) -> None:
    tasks = [bad, fakes.task(64)]
    first = fakes.tune(tasks, trials=8, out=tmp_path)
    again = fakes.tune(tasks, trials=16, out=tmp_path, resume=True)
    assert len(first.results[1].records) == 8 and len(again.results[1].records) == 16
    assert again.results[0].skipped == first.results[0].skipped


class Journal:
    """Stores everything in memory; a second run goes on from it."""

    def __init__(self) -> None:
        self.records: list[records.Trial] = []
        self.state: dict[str, Any] | None = None
        self.tensors: dict[str, Any] = {}
        self.identities: list[session.Identity] = []
        self.n_closed = 0

    def open(self, tasks: Any, identity: session.Identity) -> Journal:
        self.identities.append(identity)
        return self

    def append(self, record: records.Trial) -> None:
        self.records.append(record)

    def save(self, state: Any, tensors: Any) -> None:
        self.state, self.tensors = dict(state), dict(tensors)

    def close(self) -> None:
        self.n_closed += 1


def test_a_journal_replaces_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)
    journal = Journal()
    options, task = {"journal": journal.open}, fakes.task()
    first = fakes.tune(task, trials=16, options=options)
    assert journal.records == list(first.records)
    assert journal.identities[0].task_keys == (task.key,)
    second = fakes.tune(task, trials=24, options=options)
    assert second.records[:16] == first.records
    assert len({(*r.decisions, r.sketch_index) for r in second.records}) == 24
    assert journal.n_closed == 2


def test_should_stop_ends_a_run_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)
    stop = threading.Event()
    emitted: list[events.Event] = []

    def watch(event: events.Event) -> None:
        emitted.append(event)
        if isinstance(event, events.Trial) and event.trial == 3:
            stop.set()

    options, pool = {"should_stop": stop.is_set}, fakes.Pool(seconds=0.05)
    result = fakes.tune(pool=pool, trials=1000, options=options, on_event=watch)
    assert result.reason == "interrupted"
    assert 3 <= len(result.records) <= 16  # the pool answers at once: what is measured is kept
    assert isinstance(emitted[-1], events.Finished)


def test_an_interrupt_in_a_callback_records_no_trial_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes.use(monkeypatch)
    journal = Journal()

    def interrupt(event: events.Event) -> None:
        if isinstance(event, events.Trial) and event.trial == 5:
            raise KeyboardInterrupt

    result = fakes.tune(options={"journal": journal.open}, on_event=interrupt)
    assert result.reason == "interrupted" and len(result.records) >= 5
    assert journal.records == list(result.records)
    assert len({record.key for record in journal.records}) == len(journal.records)


def test_rounds_tell_their_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)
    emitted: list[events.Event] = []
    steps_of = descent.DescentOptions(steps=20, record_every=5)
    sizes = gradient.GradientOptions(n_seeds=4, n_samples=16, n_polish=1, descent=steps_of)
    fakes.tune(trials=16, options={"search": sizes}, on_event=emitted.append)
    rounds = [event for event in emitted if isinstance(event, events.RoundStarted)]
    assert rounds[0].steps == ()  # warm-up
    steps = rounds[1].steps
    assert [s.step for s in steps] == [0, 5, 10, 15, 20]
    temperatures = [s.temperature for s in steps]
    assert temperatures == sorted(temperatures, reverse=True)
    assert steps[-1].loss < steps[0].loss
    assert all(s.loss <= s.mean_loss and 0 <= s.legal_share <= 1 for s in steps)
    assert all(math.isfinite(s.penalty) for s in steps)
