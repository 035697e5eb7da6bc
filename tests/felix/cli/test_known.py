"""`felix known`: what is known as a MetaSchedule database."""

from __future__ import annotations

import json
import pathlib

import pytest

from felix import records, sketches, workloads
from felix.cli import main
from felix.known_results import outcome, store
from felix.measure import payload


def test_known_results_become_a_database(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = workloads.gemm(16, 32, 8, target="llvm -num-cores 2")
    sketch = sketches(task)[0]
    (row,) = sketch.sample(1, seed=0)
    known = store.Store(tmp_path / "known.sqlite")
    schedule = outcome.Schedule(
        sketch_key=sketch.key,
        sketch_index=sketch.index,
        variant=str(sketch.variant),
        decisions=outcome.decided(sketch.variables, row),
    )
    program = payload.of(sketch.program(row), task.target)
    known.add(task, outcome.Outcome(tuned_us=7.0, program=program, schedule=schedule))
    out = str(tmp_path / "database")
    assert main.main(["known", out, "--known-results", str(known.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schedules": 1, "out": out}
    (entry,) = records.import_database(out)
    assert entry.latencies_us == pytest.approx([7.0])


def test_nothing_known_is_an_error(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none.sqlite"
    assert main.main(["known", str(tmp_path / "out"), "--known-results", str(file)]) == 1
    assert "nothing is known" in capsys.readouterr().err
    assert not file.exists() and not (tmp_path / "out").exists()
