"""Collecting: what is proposed, measured, written and resumed, on a made-up device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.collect import collector, proposals
from costmodel.data import dataset, felix_bridge, workloads_cpu
from felix import errors
from felix.measure import protocol
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


def test_builtin_workloads_build_are_small_and_cover_every_operator() -> None:
    from benchmarks import cpu_tuning
    from costmodel.data import felix_bridge
    from felix import workloads
    from felix.workloads import catalogue

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
