"""Measuring the fastest again, and equal programs, in the round loop; no real kernels."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

from felix import events
from felix.builder import payload
from felix.database import records
from felix.measure import locks
from felix.runner import protocol
from felix.search import interface
from felix.tuning import options, pacing, remeasure, task_run
from tests.support import tuning_fakes as fakes
from tests.support.function_measurer import FunctionMeasurer


@pytest.fixture(autouse=True)
def _fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


class _Noisy(fakes.Pool):
    """Every candidate seems up to 30 % faster than it is, until it is timed thoroughly."""

    thorough: list[fakes.Program]
    #: keys of their tasks
    thorough_tasks: list[str]

    def for_task(self, task: Any) -> Any:
        pool = self
        pool.thorough, pool.thorough_tasks = [], []

        class Measurer(FunctionMeasurer):
            def submit(self, mod: Any, thorough: bool = False) -> Any:
                luck = 1.0
                if thorough:
                    pool.thorough.append(mod)
                    pool.thorough_tasks.append(task.key)
                elif isinstance(mod, fakes.Program):
                    luck = 0.7 + 0.3 * (hash(mod.decisions) % 97) / 97
                self._latency_of = lambda mod: fakes.latency_us(mod) * luck
                return super().submit(mod)

        return Measurer(fakes.latency_us)


def test_the_best_is_the_fastest_of_those_measured_again() -> None:
    pool = _Noisy()
    result = fakes.tune(trials=24, pool=pool, options={"n_remeasured": 3})
    truth = {
        r.key: fakes.latency_us(fakes.Program(r.sketch_index, r.decisions)) for r in result.repeats
    }
    assert len(result.records) == 24
    assert 3 <= len(truth) <= 9
    assert len(pool.thorough) == options.TuneOptions().remeasure_turns * len(truth)
    assert result.best.latency_us == min(truth.values())
    assert result.curve[-1][2] == result.best.latency_us
    lucky = min(r.latency_us or 0.0 for r in result.records)
    assert result.best.latency_us > lucky


def test_long_calls_get_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough is here a little more than what a burst of the slowest candidate takes."""
    pool = _Noisy()
    result = fakes.tune(trials=24, pool=pool, options={"n_remeasured": 3})
    slowest_us = max(repeat.latency_us or 0.0 for repeat in result.repeats)
    fastest_us = min(repeat.latency_us or 0.0 for repeat in result.repeats)
    enough_us = 1.01 * slowest_us
    assert enough_us < 2 * fastest_us
    monkeypatch.setattr(remeasure, "ENOUGH_S", enough_us * 1e-6)
    again = fakes.tune(trials=24, pool=pool, options={"n_remeasured": 3})
    assert len(pool.thorough) == 2 * len(again.repeats)
    assert again.best.decisions == result.best.decisions
    monkeypatch.setattr(remeasure, "ENOUGH_S", fastest_us * 1e-6)
    once = fakes.tune(trials=24, pool=pool, options={"n_remeasured": 3})
    assert len(pool.thorough) == len(once.repeats)


def test_without_measuring_again_luck_wins() -> None:
    pool = _Noisy()
    result = fakes.tune(trials=24, pool=pool, options={"n_remeasured": 0})
    assert result.repeats == () and pool.thorough == []
    assert result.best.latency_us == min(r.latency_us or 0.0 for r in result.records)


def test_repeats_are_stored_and_are_no_trials(tmp_path: pathlib.Path) -> None:
    options = {"n_remeasured": 3}
    result = fakes.tune(trials=16, pool=_Noisy(), options=options, out=tmp_path)
    stored = records.read(tmp_path / "tuning" / "records.jsonl")
    assert [r.repeat for r in stored] == [False] * 16 + [True] * len(result.repeats)
    again = fakes.tune(trials=16, pool=_Noisy(), options=options, out=tmp_path, resume=True)
    assert len(again.records) == 16
    assert again.best.decisions == result.best.decisions
    longer = fakes.tune(trials=24, pool=_Noisy(), options=options, out=tmp_path, resume=True)
    assert len(longer.records) == 24
    assert longer.best.latency_us <= result.best.latency_us


def test_equal_programs_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "fingerprint", lambda mod: str(mod.decisions[4:]))
    pool = fakes.Pool()
    result = fakes.tune(trials=32, pool=pool)
    programs = [p.decisions[4:] for p in pool.measured]
    assert len(programs) == len(set(programs)) == len(result.records)


def test_equal_programs_do_not_empty_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates of a winner, all predicted to be as fast, do not end a run early.

    Widths 1 and 2 stand for one program and have equal features, and so do 3 and 4.
    """
    monkeypatch.setattr(
        payload, "fingerprint", lambda m: str((m.sketch, m.decisions[:-1], m.decisions[-1] < 3))
    )
    emitted: list[Any] = []
    result = fakes.tune(trials=96, on_event=emitted.append)
    rounds = [event.n_candidates for event in emitted if isinstance(event, events.RoundStarted)]
    assert rounds == [8] * 12
    assert result.reason == "trials" and len(result.records) == 96


def test_a_duplicate_learns_the_measurement_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "fingerprint", lambda mod: str(mod.decisions[4:]))
    told: list[tuple[Any, Any]] = []

    class Search:
        history = SimpleNamespace(measured={})

        def tell(self, results: Any) -> None:
            told.extend(results)

    run = task_run.TaskRun(0, fakes.task(), FunctionMeasurer(fakes.latency_us))
    run.open(lambda *_: Search(), None, 0)  # type: ignore[arg-type,return-value]
    first, duplicate = (interface.Candidate(0, (a, 64 // a, 1, 1, 4, 4, 4, 16)) for a in (2, 4))
    compute_guard = pacing.ComputeGuard(locks.ReadWriteLock(), pacing.Breakdown())
    scheduled = run.programs([first, duplicate], compute_guard, {})
    assert [s for s, _ in scheduled] == [first]
    run.add(fakes.record(first.decisions, _burst(7.0), task_key=run.task.key))
    assert told == [(first, 7.0), (duplicate, 7.0)]


def test_a_repeat_counts_for_its_candidate_and_a_failed_one_removes_it() -> None:
    def record(key: int, latency_us: float | None, repeat: bool = False) -> records.Trial:
        failed = _failed(protocol.ErrorClass.WRONG_RESULT)
        measured = _burst(latency_us) if latency_us else failed
        return fakes.record((key,), measured, repeat=repeat)

    every = [
        record(1, 5.0),
        record(2, 6.0),
        record(3, 7.0),
        record(4, None),
        record(1, 4.0),
        record(2, 9.0, True),
        record(3, None, True),
    ]
    effective = records.effective_measurements(every)
    assert {k[1][0]: r.latency_us for k, r in effective.items()} == {1: 4.0, 2: 9.0}


def test_finalists_of_all_tasks_are_timed_in_the_same_turns() -> None:
    """So that every device has those of its own tasks to time."""
    pool = _Noisy()
    tasks = [fakes.task(), fakes.task(m=128)]
    fakes.tune(tasks, pool=pool, options={"n_remeasured": 1, "remeasure_turns": 4})
    one, other = (task.key for task in tasks)
    assert pool.thorough_tasks[:8] == 4 * [one, other]


def _burst(*latencies_us: float) -> protocol.Measurement:
    return protocol.Measurement.timed(latencies_us, build_s=0.5, run_s=1.0, checked=True)


def _failed(kind: protocol.ErrorClass) -> protocol.Measurement:
    return protocol.Measurement(error=kind)


def test_bursts_are_pooled() -> None:
    pooled = remeasure._pooled([_burst(10.0, 11.0), _burst(20.0, 22.0), _burst(10.5, 11.5)])
    assert pooled is not None and pooled.checked
    assert pooled.latencies_us == (10.0, 11.0, 20.0, 22.0, 10.5, 11.5)
    assert (pooled.latency_us, pooled.build_s, pooled.run_s) == (11.25, 1.5, 3.0)


def test_a_burst_that_fails_by_its_own_fault_fails_the_finalist() -> None:
    wrong = _failed(protocol.ErrorClass.WRONG_RESULT)
    killed = _failed(protocol.ErrorClass.INFRASTRUCTURE)
    assert remeasure._pooled([_burst(1.0), wrong, killed]) is wrong
    assert remeasure._pooled([killed, killed]) is None
    alive = remeasure._pooled([killed, _burst(1.0)])
    assert alive is not None and alive.latency_us == 1.0
