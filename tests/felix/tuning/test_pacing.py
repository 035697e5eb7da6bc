"""The tuner's side of the timing lock, and that search and measuring overlap."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from felix import events
from felix.measure import locks
from felix.runner import protocol
from felix.tuning import pacing
from tests.support import tuning_fakes as fakes


@pytest.fixture(autouse=True)
def _fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


def _timer(shared: locks.ReadWriteLock, timed: list[float]) -> threading.Thread:
    def work() -> None:
        shared.acquire()
        timed.append(time.perf_counter())
        time.sleep(0.05)
        shared.release()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_waiting_kernel_is_timed_when_the_tuner_yields() -> None:
    shared, spent, timed = locks.ReadWriteLock(), pacing.Breakdown(), []
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


def test_the_lock_is_released_when_computing_fails() -> None:
    shared, spent = locks.ReadWriteLock(), pacing.Breakdown()
    compute_guard = pacing.ComputeGuard(shared, spent)
    with pytest.raises(ValueError), compute_guard.computing("train"):
        raise ValueError
    shared.acquire()  # would wait for ever
    shared.release()
    compute_guard.yield_to_timing()  # nothing is held: nothing to do


def test_resumed_seconds_are_added() -> None:
    breakdown = pacing.Breakdown(search_s=1.0, total_s=2.0)
    breakdown.resume(pacing.Breakdown(search_s=10.0, total_s=20.0))
    assert breakdown.search_s == 11.0 and breakdown.total_s == 22.0
    assert breakdown.other_s == 11.0


def test_the_clock_of_a_resumed_run_goes_on() -> None:
    clock = pacing.Clock()
    clock.resume(100.0)
    assert 100.0 <= clock.elapsed_s < 110.0


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
                    (measurement,) = inner.measure([mod])
                finally:
                    pool.timing_lock.release()
                return dataclasses.replace(measurement, run_s=pool.seconds)

        return Measurer()


def _overlap(
    lookahead: float,
    tasks: Any = None,
    seconds: float = 0.02,
    trials: int = 32,
    listening_s: float = 0.0,
) -> tuple[list[tuple[int, int]], Any]:
    """The task of each round, and how many candidates were pending when it began."""
    submitted, done, pending = 0, 0, []

    def count(event: events.Event) -> None:
        nonlocal submitted, done
        if isinstance(event, events.RoundStarted):
            pending.append((event.task_index, submitted - done))
            submitted += event.n_candidates
        done += isinstance(event, events.Trial)
        time.sleep(listening_s)

    pool, options = Threaded(seconds=seconds), {"lookahead": lookahead}
    result = fakes.tune(tasks, pool=pool, trials=trials, options=options, on_event=count)
    return pending, result


def test_search_overlaps_with_measuring() -> None:
    pending, result = _overlap(0.5)
    assert max(n for _, n in pending) == 4
    assert len(result.records) == 32
    assert all(n == 0 for _, n in _overlap(0.0)[0])
    assert result.breakdown.measure_s > 0


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
                    (measurement,) = inner.measure([mod])
                    is_slow = number == 0 and isinstance(mod, fakes.Program)
                    return executor.submit(self.answer, measurement, is_slow)

                def answer(self, measurement: protocol.Measurement, is_slow: bool) -> Any:
                    assert not is_slow or third.wait(60)
                    return measurement

            return Measurer()

    order: list[int] = []
    result = fakes.tune(
        pool=Uneven(),
        trials=24,
        on_event=lambda e: order.append(e.round) if isinstance(e, events.Trial) else None,
    )
    assert len(result.records) == 24
    assert 0 in order[8:]  # it completed after candidates of later rounds


@pytest.mark.slow("tunes twice")
def test_overlapping_runs_are_deterministic() -> None:
    """Also when results come while the caller is busy, more of them than a round waits for."""
    runs = [_overlap(0.5, listening_s=listening_s)[1] for listening_s in (0.0, 0.05)]
    keys = [[(r.sketch_index, r.decisions) for r in result.records] for result in runs]
    assert keys[0] == keys[1]


@pytest.mark.slow("runs with several tasks and processes")
def test_first_rounds_of_several_tasks_overlap() -> None:
    tasks = [fakes.task(m) for m in (32, 64, 96, 128)]
    pending, network = _overlap(0.5, tasks, seconds=0.05, trials=64)
    assert all(each.best_or_none is not None for each in network.results)
    assert sum(len(each.records) for each in network.results) == 64
    assert [task for task, _ in pending[:4]] == [3, 2, 1, 0]  # the largest first
    first, later = [n for _, n in pending[:4]], [n for _, n in pending[4:]]
    assert max(first) > max(later) > 0
    assert all(n == 0 for _, n in _overlap(0.0, tasks, seconds=0.05, trials=64)[0])
