"""Collecting: what is proposed, measured, written and resumed; workloads and schedules of GPUs."""

from __future__ import annotations

import datetime
import pathlib
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import cpu_tuning
from benchmarks.support import subgraphs
from costmodel.cli import collect
from costmodel.collect import collector, descent, proposals
from costmodel.collect import collector as collecting
from costmodel.data import dataset, felix_bridge, workloads_cpu, workloads_gpu
from felix import errors, workloads
from felix.runner import protocol
from felix.workloads import catalogue
from tests.support.collect_fakes import Bench, FakeSketch, speed, workload


def test_collecting_spreads_over_workloads_and_sketches_without_repeats(tmp_path: Path) -> None:
    bench = Bench()
    progress = bench.run(tmp_path, [workload(1), workload(2)], per_workload=10)
    read = dataset.read(tmp_path)
    assert progress.measured == 20 and progress.failed == 0
    assert Counter(r.workload for r in read.records) == {workload(1).key: 10, workload(2).key: 10}
    assert Counter((r.workload, r.sketch) for r in read.records).most_common()[-1][1] == 5
    assert len({r.identity for r in read.records}) == 20
    assert all(r.latency_us == speed((r.sketch, *r.decisions)) for r in read.records)
    assert {r.source for r in read.records} == {"random"}
    assert bench.holding > 0


def n_changes(row: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Decisions in which two rows differ; the parts of a tiling are one."""
    return (row[:2] != other[:2]) + (row[2] != other[2]) + (row[3] != other[3])


def test_collecting_looks_near_the_fastest(tmp_path: Path) -> None:
    Bench().run(tmp_path, [workload(1)], per_workload=24, near=0.5)
    records = dataset.read(tmp_path).records
    near = [r for r in records if r.source == "neighbour"]
    assert 4 <= len(near) <= 12 and len({r.identity for r in records}) == 24
    sketch = FakeSketch(0)
    rows = [tuple(row) for row in np.unique(sketch.sample(200, seed=1), axis=0).tolist()]
    fast, slow = rows[:8], rows[8:]
    state = proposals.WorkloadState(
        proposals.OpenWorkload(workload(1), [sketch], Bench().submit),
        {(sketch.key, row) for row in fast},
        Counter(),
        [(1.0, sketch.key, row) for row in fast] + [(2.0, sketch.key, row) for row in slow],
    )
    options = proposals.CollectOptions("llvm", "0.27", near=1.0)
    for candidate in proposals.Proposer(options, None).propose(state, 9):
        assert candidate.source == "neighbour"
        assert min(n_changes(candidate.decisions, row) for row in fast) == 1


def test_collecting_resumes_where_it_stopped(tmp_path: Path) -> None:
    Bench().run(tmp_path, [workload(1)], per_workload=6)
    second = Bench()
    progress = second.run(tmp_path, [workload(1), workload(2)], per_workload=10)
    read = dataset.read(tmp_path)
    assert len(second.submitted) == 14 and progress.measured == 20
    assert len(read.records) == 20
    third = Bench()
    third.run(tmp_path, [workload(1), workload(2)], per_workload=10)
    assert third.submitted == [] and third.opened == []


def test_collecting_is_deterministic(tmp_path: Path) -> None:
    benches = [Bench(), Bench(), Bench()]
    for bench, seed in zip(benches, (1, 1, 2), strict=True):
        bench.run(tmp_path / str(id(bench)), [workload(1)], per_workload=8, seed=seed)
    assert benches[0].submitted == benches[1].submitted != benches[2].submitted


def test_small_space_ends_and_invalid_schedules_do_not_loop(tmp_path: Path) -> None:
    bench = Bench()
    assert bench.run(tmp_path / "a", [workload(1)], per_workload=500).measured == 60  # 2·5·3·2
    bad = Bench(sketches=(FakeSketch(0, invalid=True),))
    progress = bad.run(tmp_path / "b", [workload(1)], per_workload=10)
    assert progress.measured == 0 and progress.invalid > 0


def test_sketches_that_nothing_can_be_drawn_of_are_left_out() -> None:
    class Empty(FakeSketch):
        def sample(self, n: int, seed: int, max_structures: int = 1) -> np.ndarray:
            raise errors.InvalidSchedule("no legal decisions were found")

    drawable, empty = FakeSketch(0), Empty(1)
    assert felix_bridge.with_decisions([empty, drawable]) == [drawable]


def test_errors_are_kept_but_lost_candidates_are_not(tmp_path: Path) -> None:
    def answer(mod: tuple[int, ...]) -> float | protocol.ErrorClass:
        if mod[3] == 64:
            return protocol.ErrorClass.BUILD
        if mod[3] == 16:
            return protocol.ErrorClass.INFRASTRUCTURE
        return 5.0

    progress = Bench(answer).run(tmp_path, [workload(1)], per_workload=12)
    records = dataset.read(tmp_path).records
    assert {r.error for r in records} == {None, "build"}
    assert progress.lost > 0 and progress.failed == sum(r.error is not None for r in records)


def test_workload_that_only_loses_is_given_up(tmp_path: Path) -> None:
    bench = Bench(lambda mod: protocol.ErrorClass.INFRASTRUCTURE)
    progress = bench.run(tmp_path, [workload(1)], per_workload=12)
    assert progress.measured == 0 and progress.lost <= collector.MAX_LOST + 12


def test_time_limit_stops_and_keeps_what_was_measured(tmp_path: Path) -> None:
    times = iter(range(100))
    bench = Bench()
    bench.run(
        tmp_path,
        [workload(i) for i in range(9)],
        per_workload=8,
        seconds=3.5,
        clock=lambda: float(next(times)),
    )
    assert len(dataset.read(tmp_path).records) == len(bench.submitted) == 12


def test_interrupt_keeps_what_is_known(tmp_path: Path) -> None:
    def report(progress: collector.Progress) -> None:
        if progress.measured == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Bench().run(tmp_path, [workload(1)], per_workload=20, in_flight=1, report=report)
    assert len(dataset.read(tmp_path).records) == 7


def test_model_steers_towards_what_it_prefers(tmp_path: Path) -> None:
    def predict(sketch: Any, batch: np.ndarray) -> np.ndarray:
        return np.array([speed((0, *row)) for row in batch])

    bench = Bench()
    bench.run(tmp_path, [workload(1)], per_workload=20, predict=predict)
    records = dataset.read(tmp_path).records
    guided = [r.latency_us or 0 for r in records if r.source != "random"]
    drawn = [r.latency_us or 0 for r in records if r.source == "random"]
    assert len(guided) >= 6 and np.mean(guided) < np.mean(drawn) - 0.5


def test_neighbours_are_new_legal_and_one_decision_away() -> None:
    rows = [(4, 3, 16, -1), (2, 6, 0, 0)]
    near = proposals.neighbours(FakeSketch(0), rows, per_row=20, seed=3)
    assert 5 <= len(near) <= 40 and len(set(map(tuple, near.tolist()))) == len(near)
    for row in map(tuple, near.tolist()):
        assert row not in rows and row[0] * row[1] == 12 and row[1] <= 6
        assert min(n_changes(row, old) for old in rows) == 1
        assert row[3] in (-1, 0) and row[2] in (0, 16, 64)
    again = proposals.neighbours(FakeSketch(0), rows, per_row=20, seed=3)
    assert np.array_equal(near, again)
    assert proposals.neighbours(FakeSketch(0), [], per_row=20, seed=3).shape == (0, 4)


@pytest.mark.slow("builds a program of every workload of the data")
def test_builtin_workloads_build_are_small_and_cover_every_operator() -> None:
    made = [felix_bridge.workload(line) for line in workloads_cpu.builtin()[::3]]
    assert len(made) >= 100 and len({w.key for w in made}) == len(made)
    assert {w.operator for w in made} == set(workloads.OPERATORS)
    every = [catalogue.parse_params(line) for line in workloads_cpu.builtin()]
    timed = [catalogue.parse_params(text) for text in cpu_tuning.WORKLOADS.values()]
    assert not [workload for workload in timed if workload in every]
    assert max(w.flops for w in made) <= 125e6
    rebuilt = felix_bridge.task_of(made[0], "llvm")
    assert rebuilt.flops == made[0].flops and rebuilt.name == made[0].name


def test_lines_drop_comments_blanks_and_repeats() -> None:
    assert workloads_cpu.lines("a:1 # one\n\n# two\nb:2\na:1\n") == ["a:1", "b:2"]


TARGET = felix_bridge.target_text("h200")


def test_builtin_workloads_are_many_valid_and_not_those_of_the_benchmarks() -> None:
    lines = workloads_gpu.lines()
    assert len(set(lines)) == len(lines) >= 1000
    assert sum(",dtype=float16" in line for line in lines) >= 50
    counts = Counter(line.partition(":")[0] for line in lines)
    assert set(counts) == set(catalogue.OPERATORS)
    assert lines == workloads_gpu.lines()
    parsed = [catalogue.parse_params(line) for line in lines]
    held_out = [catalogue.parse_params(text) for text in subgraphs.EVERY.values()]
    assert len(held_out) >= 29 and not [one for one in held_out if one in parsed]
    for line in lines[:: len(lines) // 12]:
        assert felix_bridge.workload(line).min_bytes > 0


@pytest.mark.slow("collects by three ways")
def test_schedules_come_from_descent_neighbours_and_chance(tmp_path: pathlib.Path) -> None:
    model = collect._model(None, TARGET)
    opened: list[proposals.OpenWorkload] = []
    submitted: list[Any] = []

    def submit(mod: Any) -> Future[protocol.Measurement]:
        submitted.append(mod)
        future: Future[protocol.Measurement] = Future()
        latency_us = 10.0 + len(mod.script()) % 97
        future.set_result(protocol.Measurement.timed([latency_us], checked=True))
        return future

    def open_workload(workload: dataset.Workload) -> proposals.OpenWorkload:
        sketches = felix_bridge.sketches_of(felix_bridge.task_of(workload, TARGET))
        search = descent.search(sketches, model, seed=0)
        opened.append(proposals.OpenWorkload(workload, sketches, submit, search=search))
        return opened[-1]

    workload = felix_bridge.workload("gemm:64,96,128")
    options = proposals.CollectOptions(
        target=TARGET,
        tvm="0",
        per_workload=24,
        turn=12,
        guided=0.0,
        near=0.25,
        descend=0.25,
        tournament=2,
    )
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    with dataset.Writer(tmp_path) as writer:
        writer.add_workloads([workload])
        environment = collecting.Environment(
            open_workload, lambda: 0.0, lambda: now, collect._predictor(model)
        )
        progress = collecting.collect(environment, [workload], writer, (), options)
    records = dataset.read(tmp_path).records
    assert progress.measured == len(records) == len(submitted) == 24
    sources = Counter(record.source for record in records)
    assert sources["descent"] == 6 and sources["neighbour"] >= 1 and sources["random"] >= 12
    assert len({record.identity for record in records}) == 24
    search = opened[0].search
    assert len(search.history.measured) == 24


def test_some_sketches_are_drawn_evenly_and_keep_their_order() -> None:
    names: Any = ["a", "b", "c", "d", "e"]
    assert proposals.some_of(names, None, 1) == proposals.some_of(names, 9, 1) == names
    drawn = [proposals.some_of(names, 3, seed) for seed in range(200)]
    assert all(chosen == sorted(set(chosen)) and len(chosen) == 3 for chosen in drawn)
    counts = Counter(name for chosen in drawn for name in chosen)
    assert set(counts) == set(names) and min(counts.values()) > 90
    assert proposals.some_of(names, 3, 7) == proposals.some_of(names, 3, 7)


def test_a_search_of_some_sketches_counts_them_from_0() -> None:
    """The number of a sketch is its place among all of the task's."""
    workload = felix_bridge.workload("gemm:64,96,128")
    sketches = felix_bridge.sketches_of(felix_bridge.task_of(workload, TARGET))[1:3]
    model = collect._model(None, TARGET)
    search = descent.search(sketches, model, seed=0)
    opened = proposals.OpenWorkload(workload, sketches, Future, search=search)
    state = proposals.WorkloadState(opened, set(), Counter())
    options = proposals.CollectOptions(TARGET, "0", descend=1.0)
    candidates = list(proposals.Proposer(options, None).propose(state, 6))
    assert {c.source for c in candidates} == {"descent"} and len(candidates) == 6
    for candidate in candidates:
        assert candidate.sketch.schedule(candidate.decisions).mod is not None
        named = opened.candidate(candidate.sketch.key, candidate.decisions)
        assert sketches[named.sketch_index] is candidate.sketch


def test_a_tournament_prefers_what_is_predicted_to_be_fast() -> None:
    model = collect._model(None, TARGET)
    predict = collect._predictor(model)
    workload = felix_bridge.workload("gemm:128,128,128")
    (sketch, *_) = felix_bridge.sketches_of(felix_bridge.task_of(workload, TARGET))
    means = {}
    for size in (1, 4):
        options = proposals.CollectOptions(target=TARGET, tvm="0", tournament=size)
        proposer = proposals.Proposer(options, predict)
        rows = proposer._preferred(sketch, sketch.sample(64, seed=5))
        assert len(rows) == 64 // size
        means[size] = float(np.mean(predict(sketch, rows)))
    assert means[4] < means[1]
