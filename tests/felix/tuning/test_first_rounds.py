"""First rounds of several tasks: their sizes, what follows when time is up, traces later."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import felix
from felix import workloads
from felix.sketch import formula_cache, legality
from felix.tuning import pacing
from felix.tuning.opening import ahead, first_rounds, opened_sketches, task_search
from tests.support import tuning_fakes as fakes


@pytest.mark.parametrize(
    ("left_s", "n_fresh", "size"),
    [(None, 30, 8), (300.0, 30, 8), (30.0, 30, 4), (4.0, 30, 1), (0.0, 30, 1), (0.5, 1, 2)],
)
def test_first_rounds_are_smaller_where_time_is_short(
    left_s: float | None, n_fresh: int, size: int
) -> None:
    assert first_rounds.size(8, left_s, n_fresh) == size


@pytest.fixture
def fake_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch)


@pytest.mark.usefixtures("fake_sketches")
def test_what_the_model_picks_is_measured_after_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = fakes.Clock()
    monkeypatch.setattr(pacing, "Clock", lambda: clock)
    tasks = [fakes.task(m) for m in (32, 64, 96)]
    options = fakes.small(fakes.Pool(seconds=0.4, wait=clock.wait), lookahead=0.0)
    network = felix.tune(tasks, None, 1.0, model=fakes.Model(), options=options)
    assert all(result.best_or_none is not None for result in network.results)
    assert network.reason == "seconds"
    n_records = {result.task.name: len(result.records) for result in network.results}
    assert sum(n_records.values()) <= 8  # of 24: time is short


@pytest.mark.usefixtures("fake_sketches")
def test_traces_join_the_search_in_the_second_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_kind(sketches: Any) -> tuple[list[Any], list[Any]]:
        return [each for each in sketches if each.index == 1], [sketches[0]]

    monkeypatch.setattr(opened_sketches, "by_kind", by_kind)
    tasks = [fakes.task(m) for m in (32, 64)]
    network = felix.tune(tasks, 48, model=fakes.Model(), options=fakes.small())
    for result in network.results:
        rounds = {(record.round, record.sketch_index) for record in result.records}
        assert (0, 1) in rounds and (0, 0) not in rounds and (1, 0) in rounds
    (alone,) = felix.tune(tasks[:1], 16, model=fakes.Model(), options=fakes.small()).results
    assert {record.sketch_index for record in alone.records if record.round == 0} == {0, 1}


@pytest.mark.usefixtures("fake_sketches")
def test_a_run_that_had_opened_templates_alone_is_resumed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def by_kind(sketches: Any) -> tuple[list[Any], list[Any]]:
        return [each for each in sketches if each.index == 1], [sketches[0]]

    monkeypatch.setattr(opened_sketches, "by_kind", by_kind)
    tasks = [fakes.task(m) for m in (32, 64)]
    felix.tune(tasks, 16, model=fakes.Model(), options=fakes.small(), out=tmp_path)
    network = felix.tune(
        tasks, 48, model=fakes.Model(), options=fakes.small(), out=tmp_path, resume=True
    )
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
        every = opened_sketches.searched(task_search.sketches_of(task))
        _, traces = opened_sketches.by_kind(every)
        assert traces and all(legality.make_formulas(sketch) is None for sketch in traces)
    assert len(list(formula_cache.folder().iterdir())) == n_files > 0


def test_formulas_are_made_ahead_beside_gpus_alone() -> None:
    on_cuda = [workloads.gemm(32, 32, 32 * n, target="cuda -arch=sm_90") for n in range(1, 9)]
    on_cpu = [fakes.task(32), fakes.task(64)]
    assert [ahead.n_processes(on_cuda, n_cores) for n_cores in (2, 6, 16)] == [0, 2, 4]
    assert ahead.n_processes(on_cuda[:1], 16) == ahead.n_processes(on_cpu, 16) == 0
