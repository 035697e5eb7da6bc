"""A store full of finished jobs, for the response times of the service.

The first job is written through the verbs that tuners use; the others are copies of its rows,
because writing 100,000 trials one by one would take minutes.
"""

from __future__ import annotations

import pathlib
import tempfile

import sqlalchemy as sa
from sqlalchemy import orm

from felix.database import records
from felix.runner import protocol
from server.database import database, models
from server.store import artifacts, blobs, jobs, leases, progress, trials, tuners

TARGET_KEYS = ["llvm", "llvm/benchmark"]
#: Tables whose rows are copied for each job.
COPIED: tuple[type[models.Base], ...] = (
    models.Task,
    models.Trial,
    models.Round,
    models.Training,
    models.Event,
)


def fill(db: database.Database, store: blobs.BlobStore, n_jobs: int, n_trials: int) -> None:
    """Write `n_jobs` jobs of `n_trials` trials; every second one has the tag `even`."""
    first = finished_job(db, store, n_trials)
    with db.write() as tx:
        for number in range(2, n_jobs + 1):
            copy = _copy_job(tx, first, number)
            for table in COPIED:
                _copy_rows(tx, table, first, copy)
            if number % 2 == 0:
                tx.execute(sa.insert(models.JobTag).values(job_id=copy, tag="even"))
    with db.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql("ANALYZE")


def finished_job(db: database.Database, store: blobs.BlobStore, n_trials: int) -> int:
    """Number of a job that succeeded: every fourth trial failed, the others got faster."""
    claim = claimed(db)
    with db.write() as tx:
        _tune(tx, claim.fence, n_trials)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "bundle.zip")
        path.write_bytes(b"PK of a job")
        stored = store.put(path)
    artifact = artifacts.NewArtifact(
        name="job.zip",
        kind="bundle",
        media_type="application/zip",
        sha256=stored.sha256,
        size_bytes=stored.size_bytes,
    )
    with db.write() as tx:
        artifacts.add(tx, claim.fence, artifact)
        artifacts.keep_code(tx, claim.fence, 0, "def main(): ...", "; llvm")
        leases.succeed(tx, claim.fence, "trials")
    return claim.job.id


def claimed(db: database.Database) -> leases.Claim:
    """A new job of a new tuner, in a database where no other one waits."""
    with db.write() as tx:
        jobs.create(tx, _new_job(), None)
        claim = leases.claim(tx, tuners.register(tx, _new_worker()), TARGET_KEYS, 60.0)
    assert claim is not None
    return claim


def begin(tx: orm.Session, fence: leases.Fence) -> None:
    """What a tuner writes before the first trial."""
    leases.begin(tx, fence, "llvm/benchmark", '{"kind":"llvm"}')
    progress.started(tx, fence, ["key"], {"model": "analytic", "trials": 16})
    progress.opened(tx, fence, 0, 2, 0.5)


def _tune(tx: orm.Session, fence: leases.Fence, n_trials: int) -> None:
    """Everything that a tuner writes while it tunes."""
    begin(tx, fence)
    progress.baseline(tx, fence, 0, 1000.0, "")
    counts = {"n_candidates": 4, "n_invalid": 1, "predicted_us": 40.0, "elapsed_s": 1.0}
    steps = [
        {"step": i, "temperature": 1.0 / (i + 1), "loss": 3.0 - i, "penalty": 0.1}
        for i in range(3)
    ]
    progress.round_started(tx, fence, 0, 0, counts, steps)
    for number in range(n_trials):
        trials.append(tx, fence, new_trial(number))
    training = {"n_records": n_trials, "loss_before": 0.5, "loss_after": 0.25}
    progress.trained(tx, fence, {**training, "accepted": True})
    breakdown = {"search_s": 1.0, "measure_s": 2.0}
    progress.save(tx, fence, progress.Checkpoint(n_trials, {}, None), 20.0, breakdown)


def _new_job() -> jobs.NewJob:
    task = jobs.NewTask(name="task-0", weight=1.0, flops=1e6, min_bytes=1e3, program="program 0")
    return jobs.NewJob(
        name="a job",
        kind="operator",
        op="gemm",
        workload={"params": {"m": 8}},
        target="llvm",
        target_key="llvm",
        tasks=(task,),
        trials=16,
        seconds=None,
        strategy="gradient",
    )


def _new_worker() -> tuners.NewWorker:
    device = {
        "name": "benchmark cpu",
        "kind": "llvm",
        "target_keys": TARGET_KEYS,
        "target": {"kind": "llvm"},
        "hardware": {"cores": 2},
        "model": None,
    }
    return tuners.NewWorker(
        name="tuner", host="here", pid=7, versions={"felix": "0"}, devices=[device]
    )


def new_trial(number: int) -> models.Trial:
    """The row of a trial of that number."""
    latency_us = None if number % 4 == 3 else 100.0 / (number + 1)
    measurement = protocol.Measurement(
        latency_us=latency_us,
        error=None if latency_us is not None else protocol.ErrorClass.BUILD,
        checked=True,
        spread=0.1,
        build_s=0.5,
        run_s=0.25,
        device="test",
    )
    trial = records.Trial(
        task_key="k",
        task_name="t",
        sketch_index=0,
        sketch_key="s",
        decisions=(number, 2),
        measurement=measurement,
        predicted_us=None if latency_us is None else latency_us * 1.25,
        round=number // 4,
        elapsed_s=number + 1.0,
        versions={},
    )
    return trials.row(0, trial.to_json())


def _copy_job(tx: orm.Session, source_id: int, number: int) -> int:
    table = models.Job.__table__
    names = [column.name for column in table.columns if column.name not in ("id", "name")]
    columns = sa.select(sa.literal(f"copy {number}"), *(table.c[name] for name in names))
    statement = sa.insert(table).from_select(
        ["name", *names], columns.where(table.c.id == source_id)
    )
    tx.execute(statement)
    return int(tx.scalar(sa.select(sa.func.max(table.c.id))))


def _copy_rows(tx: orm.Session, model: type[models.Base], source_id: int, copy_id: int) -> None:
    table = model.__table__
    names = [column.name for column in table.columns if column.name != "job_id"]
    columns = sa.select(sa.literal(copy_id), *(table.c[name] for name in names))
    rows = columns.where(table.c.job_id == source_id)
    tx.execute(sa.insert(table).from_select(["job_id", *names], rows))
