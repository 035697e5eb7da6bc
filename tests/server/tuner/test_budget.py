"""A job takes the seconds that it was given, artifacts included."""

from __future__ import annotations

import json
import pathlib
import zipfile
from typing import Any
from unittest import mock

import pytest

import felix
from felix import errors
from felix.network import deadline as deadlines
from felix.tuning import options, results
from server.database import database
from server.store import events, networks
from server.tuner import artifacts, budget, felix_engine
from tests.support import run_py, service_fakes, service_kill_child, tuning_fakes, waiting

TARGET = "llvm -num-cores 1"
LATE = deadlines.Deadline(0.0, 1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What deadlines take for the time."""
    return waiting.clock(monkeypatch)


def budget_of(clock: list[float], seconds: float | None, **changes: Any) -> budget.Budget:
    fields: dict[str, Any] = {"kind": "llvm", "n_tasks": 10, "n_groups": 12} | changes
    return budget.Budget(deadline=deadlines.Deadline(clock[0], seconds), **fields)


def tuned(n_tasks: int) -> results.NetworkResult:
    """So many products, the last one the largest, whose candidates nobody ran."""
    extents = [16 * (number + 1) for number in range(n_tasks)]
    tasks = [felix.workloads.gemm(extent, extent, extent, target=TARGET) for extent in extents]
    chosen = options.TuneOptions(round_size=2, pool=lambda task: tuning_fakes.Pool())
    return felix.tune(tasks, trials=2 * n_tasks, options=chosen)


def test_seconds_are_shared_out(clock: list[float]) -> None:
    whole = budget_of(clock, 300.0)
    tasks_alone = budget_of(clock, 300.0, n_groups=0)
    assert whole.tuning_s is not None and tasks_alone.tuning_s is not None
    assert 150.0 < whole.tuning_s < tasks_alone.tuning_s < 300.0
    large = budget_of(clock, 300.0, n_bytes=10**9)
    assert large.tuning_s is not None and large.tuning_s < whole.tuning_s
    for n_groups in (0, 1000):  # at least half, and most of it where there is no network
        few = budget_of(clock, 10.0, n_tasks=1000, n_groups=n_groups)
        assert few.tuning_s == (5.0 if n_groups else 8.0)


def test_what_follows_tuning_ends_in_time(clock: list[float]) -> None:
    """The artifacts of tasks leave time for the network, which may be a little late."""
    made = budget_of(clock, 300.0)
    assert made.can_write() and made.can_build()
    clock[0] += 299.0
    assert not made.can_write() and made.can_build()
    clock[0] += 30.0
    assert not made.can_build()


def test_trials_alone_cut_nothing(clock: list[float]) -> None:
    made = budget_of(clock, None)
    clock[0] += 1e6
    assert made.tuning_s is None and made.can_write() and made.can_build()


def test_earlier_turns_count(clock: list[float]) -> None:
    claimed: Any = mock.Mock(job=mock.Mock(elapsed_s=20.0, seconds=30.0, workload={}))
    claimed.n_groups.return_value = 0
    begun_s = clock[0]
    clock[0] += 3.0
    task = felix.workloads.gemm(64, 64, 64, target=TARGET)
    assert budget.of(claimed, [task], begun_s).deadline.left_s == pytest.approx(7.0)


def test_a_run_has_what_the_artifacts_leave(
    db: database.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning_fakes.use_cheap(monkeypatch.setattr)
    task = felix.workloads.gemm(64, 64, 64, target=TARGET)
    job = service_fakes.create_for(db, task, target=TARGET, seconds=30.0, trials=4)
    service_fakes.write(db, networks.create, job.id, *service_fakes.network())
    tune = mock.Mock(side_effect=felix.tune)
    monkeypatch.setattr(felix_engine.felix, "tune", tune)
    outcome = service_kill_child.FakeDeviceEngine().run(service_fakes.claim_next(db))
    _, made = outcome.result
    assert tune.call_args.kwargs["seconds"] == made.tuning_s < 30.0
    assert made.deadline.seconds == 30.0 and made.n_groups == 2


@pytest.mark.slow("tunes several tasks")
def test_tasks_that_there_is_no_time_for_are_left_out(
    db: database.Database, tmp_path: pathlib.Path
) -> None:
    """The hottest one is written; the log, the manifest and `run.py` say what is missing."""
    network = tuned(3)
    job_id = service_fakes.create(db, n_tasks=3).id
    claimed = service_fakes.claim_next(db)
    late = budget.Budget(deadline=LATE, kind="llvm", n_tasks=3)
    (code,) = artifacts.write(network, claimed, tmp_path / "artifact.zip", late)
    by_us = [each.task.weight * each.best.latency_us for each in network.results]
    hottest = by_us.index(max(by_us))
    assert code.task == hottest
    (warning,) = service_fakes.read(db, events.after, job_id, kinds=[events.Type.WARNING])
    assert "2 of 3 tasks are not in the artifact" in warning.payload["message"]
    with zipfile.ZipFile(tmp_path / "artifact.zip") as archive:
        archive.extractall(tmp_path)
    (home,) = (each for each in tmp_path.iterdir() if each.is_dir())
    manifest = json.loads((home / "manifest.json").read_text())
    for number, entry in enumerate(manifest["tasks"]):
        assert (entry["folder"] is None) == (number != hottest)
        assert (entry["left_out"] is None) == (number == hottest)
        assert entry["latency_us"] == network.results[number].best.latency_us
    done = run_py.run(home, "--repeats", "1")
    assert done.returncode == 0 and done.stderr.count("there was no time") == 2


def test_a_network_that_there_is_no_time_to_build_is_left_out(
    db: database.Database, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service_fakes.create(db)
    monkeypatch.setattr(artifacts, "_read_network", lambda *arguments: (mock.Mock(), []))
    late = budget.Budget(deadline=LATE, kind="llvm", n_tasks=1, n_groups=1)
    claimed = service_fakes.claim_next(db)
    with pytest.raises(errors.TuningError, match="not built: there was no time: give the job"):
        artifacts.write_network(mock.Mock(), claimed, tmp_path / "net.zip", late, runs_here=True)
    assert not (tmp_path / "net.zip").exists()
