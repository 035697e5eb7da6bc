"""The round loop: determinism, budgets, failures, interruption, resuming; no real kernels."""

from __future__ import annotations

import importlib
import inspect
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
from felix import errors, events, records, workloads
from felix.cli import report
from felix.measure import protocol
from felix.metaschedule import tvm_search
from felix.search.strategies import evolutionary, gradient, local
from felix.tuning import results, session, strategies
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


def _keys(result: results.TuneResult) -> list[tuple[int, tuple[int, ...]]]:
    return [(r.sketch_index, r.decisions) for r in result.records]


def test_finds_a_fast_schedule_and_says_what_happened() -> None:
    pool, emitted = fakes.Pool(), []
    result = _tune(pool=pool, on_event=emitted.append)
    assert result.reason == "trials"
    assert len(result.records) == 32 == len(pool.measured)
    assert len(set(_keys(result))) == 32
    assert result.best.latency_us == min(r.measurement.latency_us for r in result.records)
    assert result.best.latency_us < 12.0
    assert result.speedup == pytest.approx(fakes.UNSCHEDULED_US / result.best.latency_us)
    assert result.best.schedule.mod == fakes.Program(
        result.best.sketch_index, result.best.decisions
    )
    assert pool.closed
    latencies = [point[2] for point in result.curve]
    assert latencies == sorted(latencies, reverse=True)
    assert result.curve[-1][0] == 32
    kinds = [type(event).__name__ for event in emitted]
    assert kinds[0] == "Started" and kinds[-1] == "Finished"
    assert kinds.count("Trial") == 32 and kinds.count("RoundStarted") == 4
    assert {"Opening", "Opened", "Baseline", "Trained", "Remeasuring"} <= set(kinds)
    for event in emitted:
        json.dumps(events.to_json(event))


@pytest.mark.parametrize("strategy", ["local", "gradient", "evolutionary", "random"])
def test_same_seed_same_run(strategy: str) -> None:
    options = {} if strategy == "local" else {"search": None}
    first, second = (_tune(strategy=strategy, seed=3, options=options) for _ in range(2))
    assert _keys(first) == _keys(second)
    other = _tune(strategy=strategy, seed=4, options=options)
    assert _keys(first) != _keys(other)


def test_seconds_end_a_run_soon() -> None:
    start = time.monotonic()
    result = _tune(pool=fakes.Pool(seconds=0.05), trials=None, seconds=1.5)
    assert result.reason == "seconds"
    assert 1.5 <= time.monotonic() - start < 5.0
    assert result.best.latency_us > 0


def test_time_of_the_parts_adds_up() -> None:
    result = _tune(pool=fakes.Pool(seconds=0.01))
    spent = result.breakdown
    assert spent.search_s > 0 and spent.train_s > 0 and spent.total_s > 0
    assert 0 <= spent.other_s < spent.total_s


def test_a_slow_disk_is_in_the_total(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    save = session.Session.save

    def slow_save(*arguments: Any) -> None:
        time.sleep(0.1)
        save(*arguments)

    monkeypatch.setattr(session.Session, "save", slow_save)
    spent = _tune(trials=8, out=tmp_path / "out").breakdown
    named = [getattr(spent, f"{part}_s") for part in report.PARTS]
    assert spent.save_s >= 0.1 and sum(named) <= spent.total_s + 0.02


def test_converged_run_stops() -> None:
    result = _tune(pool=fakes.Pool(lambda mod: 10.0), trials=500, options={"patience_rounds": 2})
    assert result.reason == "converged"
    assert len(result.records) <= 40


def test_small_space_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = [fakes.Sketch(extents=(2,), parts=2, with_choices=False)]
    fakes.use(monkeypatch, lambda task: tiny)
    result = _tune(trials=100)
    assert result.reason == "exhausted"
    assert len(result.records) == 2


def test_dead_task_ends_and_says_why() -> None:
    result = _tune(pool=fakes.Pool(lambda mod: protocol.ErrorClass.BUILD), trials=1000)
    assert result.reason == "failed"
    assert result.best_or_none is None and result.curve == ()
    with pytest.raises(errors.TuningError, match="24 had a build error"):
        _ = result.best
    with pytest.raises(errors.TuningError):
        result.export("/nonexistent")


def test_one_dead_task_does_not_stop_the_others() -> None:
    def latency_of(mod: Any) -> Any:
        bad = isinstance(mod, fakes.Program) and math.prod(mod.decisions[:4]) % 3 == 0
        return protocol.ErrorClass.LAUNCH if bad else fakes.latency_us(mod)

    tasks = [fakes.task(64, weight=2.0), fakes.task(81), fakes.task(128)]
    result = _tune(tasks, pool=fakes.Pool(latency_of), trials=96)
    assert result.reason == "trials"
    alive, dead, other = result.results
    assert len(dead.records) <= 3 * 8 and dead.tuned_or_none is None
    assert dead.ships_unscheduled and result.latency_us > dead.best.latency_us
    assert len(alive.records) + len(other.records) >= 72


def test_network_latency_and_curve() -> None:
    tasks = [fakes.task(64, weight=3.0), fakes.task(128)]
    result = _tune(tasks, trials=48)
    first, second = result.results
    assert result.latency_us == pytest.approx(3 * first.best.latency_us + second.best.latency_us)
    assert result.curve[-1][2] == pytest.approx(result.latency_us)
    assert {r.task_key for r in first.records} == {tasks[0].key}
    assert len(first.records) + len(second.records) == 48


def test_few_trials_still_warm_up_every_task() -> None:
    result = _tune([fakes.task(m) for m in (32, 64, 96, 128)], trials=8)
    assert [len(r.records) for r in result.results] == [2, 2, 2, 2]


def test_rejected_schedules_are_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    picky = fakes.Sketch(extents=(64, 64))
    picky.reject = lambda decisions: decisions[0] in (4, 8)
    fakes.use(monkeypatch, lambda task: [picky])
    emitted: list[Any] = []
    result = _tune(on_event=emitted.append)
    assert all(r.decisions[0] not in (4, 8) for r in result.records)
    assert sum(e.n_invalid for e in emitted if isinstance(e, events.RoundStarted)) > 0


def test_a_sketch_without_legal_schedules_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Illegal(fakes.Sketch):
        def sample(self, n: int, seed: int, max_structures: int = 6) -> Any:
            raise errors.InvalidSchedule("nothing is legal")

    good = fakes.Sketch(extents=(1024, 1024), index=1)
    fakes.use(monkeypatch, lambda task: [Illegal(index=0), good])
    emitted: list[Any] = []
    result = _tune(on_event=emitted.append)
    assert {r.sketch_index for r in result.records} == {1}
    assert result.best.sketch_index == 1 and result.best.schedule.mod.sketch == 1
    (warning,) = [e for e in emitted if isinstance(e, events.Warned)]
    assert "nothing is legal" in warning.message
    fakes.use(monkeypatch, lambda task: [Illegal(index=0)])
    with pytest.raises(errors.TuningError, match="nothing is legal"):
        _tune()


def test_all_rejected_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    picky = fakes.Sketch(extents=(64, 64))
    picky.reject = lambda decisions: True
    fakes.use(monkeypatch, lambda task: [picky])
    result = _tune()
    assert result.reason == "failed" and not result.records


def test_infrastructure_errors_do_not_count_against_a_candidate() -> None:
    lost: set[fakes.Program] = set()

    def latency_of(mod: Any) -> Any:
        if isinstance(mod, fakes.Program) and mod not in lost and len(lost) < 4:
            lost.add(mod)
            return protocol.ErrorClass.INFRASTRUCTURE
        return fakes.latency_us(mod)

    tiny = fakes.Pool(latency_of)
    result = _tune(pool=tiny, seed=1)
    assert result.best.latency_us < 12.0
    failed = [r for r in result.records if not r.measurement.ok]
    assert len(failed) == 4
    keys = _keys(result)
    again = [r for r in failed if keys.count((r.sketch_index, r.decisions)) == 2]
    assert again, "what was lost is measured later"


def test_what_breaks_the_infrastructure_twice_is_not_measured_again() -> None:
    broken: set[fakes.Program] = set()

    def latency_of(mod: Any) -> Any:
        if isinstance(mod, fakes.Program) and (mod in broken or len(broken) < 2):
            broken.add(mod)
            return protocol.ErrorClass.INFRASTRUCTURE
        return fakes.latency_us(mod)

    keys = _keys(_tune(pool=fakes.Pool(latency_of), trials=80))
    assert max(map(keys.count, keys)) == 2


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

    result = _tune(pool=Unchecked(), trials=16)
    assert result.best_or_none is None


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
    result = _tune(pool=pool, out=tmp_path, trials=64)
    assert result.reason == "interrupted"
    assert len(result.records) == 20
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 20
    assert pool.closed
    resumed = _tune(out=tmp_path, trials=40, resume=True)
    assert len(resumed.records) == 40 == len(set(_keys(resumed)))
    assert _keys(resumed)[:20] == _keys(result)


_VICTIM = """
import pathlib, sys
import felix
from felix.tuning.opening import task_search
from tests.support import tuning_fakes as fakes
task_search.sketches_of = fakes.sketches
options = fakes.small(fakes.Pool(seconds=0.03))
felix.tune(fakes.task(), trials=400, model=fakes.Model(), options=options, out=sys.argv[1])
"""


@pytest.mark.slow
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
    result = _tune(pool=pool, out=tmp_path, trials=trials, resume=True)
    assert list(result.records[: len(before)]) == before
    assert len(result.records) == trials == len(set(_keys(result)))
    assert len(pool.measured) == 24
    assert records.read(log) == list(result.records)
    assert result.records[-1].round > before[-1].round
    assert result.records[len(before)].elapsed_s >= before[-1].elapsed_s
    again = _tune(out=tmp_path, trials=trials, resume=True)
    assert again.records == result.records and again.best.decisions == result.best.decisions


def test_resumes_without_a_checkpoint(tmp_path: pathlib.Path) -> None:
    first = _tune(out=tmp_path, trials=16)
    (tmp_path / "tuning" / "state.json").unlink()
    result = _tune(out=tmp_path, trials=32, resume=True)
    assert result.records[:16] == first.records
    assert len(set(_keys(result))) == 32


def test_resume_of_several_tasks(tmp_path: pathlib.Path) -> None:
    tasks = [fakes.task(64), fakes.task(128)]
    first = _tune(tasks, out=tmp_path, trials=24)
    result = _tune(tasks, out=tmp_path, trials=48, resume=True)
    for before, after in zip(first.results, result.results, strict=True):
        assert after.records[: len(before.records)] == before.records
        assert after.unscheduled_us == fakes.UNSCHEDULED_US
    assert sum(len(r.records) for r in result.results) == 48


def test_a_new_run_keeps_the_old_session(tmp_path: pathlib.Path) -> None:
    first = _tune(out=tmp_path, trials=8)
    _tune(out=tmp_path, trials=8, seed=1)
    assert records.read(tmp_path / "tuning-1" / "records.jsonl") == list(first.records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": fakes.task(128)}, "another workload or target"),
        ({"seed": 5}, "another seed"),
        ({"strategy": "random"}, "another strategy"),
    ],
)
def test_resume_refuses_another_run(
    tmp_path: pathlib.Path, change: dict[str, Any], message: str
) -> None:
    _tune(out=tmp_path, trials=8)
    with pytest.raises(errors.RecordError, match=message):
        _tune(out=tmp_path, resume=True, **change)
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 8


def test_another_feature_version_goes_on_from_the_records_alone(tmp_path: pathlib.Path) -> None:
    _tune(out=tmp_path, trials=8)
    path = tmp_path / "tuning" / "session.json"
    written = path.read_text()
    path.write_text(written.replace('"features_version": ', '"features_version": 9'))
    (tmp_path / "tuning" / "state.json").write_text("of other features")
    result = _tune(out=tmp_path, resume=True, trials=16)
    assert len(result.records) == 16
    assert path.read_text() == written


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "n_records": 8, "jobs": 3}'])
def test_resume_refuses_a_damaged_state(tmp_path: pathlib.Path, text: str) -> None:
    _tune(out=tmp_path, trials=8)
    (tmp_path / "tuning" / "state.json").write_text(text)
    with pytest.raises(errors.RecordError):
        _tune(out=tmp_path, resume=True, trials=16)
    assert len(records.read(tmp_path / "tuning" / "records.jsonl")) == 8


def test_two_runs_do_not_share_a_folder(tmp_path: pathlib.Path) -> None:
    identity = session.Identity(
        task_keys=("a",),
        strategy="random",
        seed=0,
        features_version=1,
        template_features_version=1,
        versions={},
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


def test_unwritable_output_is_an_error_before_tuning(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    pool = fakes.Pool()
    with pytest.raises(errors.OutputError, match="cannot write"):
        _tune(pool=pool, out=tmp_path / "file" / "out")
    assert not pool.measured


def test_felix_tune_is_the_function_whatever_is_imported() -> None:
    module = importlib.import_module("felix.tuning.tune")
    assert felix.tune is module.tune
    assert list(inspect.signature(felix.tune).parameters) == [
        "task_or_tasks", "trials", "seconds", "seed", "strategy", "model", "options", "out",
        "resume", "on_event",
    ]  # fmt: skip
    assert isinstance(_tune(trials=8), felix.TuneResult)
    assert isinstance(_tune([fakes.task()], trials=8), felix.NetworkResult)


def test_a_resumed_session_keeps_its_strategy(tmp_path: pathlib.Path) -> None:
    arguments: dict[str, Any] = {"out": tmp_path, "options": {"search": None}}
    _tune(trials=8, strategy="local", **arguments)
    emitted: list[events.Event] = []
    resumed = _tune(trials=16, resume=True, on_event=emitted.append, **arguments)
    started = [event for event in emitted if isinstance(event, events.Started)]
    assert len(resumed.records) == 16 and started[0].strategy == "local"
    assert session.strategy_of(tmp_path) == "local"
    assert session.strategy_of(tmp_path / "elsewhere") is None
    silent = tmp_path / "silent" / "tuning"
    silent.mkdir(parents=True)
    (silent / "session.json").write_text("{}")
    assert session.strategy_of(silent.parent) is None
    _tune(trials=8, **arguments)  # another session: the default again
    assert session.strategy_of(tmp_path) == "gradient"


def test_a_strategy_refuses_the_options_of_another() -> None:
    with pytest.raises(errors.TuningError, match="evolutionary takes EvolutionOptions, not Local"):
        _tune(strategy="evolutionary")
    with pytest.raises(errors.TuningError, match="local takes LocalOptions, not GradientOptions"):
        _tune(strategy="local", options={"search": gradient.GradientOptions()})


def test_the_default_strategy_is_that_of_the_sizes_or_of_the_target() -> None:
    on_cpu = fakes.task()
    on_gpu = workloads.gemm(64, 64, 64, target="cuda")
    assert strategies.default(on_cpu, None) == "gradient"
    assert strategies.default(on_gpu, None) == "local"
    assert strategies.default(on_cpu, local.LocalOptions()) == "local"
    assert strategies.default(on_gpu, gradient.GradientOptions()) == "gradient"
    assert strategies.default(on_gpu, evolutionary.EvolutionOptions()) == "evolutionary"
    assert strategies.default(on_cpu, tvm_search.TVMEvolutionOptions()) == "tvm-evolutionary"
