"""What is being measured: which trial is taken next, and what becomes of those that fail."""

from __future__ import annotations

import threading
import types
from concurrent.futures import Future
from typing import Any

import pytest

from felix.measure import protocol
from felix.measure.pool import locks
from felix.search import interface
from felix.tuning import pacing
from felix.tuning.trials import pending

_Future = Future[protocol.Measurement]


class Measurer:
    """Futures that a test resolves."""

    def __init__(self) -> None:
        self.futures: list[_Future] = []

    def submit(self, program: Any) -> _Future:
        self.futures.append(Future())
        return self.futures[-1]


def _trials(number: int, seconds: float | None = None) -> tuple[pending.PendingTrials, Measurer]:
    breakdown = pacing.Breakdown()
    guard = pacing.ComputeGuard(locks.ReadWriteLock(), breakdown)
    trials = pending.PendingTrials(pacing.Clock(), guard, breakdown, seconds)
    measurer = Measurer()
    task_run: Any = types.SimpleNamespace(measurer=measurer, n_rounds=0)
    for each in range(number):
        trials.submit(task_run, interface.Suggestion(0, (each,)), None)  # type: ignore[arg-type]
    return trials, measurer


def _resolve(future: _Future) -> None:
    future.set_result(protocol.Measurement.timed([1.0]))


def test_the_oldest_that_is_measured_is_taken_first() -> None:
    trials, measurer = _trials(4)
    taken: list[tuple[int, ...]] = []
    for number in (3, 1, 2):
        _resolve(measurer.futures[number])
    trials.complete_one(lambda trial: taken.append(trial.suggestion.decisions))
    trials.take_measured(lambda trial: taken.append(trial.suggestion.decisions))
    assert taken == [(1,), (2,), (3,)] and len(trials) == 1


def test_a_wait_ends_with_the_first_measurement() -> None:
    trials, measurer = _trials(2)
    threading.Timer(0.01, _resolve, [measurer.futures[1]]).start()
    taken: list[Any] = []
    trials.complete_one(taken.append)
    assert [trial.suggestion.decisions for trial in taken] == [(1,)]
    assert taken[0].completed_s is not None


def test_what_is_cancelled_is_let_go_of_unrecorded() -> None:
    trials, measurer = _trials(3, seconds=1e-9)  # time is up
    measurer.futures[0].set_running_or_notify_cancel()
    taken: list[Any] = []
    trials.complete_one(taken.append)
    trials.complete_one(taken.append)
    assert not taken and len(trials) == 1


def test_a_trial_whose_recording_was_interrupted_is_recorded_at_the_end() -> None:
    trials, measurer = _trials(2)

    def interrupted(trial: pending.PendingTrial) -> None:
        raise KeyboardInterrupt

    _resolve(measurer.futures[0])
    with pytest.raises(KeyboardInterrupt):
        trials.complete_one(interrupted)
    taken: list[Any] = []
    trials.abandon(taken.append)
    assert [trial.suggestion.decisions for trial in taken] == [(0,)] and len(trials) == 0


def test_what_was_let_go_of_is_not_taken_when_it_is_measured() -> None:
    trials, measurer = _trials(2)
    measurer.futures[0].set_running_or_notify_cancel()
    taken: list[Any] = []
    trials.abandon(taken.append)
    _resolve(measurer.futures[0])
    assert measurer.futures[1].cancelled()
    trials.take_measured(taken.append)
    assert taken == [] and len(trials) == 0
