"""The round loop: determinism, budgets, failures, interruption, resuming; no real kernels."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import pathlib
import time
from typing import Any
from unittest import mock

import pytest

import felix
from benchmarks.support.searches import baselines
from felix import errors, events, workloads
from felix.cli import report
from felix.database import session
from felix.runner import protocol
from felix.search import gradient, strategies
from felix.tuning import loop, pacing
from felix.tuning import options as options_module
from tests.support import tuning_fakes as fakes


@pytest.fixture(autouse=True)
def _fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


def test_finds_a_fast_schedule_and_says_what_happened() -> None:
    pool, emitted = fakes.Pool(), []
    result = fakes.tune(pool=pool, on_event=emitted.append)
    assert result.reason == "trials"
    assert len(result.records) == 32 == len(pool.measured)
    assert len(set(fakes.keys(result))) == 32
    assert result.best.latency_us == min(r.latency_us for r in result.records)
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


@pytest.mark.parametrize("strategy", strategies.NAMES)
def test_same_seed_same_run(strategy: str) -> None:
    options = {"search": fakes.SIZES if strategy == "local" else fakes.DESCENDING}
    first, second = (fakes.tune(strategy=strategy, seed=3, options=options) for _ in range(2))
    assert fakes.keys(first) == fakes.keys(second)
    other = fakes.tune(strategy=strategy, seed=4, options=options)
    assert fakes.keys(first) != fakes.keys(other)


def test_seconds_end_a_run_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = fakes.Clock()
    monkeypatch.setattr(pacing, "Clock", lambda: clock)
    pool = fakes.Pool(seconds=0.05, wait=clock.wait)
    result = fakes.tune(pool=pool, trials=None, seconds=1.5)
    assert result.reason == "seconds"
    assert 1.2 <= clock.elapsed_s <= 1.55
    assert result.best.latency_us > 0


def test_a_slow_disk_is_in_the_total(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    save = session.Session.save

    def slow_save(*arguments: Any) -> None:
        time.sleep(0.1)
        save(*arguments)

    monkeypatch.setattr(session.Session, "save", slow_save)
    spent = fakes.tune(trials=8, out=tmp_path / "out").breakdown
    named = [getattr(spent, f"{part}_s") for part in report.PARTS]
    assert spent.save_s >= 0.1 and sum(named) <= spent.total_s + 0.02


def test_converged_run_stops() -> None:
    result = fakes.tune(
        pool=fakes.Pool(lambda mod: 10.0), trials=500, options={"patience_rounds": 2}
    )
    assert result.reason == "converged"
    assert len(result.records) <= 40


def test_small_space_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = [fakes.Sketch(extents=(2,), parts=2, with_choices=False)]
    fakes.use(monkeypatch, lambda task: tiny)
    result = fakes.tune(trials=100)
    assert result.reason == "exhausted"
    assert len(result.records) == 2


def test_dead_task_ends_and_says_why() -> None:
    result = fakes.tune(pool=fakes.Pool(lambda mod: protocol.ErrorClass.BUILD), trials=1000)
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
    result = fakes.tune(tasks, pool=fakes.Pool(latency_of), trials=96)
    assert result.reason == "trials"
    alive, dead, other = result.results
    assert len(dead.records) <= 3 * 8 and dead.tuned_or_none is None
    assert dead.ships_unscheduled and result.latency_us > dead.best.latency_us
    assert len(alive.records) + len(other.records) >= 72


def test_few_trials_still_warm_up_every_task() -> None:
    result = fakes.tune([fakes.task(m) for m in (32, 64, 96, 128)], trials=8)
    assert [len(r.records) for r in result.results] == [2, 2, 2, 2]


def test_rejected_schedules_are_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    picky = fakes.Sketch(extents=(64, 64))
    picky.reject = lambda decisions: decisions[0] in (4, 8)
    fakes.use(monkeypatch, lambda task: [picky])
    emitted: list[Any] = []
    result = fakes.tune(on_event=emitted.append)
    assert all(r.decisions[0] not in (4, 8) for r in result.records)
    assert sum(e.n_invalid for e in emitted if isinstance(e, events.RoundStarted)) > 0
    picky.reject = lambda decisions: True
    result = fakes.tune()
    assert result.reason == "failed" and not result.records


def test_a_sketch_without_legal_schedules_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Illegal(fakes.Sketch):
        def sample(self, n: int, seed: int, max_structures: int = 6) -> Any:
            raise errors.InvalidSchedule("nothing is legal")

    good = fakes.Sketch(extents=(1024, 1024), index=1)
    fakes.use(monkeypatch, lambda task: [Illegal(index=0), good])
    emitted: list[Any] = []
    result = fakes.tune(on_event=emitted.append)
    assert {r.sketch_index for r in result.records} == {1}
    assert result.best.sketch_index == 1 and result.best.schedule.mod.sketch == 1
    (warning,) = [e for e in emitted if isinstance(e, events.Warned)]
    assert "nothing is legal" in warning.message
    fakes.use(monkeypatch, lambda task: [Illegal(index=0)])
    with pytest.raises(errors.TuningError, match="nothing is legal"):
        fakes.tune()


#: What no more than a few of the fakes' programs are faster than.
FAST_US = 11.5


def test_infrastructure_errors_do_not_count_against_a_candidate() -> None:
    """Whatever is fast is lost once."""
    lost: set[fakes.Program] = set()

    def latency_of(mod: Any) -> Any:
        is_fast = isinstance(mod, fakes.Program) and fakes.latency_us(mod) < FAST_US
        if is_fast and mod not in lost:
            lost.add(mod)
            return protocol.ErrorClass.INFRASTRUCTURE
        return fakes.latency_us(mod)

    result = fakes.tune(pool=fakes.Pool(latency_of), seed=1)
    failed = [r for r in result.records if not r.measured.ok]
    assert len(failed) == len(lost) > 1
    keys = fakes.keys(result)
    again = [r for r in failed if keys.count((r.sketch_index, r.decisions)) == 2]
    assert again, "what was lost is measured later"
    assert result.best.latency_us < FAST_US


def test_what_breaks_the_infrastructure_twice_is_not_measured_again() -> None:
    """Whatever is fast does, so the search wants it again."""

    def latency_of(mod: Any) -> Any:
        is_fast = isinstance(mod, fakes.Program) and fakes.latency_us(mod) < FAST_US
        return protocol.ErrorClass.INFRASTRUCTURE if is_fast else fakes.latency_us(mod)

    keys = fakes.keys(fakes.tune(pool=fakes.Pool(latency_of), trials=80, seed=2))
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

    result = fakes.tune(pool=Unchecked(), trials=16)
    assert result.best_or_none is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"trials": 0},
        {"trials": 2.5},
        {"trials": None},
        {"seconds": -1.0},
        {"seed": -1},
        {"strategy": "magic"},
        {"resume": True},
        {"task": []},
        {"task": [1]},
    ],
)
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    task = arguments.pop("task", None)
    with pytest.raises(errors.TuningError):
        felix.tune(fakes.task() if task is None else task, options=fakes.small(), **arguments)


def test_twice_the_same_task_is_refused() -> None:
    with pytest.raises(errors.TuningError, match="twice"):
        fakes.tune([fakes.task(), fakes.task()])


def test_felix_tune_is_the_function_whatever_is_imported() -> None:
    module = importlib.import_module("felix.tuning.tune")
    assert felix.tune is module.tune
    assert list(inspect.signature(felix.tune).parameters) == [
        "task_or_tasks",
        "trials",
        "seconds",
        "seed",
        "strategy",
        "model",
        "options",
        "out",
        "resume",
        "on_event",
    ]
    assert isinstance(fakes.tune(trials=8), felix.TuneResult)
    assert isinstance(fakes.tune([fakes.task()], trials=8), felix.NetworkResult)


def test_sizes_are_of_the_strategy() -> None:
    still = gradient.GradientOptions(n_structures=0, n_samples=9)
    assert options_module.TuneOptions(search=still).sizes("local") == still
    descending = options_module.TuneOptions(search=gradient.GradientOptions(n_samples=9))
    assert descending.sizes("local") == still and descending.sizes("gradient").n_structures
    with pytest.raises(errors.TuningError, match="are of `local`"):
        fakes.tune(strategy="gradient", options={"search": still})


def test_the_default_strategy_is_that_of_the_sizes_or_of_the_target() -> None:
    on_cpu = fakes.task()
    on_gpu = workloads.gemm(64, 64, 64, target="cuda")
    default = options_module.TuneOptions()
    assert default.default_strategy(on_cpu) == default.default_strategy(on_gpu) == "gradient"
    for n_structures, expected in ((0, "local"), (1, "gradient")):
        sizes = gradient.GradientOptions(n_structures=n_structures)
        assert options_module.TuneOptions(search=sizes).default_strategy(on_gpu) == expected


def test_a_search_may_be_the_callers(tmp_path: pathlib.Path) -> None:
    made: list[baselines.RandomSearch] = []

    def make(sketches: Any, model: Any, seed: int) -> baselines.RandomSearch:
        made.append(baselines.RandomSearch(sketches, model, seed))
        return made[-1]

    arguments: dict[str, Any] = {"out": tmp_path, "options": {"make_search": make}}
    emitted: list[events.Event] = []
    first = fakes.tune(trials=16, on_event=emitted.append, **arguments)
    assert len(first.records) == 16 and len(made) == 1 and made[0].round >= 2
    assert next(e for e in emitted if isinstance(e, events.Started)).strategy == "custom"
    second = fakes.tune(trials=24, resume=True, **arguments)
    assert second.records[:16] == first.records and len(set(fakes.keys(second))) == 24
    with pytest.raises(errors.TuningError, match="give `make_search`"):
        fakes.tune(trials=32, out=tmp_path, resume=True)
    with pytest.raises(errors.TuningError, match="a strategy or a function that makes the search"):
        fakes.tune(strategy="local", options={"make_search": make})


@pytest.mark.parametrize("strategy", ["evolutionary", "random", "tvm-xgb"])
def test_a_strategy_that_left_is_refused_in_a_sentence(
    strategy: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.TuningError, match=f"no strategy '{strategy}': use gradient or loc"):
        fakes.tune(strategy=strategy)
    fakes.tune(trials=8, out=tmp_path)
    path = tmp_path / "tuning" / "session.json"
    path.write_text(path.read_text().replace('"local"', f'"{strategy}"'))
    with pytest.raises(errors.RecordError, match=f"strategy '{strategy}', which there is no more"):
        fakes.tune(trials=16, out=tmp_path, resume=True)
    with pytest.raises(errors.RecordError, match="another strategy"):
        fakes.tune(trials=16, out=tmp_path, resume=True, strategy="local")
    assert len((tmp_path / "tuning" / "records.jsonl").read_text().splitlines()) == 8


def test_a_search_that_takes_too_long_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is computed when the seconds are used up is lost; what is measured is not."""
    clock = fakes.Clock()
    monkeypatch.setattr(pacing, "Clock", lambda: clock)
    pool, before = fakes.Pool(), pacing.ComputeGuard.yield_to_timing

    def slow(guard: pacing.ComputeGuard) -> None:
        if len(pool.measured) >= 8:
            clock.wait(0.3)
        before(guard)

    monkeypatch.setattr(pacing.ComputeGuard, "yield_to_timing", slow)
    result = fakes.tune(pool=pool, trials=None, seconds=1.0)
    assert result.reason == "seconds" and clock.elapsed_s < 1.35
    assert len(result.records) == 8 and result.best.latency_us > 0


@pytest.mark.parametrize(("is_late", "reason"), [(True, "seconds"), (False, "failed")])
def test_time_that_ends_while_rounds_are_asked_for_is_the_reason(
    is_late: bool, reason: str
) -> None:
    run = mock.MagicMock(is_late=is_late, task_runs=())
    run.stop_reason.return_value, run.has_room.return_value = None, False
    run.n_pending.return_value, run.settle.return_value = 0, False
    run.rounds.searching = run.rounds.measuring = {}
    assert loop.Loop(run, mock.Mock(is_concurrent=False)).until_end() == reason


@pytest.mark.parametrize(("seconds", "n_turns"), [(None, 5), (30.0, 5), (6.0, 2)])
def test_remeasuring_has_as_many_turns_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None, n_turns: int
) -> None:
    clock = fakes.Clock()
    monkeypatch.setattr(pacing, "Clock", lambda: clock)
    pool = fakes.Pool(wait=clock.wait)

    def remeasuring(event: events.Event) -> None:
        if isinstance(event, events.Remeasuring):
            pool.seconds = 0.5
            pool.measured.clear()
            if seconds is not None:
                clock.wait(max(0.0, 0.8 * seconds - clock.elapsed_s))

    result = fakes.tune(
        pool=pool,
        trials=8,
        seconds=seconds,
        options={"n_remeasured": 1, "remeasure_turns": 5},
        on_event=remeasuring,
    )
    assert result.reason == "trials" and len(result.repeats) >= 1
    first = pool.measured[0]
    assert pool.measured.count(first) == n_turns
    assert seconds is None or clock.elapsed_s <= seconds
