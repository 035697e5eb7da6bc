"""Rounds of several tasks that are searched side by side, in processes."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import os
import pathlib
import pickle
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import felix
from felix import errors, events, workloads
from felix.builder import payload
from felix.features import spec
from felix.features.kind import FeatureKind
from felix.measure import locks
from felix.processes import child
from felix.runner import protocol
from felix.search import descent, gradient
from felix.tuning import online_model, pacing, results, task_run, task_search
from felix.tuning import options as options_module
from felix.tuning.searching import process_main, processes, searcher
from tests.support import tuning_fakes as fakes
from tests.support import waiting

#: Small rounds that descend a little, and those that do not.
SIZES = gradient.GradientOptions(
    n_samples=32,
    n_template_samples=32,
    n_before=0,
    n_polish=1,
    n_warm_polish=2,
    n_polished=2,
    n_structures=1,
    n_seeds=4,
    descent=descent.DescentOptions(steps=8),
)
LOCAL = dataclasses.replace(SIZES, n_structures=0)
TEXTS = ("softmax:64x96", "gemm:64,64,64,dtype=bfloat16", "layer_norm:96x64")


Ready = list[processes.SearchProcesses]
#: (task, candidates) of each round that a process searched and the run took over.
Adopted = list[tuple[int, int]]


def tasks() -> list[felix.Task]:
    return [workloads.parse(text, target="h200") for text in TEXTS]


def latency_us(program: Any) -> float:
    """The same for the same program, 10 to 110 us."""
    fingerprint = payload.fingerprint(program)
    assert fingerprint is not None
    return 10.0 + int(fingerprint[-4:], 16) / 655.36


def small(pool: fakes.Pool | None = None, **changes: Any) -> options_module.TuneOptions:
    sizes = {"first_round_size": 4, "baseline": False, "search_processes": 2, "search": SIZES}
    return fakes.small(pool or fakes.Pool(latency_us), **{**sizes, **changes})


@pytest.fixture(scope="module", autouse=True)
def _formulas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FELIX_CACHE_DIR", str(tmp_path_factory.mktemp("formulas")))
        yield


@pytest.fixture
def adopted(monkeypatch: pytest.MonkeyPatch) -> Adopted:
    found: Adopted = []
    adopt = searcher.InProcesses.adopt

    def noted(ours: Any, run: task_run.TaskRun, *arguments: Any) -> Any:
        chosen = adopt(ours, run, *arguments)
        assert chosen is not None
        found.append((run.index, len(chosen)))
        return chosen

    monkeypatch.setattr(searcher.InProcesses, "adopt", noted)
    return found


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> list[processes.SearchProcesses]:
    """A run waits for its processes, so that it searches nothing itself; they are in this list."""
    make, every = processes.SearchProcesses, []

    def started(count: int) -> processes.SearchProcesses:
        every.append(make(count))
        waiting.until(lambda: every[-1].n_ready == count)
        return every[-1]

    monkeypatch.setattr(processes, "SearchProcesses", started)
    return every


def n_measured(network: results.NetworkResult) -> int:
    return sum(len(result.records) for result in network.results)


def learner(seed: int = 0) -> online_model.Learner:
    return online_model.Learner(None, tasks()[0].target, seed, lambda: None)


def request_of(
    run: task_search.TaskSearch, n: int, models: Any, **changes: Any
) -> processes.Request:
    request = processes.Request(
        task_index=run.index,
        task=run.task.to_json(),
        sizes=SIZES,
        has_templates=True,
        seed=5,
        has_rest=False,
        models=models,
        state=run.search.state_dict() if run.is_open else None,
        n=n,
    )
    return dataclasses.replace(request, **changes)


@pytest.mark.slow("another run with search processes")
def test_a_round_elsewhere_is_the_round_here() -> None:
    """Two rounds with measurements between, by a process's object and by a search of the run."""
    models = learner().models_for(0)
    (task, *_) = tasks()
    here, adopting = (task_search.TaskSearch(0, task) for _ in range(2))
    for each in (here, adopting):
        each.open(options_module.making(SIZES), models, 5)
    there = process_main.OpenTask(0, task)
    for n in (4, 8):
        expected = here.search.ask(n)
        request = request_of(adopting, n, models, has_rest=True)
        answer = pickle.loads(pickle.dumps(there.answer(pickle.loads(pickle.dumps(request)))))
        assert answer.sketches == tuple((each.index, each.key) for each in here.sketches)
        adopting.search.adopt(answer.searched)
        assert list(answer.searched.candidates) == expected
        assert adopting.search.state_dict() == here.search.state_dict()
        assert adopting.search.descent_steps == here.search.descent_steps
        for candidate, rows in zip(expected, answer.searched.features, strict=True):
            np.testing.assert_array_equal(here.search.features_of(candidate), rows)
        assert {key: made.text for key, made in answer.programs.items()} == {
            each.key: payload.of(
                here.sketches[each.sketch_index].program(each.decisions), task.target
            )
            for each in expected
        }
        measured = [(s, 20.0 + i) for i, s in enumerate(expected)]
        for each in (here, adopting):
            each.search.tell(measured)


def test_what_tvm_rejects_is_said_for_its_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    models, (task, *_) = learner().models_for(0), tasks()
    run = task_search.TaskSearch(0, task)
    run.open(options_module.making(LOCAL), models, 5)
    refused: list[Any] = []
    make = task_run.applied

    def failing(sketch: Any, candidate: Any) -> Any:
        if refused:
            return make(sketch, candidate)
        refused.append(candidate.key)
        return errors.InvalidSchedule("no such program")

    monkeypatch.setattr(task_run, "applied", failing)
    there = process_main.OpenTask(0, task)
    answer = there.answer(request_of(run, 4, models, sizes=LOCAL, has_rest=True))
    answer = pickle.loads(pickle.dumps(answer))
    made = answer.programs.values()
    bad = [str(each) for each in made if not isinstance(each, payload.WrittenProgram)]
    assert len(made) == 4 and bad == ["no such program"]
    whole = task_run.TaskRun(0, task, fakes.Pool().for_task(task))
    whole.open(options_module.making(LOCAL), models, 5)
    guard = pacing.ComputeGuard(locks.ReadWriteLock(), pacing.Breakdown(), None)
    monkeypatch.setattr(task_run, "applied", None)  # all are made
    programs = whole.programs(answer.searched.candidates, guard, answer.programs)
    assert all(isinstance(program, payload.WrittenProgram) for _, program in programs)
    assert whole.search.history.measured[refused[0]] is None


def test_what_was_measured_meanwhile_stays_known() -> None:
    models = learner().models_for(0)
    run = task_search.TaskSearch(0, tasks()[0])
    run.open(options_module.making(SIZES), models, 5)
    (early, *_) = run.search.ask(2)
    there = process_main.OpenTask(0, run.task)
    answer = there.answer(request_of(run, 4, models, has_rest=True))
    run.search.tell([(early, 7.0)])
    run.search.adopt(answer.searched)
    assert run.search.history.measured == {early.key: 7.0}
    assert {s.key for s in answer.searched.candidates} < run.search.history.pending
    assert early.key not in {s.key for s in answer.searched.candidates}


def test_copies_for_processes_do_not_yield_to_kernels() -> None:
    calls: list[None] = []
    made = online_model.Learner(None, tasks()[0].target, 0, lambda: calls.append(None))
    model = made.models_for(0)[FeatureKind.TRACE]
    rows, mask = torch.rand(3, 2, len(spec.NAMES)), torch.ones(3, 2)
    here, n_calls = model(rows, mask), len(calls)
    sent = pickle.loads(pickle.dumps(model))
    assert torch.equal(here, sent(rows, mask)) and len(calls) == n_calls > 0
    copy.deepcopy(model)(rows, mask)
    assert len(calls) > n_calls


@pytest.mark.slow("two runs with processes of two models")
def test_a_job_is_searched_in_processes(
    ready: Ready, adopted: Adopted, tmp_path: pathlib.Path
) -> None:
    emitted: list[events.Event] = []
    network = felix.tune(
        tasks(), 36, seed=3, options=small(), out=tmp_path, on_event=emitted.append
    )
    assert network.reason == "trials"
    n_trials = {r.task.name: len(r.records) for r in network.results}
    assert sum(n_trials.values()) == 36 and min(n_trials.values()) >= 4
    assert sum(n for _, n in adopted) >= 36 and {index for index, _ in adopted} == {0, 1, 2}
    for result in network.results:
        keys = [record.key for record in result.records]
        assert len(set(keys)) == len(keys)
        assert result.best.latency_us == min(r.latency_us for r in result.records)
    kinds = collections.Counter(type(event).__name__ for event in emitted)
    assert kinds["Opening"] == kinds["Opened"] == 3 and kinds["Trial"] == 36
    begun = [event for event in emitted if isinstance(event, events.RoundStarted)]
    assert any(event.steps for event in begun)  # a descent of a process is shown
    rounds_of = {r.task.name: {record.round for record in r.records} for r in network.results}
    assert all(found == set(range(len(found))) for found in rounds_of.values())

    again = felix.tune(tasks(), 44, seed=3, options=small(), out=tmp_path, resume=True)
    assert n_measured(again) == 44
    for result in again.results:
        keys = [record.key for record in result.records]
        assert len(set(keys)) == len(keys)


@pytest.mark.slow("another run with search processes")
def test_a_process_that_is_killed_costs_nothing_but_time(
    ready: Ready, monkeypatch: pytest.MonkeyPatch, adopted: Adopted
) -> None:
    trials = []

    def kill(event: events.Event) -> None:
        if isinstance(event, events.Trial):
            trials.append(event)
            if len(trials) in (8, 20):
                child = ready[0]._processes[len(trials) // 20]._child
                os.kill(child.pid, signal.SIGKILL)

    network = felix.tune(tasks(), 40, seed=3, options=small(), on_event=kill)
    assert n_measured(network) == 40
    assert 0 < sum(n for _, n in adopted) < 40  # the run searched the rest
    assert ready[0].n_ready == 0


def test_a_process_that_ends_while_it_is_idle_is_not_ready(ready: Ready) -> None:
    with contextlib.closing(processes.SearchProcesses(2)) as both:
        first = both._processes[0]._child
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert both.n_ready == 1 and both.is_idle


@pytest.mark.slow("another run with search processes")
@pytest.mark.fresh_processes
def test_a_process_that_ends_before_it_is_asked_answers_that_it_ended(ready: Ready) -> None:
    request = request_of(task_search.TaskSearch(0, tasks()[0]), 1, {})
    with contextlib.closing(processes.SearchProcesses(1)) as only:
        assert only.may_take(0)
        child = only._processes[0]._child
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        answer = only.submit(request).result(timeout=30)
    assert isinstance(answer, processes.Failed) and "a search process ended" in answer.message


class Unreadable(fakes.Model):
    """A model that a process cannot read."""

    def __reduce__(self) -> Any:
        return int, ("no number",)

    def __deepcopy__(self, _: Any) -> Unreadable:
        return self


class Unsendable(Unreadable):
    """A model whose own code refuses to be pickled, as PyTorch's parametrized modules do."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not to be serialised")


@pytest.mark.parametrize(
    ("model", "why"), [(Unsendable, "cannot be sent"), (Unreadable, "cannot search: ValueError")]
)
def test_a_model_that_cannot_be_sent_is_used_here(
    ready: Ready, model: type[fakes.Model], why: str
) -> None:
    emitted: list[events.Event] = []
    network = felix.tune(
        tasks()[::2],
        24,
        model=model(),
        on_event=emitted.append,
        options=small(search_processes=1, learn=False),
    )
    assert n_measured(network) == 24
    (warned,) = (
        e.message
        for e in emitted
        if isinstance(e, events.Warned) and "without a process" in e.message
    )
    assert why in warned


@pytest.mark.slow("another run with search processes")
def test_other_sketches_of_a_process_are_not_taken(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt, taken = searcher.InProcesses.adopt, []

    def other(ours: Any, run: Any, answer: processes.Searched, *rest: Any) -> Any:
        if run.index == 0:
            renamed = tuple((index, f"{key}-other") for index, key in answer.sketches)
            answer = dataclasses.replace(answer, sketches=renamed)
        taken.append((run.index, adopt(ours, run, answer, *rest)))
        return taken[-1][1]

    monkeypatch.setattr(searcher.InProcesses, "adopt", other)
    network = felix.tune(tasks()[::2], 32, options=small())
    assert n_measured(network) == 32
    assert [chosen for index, chosen in taken if index == 0] == [None]  # it is asked once
    assert any(chosen for index, chosen in taken if index == 1)


@pytest.mark.slow("another run with search processes")
def test_no_round_is_asked_for_beyond_the_trials(ready: Ready, adopted: Adopted) -> None:
    emitted: list[events.Event] = []
    network = felix.tune(tasks(), 22, options=small(search_processes=3), on_event=emitted.append)
    assert n_measured(network) == 22
    sizes = [e.n_candidates for e in emitted if isinstance(e, events.RoundStarted)]
    assert min(sizes) > 0 and min(n for _, n in adopted) > 0


def test_trials_of_first_rounds_are_kept_for_them(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the only process is busy, the run has a task that it could search once more."""
    refused: list[int] = []
    adopt = searcher.InProcesses.adopt

    def first_refused(ours: Any, run: Any, *arguments: Any) -> Any:
        if not refused:
            refused.append(run.index)
            return None
        return adopt(ours, run, *arguments)

    monkeypatch.setattr(searcher.InProcesses, "adopt", first_refused)
    network = felix.tune(tasks(), 12, options=small(search_processes=1))
    assert refused and [len(r.records) for r in network.results] == [4, 4, 4]


@pytest.mark.slow("another run with search processes")
def test_a_task_that_cannot_be_opened_is_skipped(
    ready: Ready, monkeypatch: pytest.MonkeyPatch, adopted: Adopted
) -> None:
    sketches_of = task_search.sketches_of

    def some(task: felix.Task, *arguments: Any) -> Any:
        if task.name == names[0]:
            raise errors.UnsupportedSchedule("no rule fits")
        return sketches_of(task, *arguments)

    names = [task.name for task in tasks()]
    monkeypatch.setattr(task_search, "sketches_of", some)
    network = felix.tune(tasks(), 24, options=small())
    assert [bool(r.skipped) for r in network.results] == [True, False, False]
    assert network.results[0].skipped == "no rule fits"
    assert n_measured(network) == 24 and adopted


@pytest.mark.slow("another run with search processes")
def test_first_schedules_are_measured_first(ready: Ready, adopted: Adopted) -> None:
    known = felix.tune(tasks(), 24, options=small(search_processes=0))
    best = {r.task.key: (r.records[-1].sketch_key, r.records[-1].decisions) for r in known.results}
    network = felix.tune(
        tasks(), 24, seed=1, options=small(first_schedules=lambda task, _: [best[task.key]])
    )
    for result in network.results:
        assert (result.records[0].sketch_key, result.records[0].decisions) == best[result.task.key]
        assert sum(record.round == 0 for record in result.records) == 4
    assert adopted


def test_a_run_that_is_stopped_ends_its_processes(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_checks = 0

    def stop() -> bool:
        nonlocal n_checks
        n_checks += 1
        return n_checks > 40

    network = felix.tune(tasks(), 10_000, options=small(should_stop=stop))
    assert network.reason == "interrupted"
    assert all(each._child.poll() is not None for each in ready[0]._processes)


def test_a_run_of_processes_ends_in_time(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = fakes.Clock()
    monkeypatch.setattr(pacing, "Clock", lambda: clock)
    pool = fakes.Pool(latency_us)
    options = small(pool)

    def passing(event: events.Event) -> None:
        if isinstance(event, events.Trial):
            clock.wait(0.4)

    network = felix.tune(tasks(), None, 1.0, options=options, on_event=passing)
    assert network.reason == "seconds" and clock.elapsed_s <= 1.3
    assert sum(len(result.records) for result in network.results) in (2, 3)


def test_processes_pay_for_several_tasks_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu, on_cpu = tasks(), [fakes.task(32), fakes.task(64)]

    def count(some: Any, cores: int, asked: int | None = None) -> int:
        monkeypatch.setattr(processes.cpu, "available_cores", lambda: cores)
        return processes.n_processes(some, asked)

    assert count(on_gpu, 16) == 3 and count(on_gpu * 9, 16) == 4
    assert count(on_gpu * 9, 64) == processes.MAX_PROCESSES
    assert count(on_gpu, 2) == 0 and count(on_gpu, 2, asked=2) == 2
    assert count(on_gpu, 16, asked=0) == 0
    for asked in (None, 2):
        assert count(on_gpu[:1], 16, asked) == count(on_cpu, 16, asked) == 0


def test_where_no_process_starts_the_run_searches_itself(
    monkeypatch: pytest.MonkeyPatch, adopted: Adopted
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(child.subprocess, "Popen", fail)
    network = felix.tune(tasks(), 24, options=small())
    assert n_measured(network) == 24 and not adopted


@pytest.mark.gpu
def test_a_job_on_a_gpu(ready: Ready, adopted: Adopted) -> None:
    some = [workloads.parse(text, target="cuda") for text in TEXTS]
    options = options_module.TuneOptions(search_processes=2)
    network = felix.tune(some, 64, seed=1, options=options)
    assert n_measured(network) == 64 and adopted
    for result in network.results:
        measured = [r.measurement for r in result.records]
        assert result.best.latency_us > 0 and any(each.checked for each in measured)
        assert not any(each.error is protocol.ErrorClass.WRONG_RESULT for each in measured)
