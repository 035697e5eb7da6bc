"""First rounds: their sizes, what is measured first or known, traces later, what is pending."""

from __future__ import annotations

import pathlib
import threading
import types
from concurrent.futures import Future
from typing import Any

import pytest

from felix import workloads
from felix.measure import locks
from felix.metaschedule import trace_text
from felix.runner import protocol
from felix.search import interface
from felix.space import ahead, diversity, formula_cache, legality
from felix.tuning import pacing, pending, rounds, task_search
from tests.support import tuning_fakes as fakes


@pytest.mark.parametrize(
    ("left_s", "n_fresh", "size"),
    [(None, 30, 8), (300.0, 30, 8), (30.0, 30, 4), (4.0, 30, 1), (0.0, 30, 1), (0.5, 1, 2)],
)
def test_first_rounds_are_smaller_where_time_is_short(
    left_s: float | None, n_fresh: int, size: int
) -> None:
    assert rounds.first_size(8, left_s, n_fresh) == size


@pytest.fixture
def fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


@pytest.mark.usefixtures("fake_sketches")
def test_no_round_begins_when_the_end_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last fifth is for what is on its way; tasks whose turn has not come are left out."""
    clock = fakes.Clock()
    monkeypatch.setattr(pacing, "Clock", lambda: clock)
    tasks = [fakes.task(m) for m in (32, 64, 96)]
    pool, options = fakes.Pool(seconds=0.4, wait=clock.wait), {"lookahead": 0.0}
    network = fakes.tune(tasks, pool=pool, trials=None, seconds=1.0, options=options)
    assert network.reason == "seconds" and clock.elapsed_s <= 1.3
    assert sorted(len(result.records) for result in network.results) == [0, 1, 1]


@pytest.fixture
def a_template(fake_sketches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sketch of a task is as if a template made it."""

    def by_kind(sketches: Any) -> tuple[list[Any], list[Any]]:
        return [each for each in sketches if each.index == 1], [sketches[0]]

    monkeypatch.setattr(task_search, "by_kind", by_kind)


@pytest.mark.usefixtures("a_template")
def test_traces_join_the_search_in_the_second_round() -> None:
    tasks = [fakes.task(m) for m in (32, 64)]
    network = fakes.tune(tasks, trials=48)
    for result in network.results:
        rounds = {(record.round, record.sketch_index) for record in result.records}
        assert (0, 1) in rounds and (0, 0) not in rounds and (1, 0) in rounds
    (alone,) = fakes.tune(tasks[:1], trials=16).results
    assert {record.sketch_index for record in alone.records if record.round == 0} == {0, 1}


@pytest.mark.usefixtures("a_template")
def test_a_run_that_had_opened_templates_alone_is_resumed(tmp_path: pathlib.Path) -> None:
    tasks = [fakes.task(m) for m in (32, 64)]
    fakes.tune(tasks, trials=16, out=tmp_path)
    network = fakes.tune(tasks, trials=48, out=tmp_path, resume=True)
    assert sum(len(result.records) for result in network.results) == 48
    for result in network.results:
        assert {record.sketch_index for record in result.records} == {0, 1}


def test_processes_make_formulas_ahead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    tasks = [workloads.gemm(32, 32, n, target="cuda -arch=sm_90") for n in (32, 64)]
    made_ahead = ahead.Ahead(tasks, 1)
    made_ahead.wait()
    made_ahead.close()
    made_ahead.close()
    n_files = len(list(formula_cache.folder().iterdir()))
    for task in tasks:
        _, traces = task_search.by_kind(diversity.searched(task_search.sketches_of(task)))
        assert traces and all(legality.make_formulas(sketch) is None for sketch in traces)
    assert len(list(formula_cache.folder().iterdir())) == n_files > 0


def test_formulas_are_made_ahead_beside_gpus_alone() -> None:
    on_cuda = [workloads.gemm(32, 32, 32 * n, target="cuda -arch=sm_90") for n in range(1, 9)]
    on_cpu = [fakes.task(32), fakes.task(64)]
    assert [ahead.n_processes(on_cuda, n_cores) for n_cores in (2, 6, 16)] == [0, 2, 4]
    assert ahead.n_processes(on_cuda[:1], 16) == ahead.n_processes(on_cpu, 16) == 0


def _best(n: int = 3) -> list[tuple[str, tuple[int, ...]]]:
    """The sketch keys and decisions of the fastest of a run."""
    result = fakes.tune(trials=24)
    ranked = sorted(result.records, key=lambda r: r.latency_us or 0.0)
    return [(record.sketch_key, record.decisions) for record in ranked[:n]]


@pytest.mark.usefixtures("fake_sketches")
def test_known_schedules_are_measured_first_and_once() -> None:
    known = _best()
    options = {"first_schedules": lambda *_: [*known, known[0]]}
    result = fakes.tune(trials=16, options=options)
    measured = [(r.sketch_key, r.decisions) for r in result.records]
    assert measured[:3] == known
    assert len(set(measured)) == len(measured) == 16
    assert result.best.latency_us <= fakes.latency_us(fakes.Program(0, known[0][1])) * 1.1


@pytest.mark.usefixtures("fake_sketches")
def test_schedules_that_do_not_fit_are_left_out() -> None:
    key, decisions = _best(1)[0]
    wrong = [("another sketch", decisions), (key, decisions[:-1])]
    result = fakes.tune(trials=8, options={"first_schedules": lambda *_: wrong})
    assert len(result.records) == 8


@pytest.mark.usefixtures("fake_sketches")
def test_a_settled_task_gets_no_trials() -> None:
    tasks = [fakes.task(64), fakes.task(32)]
    network = fakes.tune(tasks, trials=16, options={"settled": frozenset({tasks[0].key})})
    assert [len(result.records) for result in network.results] == [0, 16]


def test_a_trace_is_known_by_its_text() -> None:
    """What a database holds as text leads back to sketch and decisions, without TVM reading it."""
    task = workloads.gemm(32, 32, 32, target="llvm -num-cores 2")
    sketches = task_search.sketches_of(task)
    finder = trace_text.Finder(sketches)
    for sketch in sketches:
        for row in sketch.sample(3, seed=1):
            decisions = tuple(int(value) for value in row)
            trace = sketch.schedule(decisions).trace
            signature, texts = trace_text.read(trace.simplified(True))
            located = finder.find(signature, texts)
            assert located is not None
            assert (
                sketches[located[0]].schedule(located[1]).mod.script()
                == sketch.schedule(decisions).mod.script()
            )
            for damaged in ([*texts, "1"], ["[1]"] * len(texts), ["99"] * len(texts)):
                assert finder.find(signature, damaged) is None
    assert finder.find("nonsense", []) is None


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
    limit = pacing.TimeLimit(seconds)
    trials = pending.PendingTrials(pacing.Clock(), guard, breakdown, limit)
    measurer = Measurer()
    task_run: Any = types.SimpleNamespace(measurer=measurer, trial=lambda candidate: candidate)
    for each in range(number):
        trials.submit(task_run, interface.Candidate(0, (each,)), None)  # type: ignore[arg-type]
    return trials, measurer


def _resolve(future: _Future) -> None:
    future.set_result(protocol.Measurement.timed([1.0]))


def test_trials_are_taken_in_the_order_of_their_measurements() -> None:
    trials, measurer = _trials(4)
    taken: list[tuple[int, ...]] = []
    for number in (3, 1, 2):
        _resolve(measurer.futures[number])
    trials.complete_one(lambda trial: taken.append(trial.trial.decisions))
    trials.take_measured(lambda trial: taken.append(trial.trial.decisions))
    assert taken == [(3,), (1,), (2,)] and len(trials) == 1


def test_a_wait_ends_with_the_first_measurement() -> None:
    trials, measurer = _trials(2)
    threading.Timer(0.01, _resolve, [measurer.futures[1]]).start()
    taken: list[Any] = []
    trials.complete_one(taken.append)
    assert [trial.trial.decisions for trial in taken] == [(1,)]
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

    def interrupted(trial: pending.InFlight) -> None:
        raise KeyboardInterrupt

    _resolve(measurer.futures[0])
    with pytest.raises(KeyboardInterrupt):
        trials.complete_one(interrupted)
    taken: list[Any] = []
    trials.abandon(taken.append)
    assert [trial.trial.decisions for trial in taken] == [(0,)] and len(trials) == 0


def test_what_was_let_go_of_is_not_taken_when_it_is_measured() -> None:
    trials, measurer = _trials(2)
    measurer.futures[0].set_running_or_notify_cancel()
    taken: list[Any] = []
    trials.abandon(taken.append)
    _resolve(measurer.futures[0])
    assert measurer.futures[1].cancelled()
    trials.take_measured(taken.append)
    assert taken == [] and len(trials) == 0
