"""The round loop: determinism, budgets, failures, interruption, resuming; no real kernels."""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

import felix
from felix import errors, events, records
from felix.measure import protocol
from felix.tuning import results, session
from tests.support import tuning_fakes as fakes


@pytest.fixture(autouse=True)
def _fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


def _tune(
    task: Any = None, pool: fakes.Pool | None = None, options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:  # fmt: skip
    arguments = {"trials": 32, "model": fakes.Model(), **arguments}
    chosen = fakes.small(pool, **(options or {}))
    return felix.tune(task or fakes.task(), options=chosen, **arguments)


def _keys(found: results.TuneResult) -> list[tuple[int, tuple[int, ...]]]:
    return [(r.sketch_index, r.decisions) for r in found.records]


def test_finds_a_fast_schedule_and_says_what_happened() -> None:
    pool, seen = fakes.Pool(), []
    found = _tune(pool=pool, on_event=seen.append)
    assert found.reason == "trials"
    assert len(found.records) == 32 == len(pool.measured)
    assert len(set(_keys(found))) == 32
    assert found.best.latency_us == min(r.measurement.latency_us for r in found.records)
    assert found.best.latency_us < 12.0
    assert found.speedup == pytest.approx(fakes.UNSCHEDULED_US / found.best.latency_us)
    assert found.best.schedule.mod == fakes.Program(found.best.sketch_index, found.best.decisions)
    assert pool.closed
    latencies = [point[2] for point in found.curve]
    assert latencies == sorted(latencies, reverse=True)
    assert found.curve[-1][0] == 32
    kinds = [type(event).__name__ for event in seen]
    assert kinds[0] == "Started" and kinds[-1] == "Finished"
    assert kinds.count("Trial") == 32 and kinds.count("RoundStarted") == 4
    assert {"Opened", "Baseline", "Trained"} <= set(kinds)
    for event in seen:
        json.dumps(events.to_json(event))


@pytest.mark.parametrize("strategy", ["gradient", "evolutionary", "random"])
def test_same_seed_same_run(strategy: str) -> None:
    options = {} if strategy == "gradient" else {"search": None}
    first, second = (_tune(strategy=strategy, seed=3, options=options) for _ in range(2))
    assert _keys(first) == _keys(second)
    other = _tune(strategy=strategy, seed=4, options=options)
    assert _keys(first) != _keys(other)


def test_seconds_end_a_run_soon() -> None:
    start = time.monotonic()
    found = _tune(pool=fakes.Pool(seconds=0.05), trials=None, seconds=1.5)
    assert found.reason == "seconds"
    assert 1.5 <= time.monotonic() - start < 5.0
    assert found.best.latency_us > 0


def test_time_of_the_parts_adds_up() -> None:
    found = _tune(pool=fakes.Pool(seconds=0.01))
    spent = found.breakdown
    assert spent.search_s > 0 and spent.train_s > 0 and spent.total_s > 0
    assert 0 <= spent.other_s < spent.total_s


def test_converged_run_stops() -> None:
    found = _tune(pool=fakes.Pool(lambda mod: 10.0), trials=500, options={"patience_rounds": 2})
    assert found.reason == "converged"
    assert len(found.records) <= 40


def test_small_space_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = [fakes.Sketch(extents=(2,), parts=2, with_choices=False)]
    fakes.use(monkeypatch, lambda task: tiny)
    found = _tune(trials=100)
    assert found.reason == "exhausted"
    assert len(found.records) == 2


def test_dead_task_ends_and_says_why() -> None:
    found = _tune(pool=fakes.Pool(lambda mod: protocol.ErrorClass.BUILD), trials=1000)
    assert found.reason == "failed"
    assert found.found is None and found.curve == ()
    with pytest.raises(errors.TuningError, match="24 had a build error"):
        _ = found.best
    with pytest.raises(errors.TuningError):
        found.export("/nonexistent")


def test_one_dead_task_does_not_stop_the_others() -> None:
    def latency_of(mod: Any) -> Any:
        bad = isinstance(mod, fakes.Program) and math.prod(mod.decisions[:4]) % 3 == 0
        return protocol.ErrorClass.LAUNCH if bad else fakes.latency_us(mod)

    tasks = [fakes.task(64, weight=2.0), fakes.task(81), fakes.task(128)]
    found = _tune(tasks, pool=fakes.Pool(latency_of), trials=96)
    assert found.reason == "trials"
    alive, dead, other = found.results
    assert len(dead.records) <= 3 * 8 and dead.found is None
    assert found.latency_us is None
    assert len(alive.records) + len(other.records) >= 72


def test_network_latency_and_curve() -> None:
    tasks = [fakes.task(64, weight=3.0), fakes.task(128)]
    found = _tune(tasks, trials=48)
    first, second = found.results
    assert found.latency_us == pytest.approx(3 * first.best.latency_us + second.best.latency_us)
    assert found.curve[-1][2] == pytest.approx(found.latency_us)
    assert {r.task_key for r in first.records} == {tasks[0].key}
    assert len(first.records) + len(second.records) == 48


def test_few_trials_still_warm_up_every_task() -> None:
    found = _tune([fakes.task(m) for m in (32, 64, 96, 128)], trials=8)
    assert [len(r.records) for r in found.results] == [2, 2, 2, 2]


def test_rejected_schedules_are_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    picky = fakes.Sketch(extents=(64, 64))
    picky.reject = lambda decisions: decisions[0] in (4, 8)
    fakes.use(monkeypatch, lambda task: [picky])
    seen: list[Any] = []
    found = _tune(on_event=seen.append)
    assert all(r.decisions[0] not in (4, 8) for r in found.records)
    assert sum(e.n_invalid for e in seen if isinstance(e, events.RoundStarted)) > 0


def test_a_sketch_without_legal_schedules_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hopeless(fakes.Sketch):
        def sample(self, n: int, seed: int, max_structures: int = 6) -> Any:
            raise errors.InvalidSchedule("nothing is legal")

    good = fakes.Sketch(extents=(1024, 1024), index=1)
    fakes.use(monkeypatch, lambda task: [Hopeless(index=0), good])
    seen: list[Any] = []
    found = _tune(on_event=seen.append)
    assert {r.sketch_index for r in found.records} == {1}
    assert found.best.sketch_index == 1 and found.best.schedule.mod.sketch == 1
    (warning,) = [e for e in seen if isinstance(e, events.Warned)]
    assert "nothing is legal" in warning.message
    fakes.use(monkeypatch, lambda task: [Hopeless(index=0)])
    with pytest.raises(errors.TuningError, match="nothing is legal"):
        _tune()


def test_all_rejected_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    picky = fakes.Sketch(extents=(64, 64))
    picky.reject = lambda decisions: True
    fakes.use(monkeypatch, lambda task: [picky])
    found = _tune()
    assert found.reason == "failed" and not found.records


def test_infrastructure_errors_do_not_count_against_a_candidate() -> None:
    lost: set[fakes.Program] = set()

    def latency_of(mod: Any) -> Any:
        if isinstance(mod, fakes.Program) and mod not in lost and len(lost) < 4:
            lost.add(mod)
            return protocol.ErrorClass.INFRASTRUCTURE
        return fakes.latency_us(mod)

    tiny = fakes.Pool(latency_of)
    found = _tune(pool=tiny)
    assert found.best.latency_us < 12.0
    failed = [r for r in found.records if not r.measurement.ok]
    assert len(failed) == 4


def test_unchecked_results_are_never_best() -> None:
    class Unchecked(fakes.Pool):
        def for_task(self, task: Any) -> Any:
            measurer = super().for_task(task)
            submit = measurer.submit

            def unchecked(mod: Any) -> Any:
                future = submit(mod)
                future._result = protocol.Measurement.timed([1.0], checked=False)
                return future

            measurer.submit = unchecked  # type: ignore[method-assign]
            return measurer

    found = _tune(pool=Unchecked(), trials=16)
    assert found.found is None


def test_interrupt_keeps_what_was_measured(tmp_path: pathlib.Path) -> None:
    class Impatient(fakes.Pool):
        def for_task(self, task: Any) -> Any:
            measurer = super().for_task(task)
            submit = measurer.submit

            def interrupting(mod: Any) -> Any:
                if len(self.measured) == 20:
                    raise KeyboardInterrupt
                return submit(mod)

            measurer.submit = interrupting  # type: ignore[method-assign]
            return measurer

    pool = Impatient()
    found = _tune(pool=pool, out=tmp_path, trials=64)
    assert found.reason == "interrupted"
    assert len(found.records) == 20
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 20
    assert pool.closed
    resumed = _tune(out=tmp_path, trials=40, resume=True)
    assert len(resumed.records) == 40 == len(set(_keys(resumed)))
    assert _keys(resumed)[:20] == _keys(found)


_VICTIM = """
import pathlib, sys
import felix
from felix.tuning import task_run
from tests.support import tuning_fakes as fakes
task_run.sketches_of = fakes.sketches
options = fakes.small(fakes.Pool(seconds=0.03))
felix.tune(fakes.task(), trials=400, model=fakes.Model(), options=options, out=sys.argv[1])
"""


def test_resumes_after_kill_nine(tmp_path: pathlib.Path) -> None:
    root = pathlib.Path(__file__).parents[3]
    victim = subprocess.Popen(
        [sys.executable, "-c", _VICTIM, str(tmp_path)], cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    log = tmp_path / "tuning" / "records.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and victim.poll() is None:
        if log.exists() and log.read_bytes().count(b"\n") >= 21:
            break
        time.sleep(0.02)
    assert victim.poll() is None, "the victim ended by itself"
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    before = records.read(log)
    assert len(before) >= 20
    assert (tmp_path / "tuning" / "state.json").exists()
    pool = fakes.Pool()
    trials = len(before) + 24
    found = _tune(pool=pool, out=tmp_path, trials=trials, resume=True)
    assert list(found.records[: len(before)]) == before
    assert len(found.records) == trials == len(set(_keys(found)))
    assert len(pool.measured) == 24
    assert records.read(log) == list(found.records)
    assert found.records[-1].round > before[-1].round
    assert found.records[len(before)].elapsed_s >= before[-1].elapsed_s
    again = _tune(out=tmp_path, trials=trials, resume=True)
    assert again.records == found.records and again.best.decisions == found.best.decisions


def test_resumes_without_a_checkpoint(tmp_path: pathlib.Path) -> None:
    first = _tune(out=tmp_path, trials=16)
    (tmp_path / "tuning" / "state.json").unlink()
    found = _tune(out=tmp_path, trials=32, resume=True)
    assert found.records[:16] == first.records
    assert len(set(_keys(found))) == 32


def test_resume_of_several_tasks(tmp_path: pathlib.Path) -> None:
    tasks = [fakes.task(64), fakes.task(128)]
    first = _tune(tasks, out=tmp_path, trials=24)
    found = _tune(tasks, out=tmp_path, trials=48, resume=True)
    for before, after in zip(first.results, found.results, strict=True):
        assert after.records[: len(before.records)] == before.records
        assert after.unscheduled_us == fakes.UNSCHEDULED_US
    assert sum(len(r.records) for r in found.results) == 48


def test_a_new_run_keeps_the_old_session(tmp_path: pathlib.Path) -> None:
    first = _tune(out=tmp_path, trials=8)
    _tune(out=tmp_path, trials=8, seed=1)
    assert records.read(tmp_path / "tuning-1" / "records.jsonl") == list(first.records)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": fakes.task(128)}, "another workload or target"),
        ({"seed": 5}, "another seed"),
        ({"strategy": "random"}, "another strategy"),
    ],
)
def test_resume_refuses_another_run(
    tmp_path: pathlib.Path, change: dict[str, Any], said: str
) -> None:
    _tune(out=tmp_path, trials=8)
    with pytest.raises(errors.RecordError, match=said):
        _tune(out=tmp_path, resume=True, **change)
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 8


def test_resume_refuses_another_feature_version(tmp_path: pathlib.Path) -> None:
    _tune(out=tmp_path, trials=8)
    path = tmp_path / "tuning" / "session.json"
    path.write_text(path.read_text().replace('"features_version": ', '"features_version": 9'))
    with pytest.raises(errors.RecordError, match="another feature version"):
        _tune(out=tmp_path, resume=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "n_records": 8, "jobs": 3}'])
def test_resume_refuses_a_damaged_state(tmp_path: pathlib.Path, text: str) -> None:
    _tune(out=tmp_path, trials=8)
    (tmp_path / "tuning" / "state.json").write_text(text)
    with pytest.raises(errors.RecordError):
        _tune(out=tmp_path, resume=True, trials=16)
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 8


def test_two_runs_do_not_share_a_folder(tmp_path: pathlib.Path) -> None:
    identity = session.Identity(
        task_keys=("a",), strategy="random", seed=0, features_version=1, versions={}
    )
    first = session.Session(tmp_path / "tuning", [], identity, resume=False)
    with pytest.raises(errors.OutputError, match="another run"):
        session.Session(tmp_path / "tuning", [], identity, resume=True)
    first.close()
    session.Session(tmp_path / "tuning", [], identity, resume=True).close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"trials": 0}, {"trials": 2.5}, {"trials": None}, {"seconds": -1.0}, {"seed": -1},
        {"strategy": "magic"}, {"resume": True}, {"task": []}, {"task": [1]},
    ],
)  # fmt: skip
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    task = arguments.pop("task", None)
    with pytest.raises(errors.TuningError):
        felix.tune(fakes.task() if task is None else task, options=fakes.small(), **arguments)


def test_twice_the_same_task_is_refused() -> None:
    with pytest.raises(errors.TuningError, match="twice"):
        _tune([fakes.task(), fakes.task()])


def test_unwritable_output_is_told_before_tuning(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    pool = fakes.Pool()
    with pytest.raises(errors.OutputError, match="cannot write"):
        _tune(pool=pool, out=tmp_path / "file" / "out")
    assert not pool.measured


def test_module_and_function_are_both_callable() -> None:
    import importlib

    module = importlib.import_module("felix.tuning.tune")
    found = module(fakes.task(), trials=8, model=fakes.Model(), options=fakes.small())
    assert isinstance(found, results.TuneResult)
