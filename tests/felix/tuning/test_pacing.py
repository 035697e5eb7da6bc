"""The tuner's side of the gate, and that search and measuring overlap."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

import felix
from felix import events
from felix.measure import protocol
from felix.measure.pool import rwlock
from felix.tuning import pacing
from tests.support import tuning_fakes as fakes


@pytest.fixture(autouse=True)
def _fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


def _timer(shared: rwlock.ReadWriteLock, timed: list[float]) -> threading.Thread:
    def work() -> None:
        shared.acquire()
        timed.append(time.perf_counter())
        time.sleep(0.05)
        shared.release()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_timing_goes_first_at_a_breath() -> None:
    shared, spent, timed = rwlock.ReadWriteLock(), pacing.Breakdown(), []
    compute_guard = pacing.ComputeGuard(shared, spent)
    with compute_guard.computing("search"):
        thread = _timer(shared, timed)
        time.sleep(0.05)
        assert not timed  # it waits: we compute
        compute_guard.yield_to_timing()
        assert timed and time.perf_counter() - timed[0] >= 0.05
        time.sleep(0.02)
    thread.join()
    assert spent.measure_s >= 0.05  # waiting is not search
    assert 0.07 <= spent.search_s < 0.5


def test_the_gate_is_left_when_computing_fails() -> None:
    shared, spent = rwlock.ReadWriteLock(), pacing.Breakdown()
    compute_guard = pacing.ComputeGuard(shared, spent)
    with pytest.raises(ValueError), compute_guard.computing("train"):
        raise ValueError
    shared.acquire()  # would wait for ever
    shared.release()
    compute_guard.yield_to_timing()  # nothing is held: nothing to do


def test_resumed_seconds_are_added() -> None:
    compute_guard = pacing.ComputeGuard(
        rwlock.ReadWriteLock(), pacing.Breakdown(search_s=1.0, total_s=2.0)
    )
    total = compute_guard.resume(pacing.Breakdown(search_s=10.0, total_s=20.0))
    assert total.search_s == 11.0 and total.total_s == 22.0
    assert total.other_s == 11.0


class Threaded(fakes.Pool):
    """A pool that answers later, from a thread, and times as a real one does."""

    def for_task(self, task: Any) -> Any:
        inner, executor = super().for_task(task), ThreadPoolExecutor(1)
        pool = self

        class Measurer:
            def submit(self, mod: Any, thorough: bool = False) -> Future[protocol.Measurement]:
                return executor.submit(self.measure_one, mod)

            def measure_one(self, mod: Any) -> protocol.Measurement:
                pool.timing_lock.acquire()
                try:
                    (found,) = inner.measure([mod])
                finally:
                    pool.timing_lock.release()
                return dataclasses.replace(found, run_s=pool.seconds)

        return Measurer()


def _overlap(lookahead: float) -> tuple[int, Any]:
    """Most candidates that were in flight when a later round was sent off."""
    most, sent, done = 0, 0, 0

    def count(event: events.Event) -> None:
        nonlocal most, sent, done
        if isinstance(event, events.RoundStarted):
            most = max(most, sent - done)
            sent += event.n_candidates
        done += isinstance(event, events.Trial)

    options = fakes.small(Threaded(seconds=0.02), lookahead=lookahead)
    found = felix.tune(fakes.task(), trials=32, model=fakes.Model(), options=options,
                       on_event=count)  # fmt: skip
    return most, found


def test_search_overlaps_with_measuring() -> None:
    in_flight, found = _overlap(0.5)
    assert in_flight == 4
    assert len(found.records) == 32
    in_flight, _ = _overlap(0.0)
    assert in_flight == 0
    assert found.breakdown.measure_s > 0


def test_one_slow_candidate_holds_up_nobody() -> None:
    class Uneven(fakes.Pool):
        """The first candidate is not done before the third round is under way."""

        def for_task(self, task: Any) -> Any:
            inner, executor, third = super().for_task(task), ThreadPoolExecutor(32), Event()
            pool = self

            class Measurer:
                def submit(self, mod: Any, thorough: bool = False) -> Future[protocol.Measurement]:
                    number = len(pool.measured)
                    if number == 17:
                        third.set()
                    (found,) = inner.measure([mod])
                    is_slow = number == 0 and isinstance(mod, fakes.Program)
                    return executor.submit(self.answer, found, is_slow)

                def answer(self, found: protocol.Measurement, is_slow: bool) -> Any:
                    assert not is_slow or third.wait(60)
                    return found

            return Measurer()

    order: list[int] = []
    found = felix.tune(
        fakes.task(), trials=24, model=fakes.Model(), options=fakes.small(Uneven()),
        on_event=lambda e: order.append(e.round) if isinstance(e, events.Trial) else None,
    )  # fmt: skip
    assert len(found.records) == 24
    assert 0 in order[8:]  # it landed after candidates of later rounds


def test_overlapping_runs_are_deterministic() -> None:
    runs = [_overlap(0.5)[1] for _ in range(2)]
    keys = [[(r.sketch_index, r.decisions) for r in found.records] for found in runs]
    assert keys[0] == keys[1]
