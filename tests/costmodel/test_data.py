"""The data set on disk, and features of its schedules."""

from __future__ import annotations

import dataclasses
import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.data import dataset
from costmodel.data import features as task_features
from felix import errors
from felix.features.kind import FeatureKind
from tests.support.collect_fakes import NAMES, TIME, workload


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

    kind = FeatureKind.TRACE
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
    assert task.errors == (None, "build", None) and task.sources == ("random",) * 3


def test_schedules_of_some_sources() -> None:
    owner, other = workload(1), workload(2)
    records = [
        dataclasses.replace(record(owner, n + 1, 3), source=source)
        for n, source in enumerate(("descent", "random", "neighbour", "random"))
    ]
    records.append(dataclasses.replace(record(other, 2, 3), source="descent"))
    workloads = {owner.key: owner, other.key: other}
    data = dataset.Dataset(workloads, tuple(records))
    tasks = task_features.load_features(data, FakeFeaturizer()).tasks
    (task,) = task_features.of_sources(tasks, ["random", "neighbour"])
    assert task.name == owner.name and task.rows[:, 0, 0].tolist() == [2, 3, 4]
    assert task.sources == ("random", "neighbour", "random") and len(task.errors) == 3
    assert [len(t.rows) for t in task_features.of_sources(tasks, ["descent"])] == [1, 1]
    with pytest.raises(errors.RecordError, match="chosen by model"):
        task_features.of_sources(tasks, ["model"])


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
