"""A run that is watched from outside: `should_stop`, `journal`, descent steps in events."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest

import felix
from felix import events, records
from felix.search import descent, gradient
from felix.tuning import session
from tests.support import tuning_fakes


class Journal:
    """Stores everything in memory; a second run goes on from it."""

    def __init__(self) -> None:
        self.records: list[records.Record] = []
        self.state: dict[str, Any] | None = None
        self.tensors: dict[str, Any] = {}
        self.identities: list[session.Identity] = []
        self.n_closed = 0

    def open(self, tasks: Any, identity: session.Identity) -> Journal:
        self.identities.append(identity)
        return self

    def append(self, record: records.Record) -> None:
        self.records.append(record)

    def save(self, state: Any, tensors: Any) -> None:
        self.state, self.tensors = dict(state), dict(tensors)

    def close(self) -> None:
        self.n_closed += 1


def test_a_journal_replaces_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning_fakes.use(monkeypatch)
    journal = Journal()
    options = tuning_fakes.small(journal=journal.open)
    task = tuning_fakes.task()
    first = felix.tune(task, trials=16, model=tuning_fakes.Model(), options=options)
    assert journal.records == list(first.records)
    assert journal.identities[0].task_keys == (task.key,)
    second = felix.tune(task, trials=24, model=tuning_fakes.Model(), options=options)
    assert second.records[:16] == first.records
    assert len({(*r.decisions, r.sketch_index) for r in second.records}) == 24
    assert journal.n_closed == 2


def test_should_stop_ends_a_run_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning_fakes.use(monkeypatch)
    stop = threading.Event()
    pool = tuning_fakes.Pool(seconds=0.05)
    options = tuning_fakes.small(pool, should_stop=stop.is_set)
    emitted: list[events.Event] = []

    def watch(event: events.Event) -> None:
        emitted.append(event)
        if isinstance(event, events.Trial) and event.trial == 3:
            stop.set()

    begun = time.monotonic()
    result = felix.tune(
        tuning_fakes.task(),
        trials=1000,
        model=tuning_fakes.Model(),
        options=options,
        on_event=watch,
    )
    assert result.reason == "interrupted"
    assert 3 <= len(result.records) <= 16  # the pool answers at once: what is measured is kept
    assert time.monotonic() - begun < 10
    assert isinstance(emitted[-1], events.Finished)


def test_an_interrupt_in_a_callback_records_no_trial_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning_fakes.use(monkeypatch)
    journal = Journal()

    def interrupt(event: events.Event) -> None:
        if isinstance(event, events.Trial) and event.trial == 5:
            raise KeyboardInterrupt

    result = felix.tune(
        tuning_fakes.task(),
        trials=32,
        model=tuning_fakes.Model(),
        options=tuning_fakes.small(journal=journal.open),
        on_event=interrupt,
    )
    assert result.reason == "interrupted" and len(result.records) >= 5
    assert journal.records == list(result.records)
    assert len({record.key for record in journal.records}) == len(journal.records)


def test_rounds_tell_their_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning_fakes.use(monkeypatch)
    emitted: list[events.Event] = []
    steps_of = descent.DescentOptions(steps=20, record_every=5)
    sizes = gradient.GradientOptions(n_seeds=4, n_samples=16, n_polish=1, descent=steps_of)
    felix.tune(
        tuning_fakes.task(),
        trials=16,
        model=tuning_fakes.Model(),
        strategy="gradient",
        options=tuning_fakes.small(search=sizes),
        on_event=emitted.append,
    )
    rounds = [event for event in emitted if isinstance(event, events.RoundStarted)]
    assert rounds[0].steps == ()  # warm-up
    steps = rounds[1].steps
    assert [s.step for s in steps] == [0, 5, 10, 15, 20]
    temperatures = [s.temperature for s in steps]
    assert temperatures == sorted(temperatures, reverse=True)
    assert steps[-1].loss < steps[0].loss
    assert all(s.loss <= s.mean_loss and 0 <= s.legal_share <= 1 for s in steps)
    assert all(math.isfinite(s.penalty) for s in steps)
