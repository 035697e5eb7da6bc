"""The store of known results, adapting schedules, databases of MetaSchedule."""

from __future__ import annotations

import dataclasses
import pathlib
import sys

import numpy as np
import pytest
from tvm import te, topi

from felix import errors, sketches, workloads
from felix.builder import payload
from felix.database import databases, metaschedule_files, outcome, store
from felix.task import Task
from tests.support import warm

TARGET = "llvm -num-cores 2"


def _gemm(m: int = 16, n: int = 32, k: int = 8) -> Task:
    return workloads.gemm(m, n, k, target=TARGET)


def _tuned(task: Task, latency_us: float = 5.0, seed: int = 0) -> outcome.KnownResult:
    """An outcome whose schedule is drawn."""
    sketch = sketches(task)[0]
    (row,) = sketch.sample(1, seed=seed)
    return outcome.KnownResult(
        tuned_us=latency_us,
        program=payload.of(sketch.program(row), task.target),
        schedule=outcome.Schedule(
            sketch_key=sketch.key,
            sketch_index=sketch.index,
            variant=str(sketch.variant),
            decisions=outcome.decided(sketch.variables, row),
        ),
        default_us=50.0,
        n_trials=3,
    )


def test_found_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "known.sqlite"
    result = _tuned(_gemm())
    store.Store(path).add(_gemm(), result)
    assert store.Store(path).find(_gemm()) == result
    assert store.Store(path).find(_gemm(m=17)) is None


def test_the_faster_schedule_stays(tmp_path: pathlib.Path) -> None:
    known = store.Store(tmp_path / "known.sqlite")
    fast, slow = _tuned(_gemm(), 4.0), dataclasses.replace(_tuned(_gemm(), 8.0), default_us=20.0)
    known.add(_gemm(), fast)
    merged = known.add(_gemm(), slow)
    assert merged.tuned_us == 4.0 and merged.schedule == fast.schedule
    assert merged.default_us == 20.0 and merged.n_trials == 6
    assert known.find(_gemm()) == merged
    failed = outcome.KnownResult(failure="no schedule ran")
    assert known.add(_gemm(), failed).tuned_us == 4.0


def test_stored_program_is_the_measured_one(tmp_path: pathlib.Path) -> None:
    task = _gemm()
    sketch = sketches(task)[0]
    (row,) = sketch.sample(1, seed=0)
    program = _tuned(task).read_program()
    assert program.script() == sketch.program(row).script()


def test_many_writers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "known.sqlite"
    script = (
        "import sys; from felix import workloads; from felix.database import outcome, store;"
        "known = store.Store(sys.argv[1]);"
        f"task = workloads.gemm(16, 32, 8, target={TARGET!r});"
        "result = outcome.KnownResult(failure='none', n_trials=1);"
        "[(known.add(task, result), store.enqueue(known, [(task, None)])) for _ in range(10)];"
        "store.enqueue(known, [(task, 'f')])"
    )
    writers = [warm.Popen([sys.executable, "-c", script, str(path)], warm=True) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    result = store.Store(path).find(_gemm())
    assert result.n_trials == 20
    (waiting,) = store.queued(store.Store(path))
    assert waiting.n_requests == 22 and waiting.form == "f"


def test_a_file_that_is_no_store(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "known.sqlite"
    path.write_text("this is no database, and it is longer than a header of SQLite is " * 3)
    with pytest.raises(errors.RecordError, match="cannot be used"):
        store.Store(path).find(_gemm())


def test_place_from_the_environment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "a.sqlite"))
    assert store.Store().path == tmp_path / "a.sqlite"
    monkeypatch.delenv(store.VARIABLE)
    monkeypatch.setenv("FELIX_CACHE_DIR", str(tmp_path))
    assert store.Store().path == tmp_path / "known-results.sqlite"


def test_families() -> None:
    assert outcome.family(_gemm()) == outcome.family(_gemm(m=24, n=48, k=16))
    assert outcome.family(_gemm()) != outcome.family(
        workloads.gemm(16, 32, 8, epilogue="relu", target=TARGET)
    )
    assert outcome.family(_gemm()) != outcome.family(workloads.softmax([16, 32], target=TARGET))


def test_a_batch_of_one_is_of_the_same_family() -> None:
    """A bias of extent 1 along the batch has the index of the result there, elsewhere 0."""

    def biased(batch: int) -> Task:
        x = te.placeholder((batch, 8, 4, 4), name="x")
        bias = te.placeholder((1, 8, 1, 1), name="bias")
        return Task.from_te([x, bias, topi.add(x, bias)], target=TARGET)

    one, several = biased(1), biased(16)
    assert "bias[v_ax0" in str(one.mod) and "bias[v_ax0" not in str(several.mod)
    assert outcome.family(one) == outcome.family(several)


def test_adapted_schedules_are_legal(tmp_path: pathlib.Path) -> None:
    known = store.Store(tmp_path / "known.sqlite")
    result = _tuned(_gemm())
    known.add(_gemm(), result)
    other = _gemm(m=48, n=32, k=24)
    (similar,) = known.similar(other)
    every = sketches(other)
    candidates = outcome.first_schedules([similar], every)
    assert candidates
    by_key = {sketch.key: sketch for sketch in every}
    for key, row in candidates:
        assert by_key[key].schedule(row).mod is not None
    nearest = candidates[0][1]
    for variable, decision, before in zip(
        every[0].variables, nearest, result.schedule.row, strict=True
    ):
        if variable.extent == 32:  # the extent that both have keeps its tiling
            assert decision == before
    assert known.similar(_gemm()) == []


def test_databases_of_metaschedule(tmp_path: pathlib.Path) -> None:
    known = store.Store(tmp_path / "known.sqlite")
    task = _gemm()
    known.add(task, _tuned(task, 7.0))
    assert databases.export(known, tmp_path / "database") == 1
    (entry,) = metaschedule_files.import_database(tmp_path / "database")
    assert np.isclose(entry.latencies_us[0], 7.0)
    database = databases.Database(tmp_path / "database")
    (schedule,) = database.schedules(task, sketches(task))
    stored = known.find(task)
    assert stored.schedule is not None
    assert schedule == (stored.schedule.sketch_key, stored.schedule.row)
    assert database.schedules(_gemm(m=8), sketches(_gemm(m=8))) == []
    assert database.schedules(task, sketches(task)) == [schedule]  # read once
    with pytest.raises(errors.RecordError):
        databases.Database(tmp_path)
