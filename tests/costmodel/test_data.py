"""The data set, features from it, collecting into it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.collect import collector, proposals
from costmodel.data import dataset, workloads_cpu
from costmodel.data import features as task_features
from felix import errors
from felix.measure import protocol
from felix.sketch.sketch import Variable

TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
NAMES = ("trip_count", "float_ops")


def workload(number: int, operator: str = "gemm") -> dataset.Workload:
    params = f'{{"m":{number}}}'
    key = dataset.workload_key(operator, params, None)
    return dataset.Workload(key, f"{operator}_{number}", operator, params, None, 10, 20)


def record(owner: dataset.Workload, *decisions: int, error: str | None = None) -> dataset.Record:
    latencies = () if error else (3.0, 1.0, 2.0)
    return dataset.Record(
        owner.key, "llvm", 0, "s0", decisions, latencies, error, "cpu", "0.27", "random", TIME
    )


def filled(folder: Path, n: int = 5, part_rows: int = 2) -> list[dataset.Record]:
    records = [record(workload(1), i, 7) for i in range(n - 1)]
    records.append(record(workload(2), 9, 9, error="timeout"))
    with dataset.Writer(folder, part_rows) as writer:
        writer.add_workloads([workload(1), workload(2)])
        for item in records:
            writer.add(item)
    return records


def test_round_trip_over_parts(tmp_path: Path) -> None:
    records = filled(tmp_path)
    read = dataset.read(tmp_path)
    assert list(read.records) == records
    assert read.workloads == {w.key: w for w in (workload(1), workload(2))}
    assert read.torn == ()
    assert len(list((tmp_path / "schedules").iterdir())) == 3
    assert read.records[0].latency_us == 2.0 and read.records[-1].latency_us is None


def test_appending_goes_on_and_repeats_are_dropped(tmp_path: Path) -> None:
    filled(tmp_path)
    again = dataclasses.replace(record(workload(1), 0, 7), latencies_us=(9.0,))
    with dataset.Writer(tmp_path) as writer:
        writer.add_workloads([workload(1), workload(3)])
        writer.add(again)
        writer.add(record(workload(3), 1))
    read = dataset.read(tmp_path)
    assert len(read.records) == 6 and read.records[0].latencies_us == (3.0, 1.0, 2.0)
    assert len(list((tmp_path / "workloads").iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_torn_part_is_left_out_and_named(damage: str, tmp_path: Path) -> None:
    records = filled(tmp_path)
    part = sorted((tmp_path / "schedules").iterdir())[0]
    content = {"cut": part.read_bytes()[:-20], "empty": b"", "text": b"not parquet"}[damage]
    part.write_bytes(content)
    read = dataset.read(tmp_path)
    assert list(read.records) == records[2:]
    assert read.torn == (str(part),)
    with dataset.Writer(tmp_path) as writer:  # numbering passes the torn part over
        writer.add(records[0])
    assert records[0] in dataset.read(tmp_path).records


def test_torn_workload_table_drops_its_records_only(tmp_path: Path) -> None:
    filled(tmp_path)
    with dataset.Writer(tmp_path) as writer:
        writer.add_workloads([workload(3)])
        writer.add(record(workload(3), 1))
    (tmp_path / "workloads" / "part-000001.parquet").write_bytes(b"")
    read = dataset.read(tmp_path)
    assert len(read.records) == 5 and len(read.torn) == 1


def test_two_writers_do_not_overwrite_each_other(tmp_path: Path) -> None:
    first, second = dataset.Writer(tmp_path, 1), dataset.Writer(tmp_path, 1)
    first.add_workloads([workload(1)])
    for i in range(4):
        (first, second)[i % 2].add(record(workload(1), i))
    assert len(dataset.read(tmp_path).records) == 4


def test_unfinished_part_is_invisible(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "schedules" / ".writing-1-abcd").write_bytes(b"PAR1")
    assert len(dataset.read(tmp_path).records) == 5 and not dataset.read(tmp_path).torn


def test_digest_ignores_parts_and_order_but_not_content(tmp_path: Path) -> None:
    filled(tmp_path / "a", part_rows=2)
    filled(tmp_path / "b", part_rows=99)
    filled(tmp_path / "c", n=4)
    digests = [dataset.read(tmp_path / name).digest for name in "abc"]
    assert digests[0] == digests[1] != digests[2]


def test_compact_keeps_everything(tmp_path: Path) -> None:
    records = filled(tmp_path / "a")
    dataset.compact(tmp_path / "a", tmp_path / "b")
    assert set(dataset.read(tmp_path / "b").records) == set(records)
    assert len(list((tmp_path / "b" / "schedules").iterdir())) == 1
    with pytest.raises(errors.OutputError, match="not empty"):
        dataset.compact(tmp_path / "a", tmp_path / "b")


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(errors.RecordError, match="not a data set"):
        dataset.read(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputError):
        dataset.Writer(tmp_path / "file")
    with dataset.Writer(tmp_path / "d") as writer:
        writer.add(record(workload(1), 1))
    with pytest.raises(errors.RecordError, match="not described"):
        dataset.read(tmp_path / "d")


@pytest.mark.parametrize(
    "change",
    [{"latencies_us": ()}, {"error": "build"}, {"measured_at": datetime.datetime(2026, 1, 1)}],
)
def test_contradictory_records_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(errors.RecordError):
        dataclasses.replace(record(workload(1), 1), **change)


class FakeFeaturizer:
    """trip_count = first decision (one row), plus one row per further sketch index."""

    version = 7
    digest = "d" * 64

    def __init__(self) -> None:
        self.calls = 0

    def names(self) -> tuple[str, ...]:
        return NAMES

    def rows(
        self, machine: Any, owner: dataset.Workload, sketch: tuple[int, str], batch: Any
    ) -> task_features.Rows | None:
        self.calls += 1
        if sketch[1] == "gone":
            return None
        values = np.repeat(batch[:, None, :2].astype(np.float32), sketch[0] + 1, axis=1)
        values[batch[:, 0] == 13] = np.nan
        return task_features.Rows(values, values[..., 0] > 0)


def test_features_are_padded_over_sketches_and_unusable_records_counted() -> None:
    owner = workload(1)
    base = record(owner, 2, 3)
    records = (
        base,
        dataclasses.replace(base, decisions=(13, 3)),
        dataclasses.replace(base, decisions=(0, 3)),
        dataclasses.replace(base, sketch=2, sketch_key="s2", decisions=(4, 5)),
        dataclasses.replace(base, sketch=1, sketch_key="gone"),
        record(owner, 6, 7, error="build"),
    )
    features = task_features.load_features(
        dataset.Dataset({owner.key: owner}, records), FakeFeaturizer()
    )
    (task,) = features.tasks
    assert features.skipped == 3 and features.names == NAMES and features.version == 7
    assert task.rows.shape == (3, 3, 2) and task.mask.sum(axis=1).tolist() == [1, 1, 3]
    assert task.rows[0].tolist() == [[2, 3], [0, 0], [0, 0]]
    assert task.measured.tolist() == [True, False, True]
    assert task.ln_latency[0] == pytest.approx(math.log(2.0))
    assert task.errors == (None, "build", None)


def test_tasks_are_separated_by_target_and_device_and_failures_alone_are_no_task() -> None:
    first, second = workload(1), workload(2)
    base = record(first, 2, 3)
    records = (
        base,
        dataclasses.replace(base, device="other"),
        dataclasses.replace(base, target="cuda"),
        record(second, 2, 3, error="launch"),
    )
    known = {w.key: w for w in (first, second)}
    features = task_features.load_features(dataset.Dataset(known, records), FakeFeaturizer())
    assert len(features.tasks) == 3
    with pytest.raises(errors.RecordError, match="no usable schedule"):
        task_features.load_features(dataset.Dataset(known, records[3:]), FakeFeaturizer())


def test_cache_saves_computing_and_survives_damage(tmp_path: Path) -> None:
    owner = workload(1)
    read = dataset.Dataset({owner.key: owner}, (record(owner, 2, 3), record(owner, 3, 3)))
    counting = FakeFeaturizer()
    first = task_features.load_features(read, counting, tmp_path)
    again = task_features.load_features(read, counting, tmp_path)
    assert counting.calls == 1
    assert np.array_equal(first.tasks[0].rows, again.tasks[0].rows)
    (entry,) = (tmp_path / "v7-dddddddddddd").iterdir()
    entry.write_bytes(entry.read_bytes()[:30])
    task_features.load_features(read, counting, tmp_path)
    assert counting.calls == 2
    counting.version = 8
    task_features.load_features(read, counting, tmp_path)
    assert counting.calls == 3
    counting.digest = "e" * 64
    task_features.load_features(read, counting, tmp_path)
    assert counting.calls == 4


DIVISORS = (1, 2, 3, 4, 6, 12)
VARIABLES = (
    *(Variable(f"t{i}", "tile", DIVISORS, 0, 12, i, False, True) for i in range(2)),
    Variable("u", "choice", (0, 16, 64), 1, None, 0, False, False),
    Variable("c", "choice", (-1, 0), 2, None, 0, True, False),
)


class FakeFormulas:
    names = NAMES

    def constraints_exact(self, batch: np.ndarray) -> np.ndarray:
        return (batch[:, 1:2] - 6).astype(np.float64)  # second tile part at most 6

    def exact(self, batch: np.ndarray) -> np.ndarray:
        return batch[:, None, :2].astype(np.float64)


class FakeSketch:
    """A tiling of 12 into two parts, an unroll step, a compute location."""

    variables = VARIABLES
    formulas = FakeFormulas()

    def __init__(self, index: int, invalid: bool = False) -> None:
        self.index = index
        self.invalid = invalid

    @property
    def key(self) -> str:
        return f"sketch-{self.index}"

    def sample(self, n: int, seed: int) -> np.ndarray:
        draws = np.random.default_rng(seed)
        inner = draws.choice((1, 2, 3, 4, 6), n)
        return np.stack(
            [12 // inner, inner, draws.choice((0, 16, 64), n), draws.choice((-1, 0), n)], axis=1
        )

    def schedule(self, row: np.ndarray) -> Any:
        if self.invalid:
            raise errors.InvalidSchedule
        return type("Schedule", (), {"mod": (self.index, *map(int, row))})()


def speed(mod: tuple[int, ...]) -> float:
    return 10.0 + abs(mod[1] - 4) + mod[3] / 64


@dataclasses.dataclass
class Bench:
    """Measures fake modules at once; `answer` decides."""

    answer: Callable[[tuple[int, ...]], float | protocol.ErrorClass] = speed
    submitted: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    opened: list[str] = dataclasses.field(default_factory=list)
    sketches: tuple[FakeSketch, ...] = (FakeSketch(0), FakeSketch(1))
    holding: int = 0

    def submit(self, mod: tuple[int, ...]) -> Future[protocol.Measurement]:
        self.submitted.append(mod)
        future: Future[protocol.Measurement] = Future()
        outcome = self.answer(mod)
        if isinstance(outcome, protocol.ErrorClass):
            future.set_result(protocol.Measurement(error=outcome, message="no", device="bench"))
        else:
            future.set_result(protocol.Measurement.timed([outcome, outcome], device="bench"))
        return future

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        self.holding += 1
        yield

    def open(self, owner: dataset.Workload) -> proposals.OpenWorkload:
        self.opened.append(owner.name)
        return proposals.OpenWorkload(owner, self.sketches, self.submit, self.computing)

    def run(
        self, folder: Path, owners: list[dataset.Workload], **kwargs: Any
    ) -> collector.Progress:
        clock = kwargs.pop("clock", lambda: 0.0)
        predict = kwargs.pop("predict", None)
        report = kwargs.pop("report", None)
        with dataset.Writer(folder, 4) as writer:
            known = dataset.read(folder).records
            writer.add_workloads(owners)
            settings = proposals.CollectOptions("llvm", "0.27", **{"turn": 4, **kwargs})
            return collector.collect(
                self.open, owners, writer, known, settings, clock, lambda: TIME, predict, report
            )


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
    bench.run(tmp_path, [workload(i) for i in range(9)], per_workload=8, seconds=3.5,
              clock=lambda: float(next(times)))  # fmt: skip
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
    from costmodel.data import felix_bridge
    from felix import workloads

    made = [felix_bridge.workload(line) for line in workloads_cpu.lines(workloads_cpu.LLVM)]
    assert len(made) >= 48 and len({w.key for w in made}) == len(made)
    assert {w.operator for w in made} == set(workloads.OPERATORS)
    assert max(w.flops for w in made) <= 125e6
    rebuilt = felix_bridge.task_of(made[0], "llvm")
    assert rebuilt.flops == made[0].flops and rebuilt.name == made[0].name


def test_lines_drop_comments_blanks_and_repeats() -> None:
    assert workloads_cpu.lines("a:1 # one\n\n# two\nb:2\na:1\n") == ["a:1", "b:2"]
