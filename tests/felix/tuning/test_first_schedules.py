"""Runs that begin with what is known: schedules to try first, tasks that need no trials."""

from __future__ import annotations

import pytest

import felix
from felix import workloads
from felix.metaschedule import trace_text
from felix.tuning.opening import task_search
from tests.support import tuning_fakes as fakes


@pytest.fixture
def fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


def _best(n: int = 3) -> list[tuple[str, tuple[int, ...]]]:
    """The sketch keys and decisions of the fastest of a run."""
    result = felix.tune(fakes.task(), 24, model=fakes.Model(), options=fakes.small())
    ranked = sorted(result.records, key=lambda r: r.measurement.latency_us or 0.0)
    return [(record.sketch_key, record.decisions) for record in ranked[:n]]


@pytest.mark.usefixtures("fake_sketches")
def test_known_schedules_are_measured_first_and_once() -> None:
    known, pool = _best(), fakes.Pool()
    options = fakes.small(pool, first_schedules=lambda *_: [*known, known[0]])
    result = felix.tune(fakes.task(), 16, model=fakes.Model(), options=options)
    measured = [(r.sketch_key, r.decisions) for r in result.records]
    assert measured[:3] == known
    assert len(set(measured)) == len(measured) == 16
    assert result.best.latency_us <= fakes.latency_us(fakes.Program(0, known[0][1])) * 1.1


@pytest.mark.usefixtures("fake_sketches")
def test_schedules_that_do_not_fit_are_left_out() -> None:
    key, decisions = _best(1)[0]
    wrong = [("another sketch", decisions), (key, decisions[:-1])]
    options = fakes.small(first_schedules=lambda *_: wrong)
    result = felix.tune(fakes.task(), 8, model=fakes.Model(), options=options)
    assert len(result.records) == 8


@pytest.mark.usefixtures("fake_sketches")
def test_a_settled_task_gets_no_trials() -> None:
    tasks = [fakes.task(64), fakes.task(32)]
    pool = fakes.Pool()
    options = fakes.small(pool, settled=frozenset({tasks[0].key}))
    network = felix.tune(tasks, 16, model=fakes.Model(), options=options)
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
