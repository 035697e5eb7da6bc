"""Jobs as tuners leave them, written through the verbs that tuners use."""

from __future__ import annotations

import io
import pathlib
import tempfile
import zipfile
from typing import Any

from server.database import database
from server.store import artifacts, blobs, control, events, jobs, leases, progress, rows, trials
from tests.support import service_fakes

DEVICE = {
    "name": "test cpu",
    "kind": "llvm",
    "target_keys": service_fakes.TARGET_KEYS,
    "target": {"kind": "llvm"},
    "hardware": {"cores": 2},
    "model": None,
}

#: What the one artifact holds.
CONTENT = b"PK of a job"


def tuner(db: database.Database, name: str = "tuner") -> int:
    """A tuner that is alive."""
    return service_fakes.write(db, service_fakes.worker_row, name, DEVICE)


def queued(db: database.Database, key_id: int | None = None, **changes: Any) -> rows.Job:
    """A job that waits."""
    return service_fakes.create(db, key_id=key_id, **changes)


def running(
    db: database.Database, key_id: int | None = None, n_trials: int = 12, **changes: Any
) -> leases.Claim:
    """A job in the middle of tuning: every fourth trial fails, the others get faster."""
    job = queued(db, key_id, **changes)
    worker = tuner(db)
    with db.write() as tx:
        control.change(tx, job.id, priority=999)  # it is the one to be claimed
        claim = leases.claim(tx, worker, service_fakes.TARGET_KEYS, 60.0)
        assert claim is not None and claim.job.id == job.id
        leases.begin(tx, claim.fence, "llvm/test", '{"kind":"llvm"}')
        progress.started(tx, claim.fence, ["key"], {"model": "analytic", "trials": 16})
        progress.opened(tx, claim.fence, 0, 2, 0.5)
        progress.baseline(tx, claim.fence, 0, 1000.0, "")
        counts = {"n_candidates": 4, "n_invalid": 1, "predicted_us": 40.0, "elapsed_s": 1.0}
        steps = [
            {"step": i, "temperature": 1.0 / (i + 1), "loss": 3.0 - i, "penalty": 0.1}
            for i in range(3)
        ]
        progress.round_started(tx, claim.fence, 0, 0, counts, steps)
        for number in range(n_trials):
            latency = None if number % 4 == 3 else 100.0 / (number + 1)
            predicted = None if latency is None else latency * 1.25
            new = service_fakes.new_trial(number, latency, predicted_us=predicted)
            trials.append(tx, claim.fence, new)
        training = {"n_records": n_trials, "loss_before": 0.5, "loss_after": 0.25}
        progress.trained(tx, claim.fence, {**training, "accepted": True})
        progress.save(
            tx,
            claim.fence,
            progress.Checkpoint(n_trials, {}, None),
            20.0,
            {"search_s": 1.0, "measure_s": 2.0},
        )
    return claim


def finished(
    db: database.Database,
    store: blobs.BlobStore,
    key_id: int | None = None,
    n_trials: int = 12,
    **changes: Any,
) -> rows.Job:
    """A job that succeeded, with an artifact."""
    claim = running(db, key_id, n_trials, **changes)
    new = service_fakes.artifact(service_fakes.put(store, CONTENT), "job.zip")
    with db.write() as tx:
        artifacts.add(tx, claim.fence, new)
        code = artifacts.Code(task=0, schedule="def main(): ...", source="; llvm")
        artifacts.store_code(tx, claim.fence, code)
        leases.succeed(tx, claim.fence, "trials")
    return service_fakes.read(db, jobs.get, claim.job.id)


def all_events(db: database.Database, job_id: int) -> list[rows.Event]:
    """Every event of a job."""
    return service_fakes.read(db, events.after, job_id, 0, 10_000)


def tuned_zip(m: int = 32, latency_us: float = 3.0) -> bytes:
    """The zip of a job that tuned a gemm: its database, and a manifest that says nothing."""
    from felix import workloads  # which load TVM
    from felix.database import metaschedule_files  # which load TVM
    from felix.tuning import task_search

    task = workloads.gemm(m, 32, 32, target="llvm -num-cores 2")
    sketch = task_search.sketches_of(task)[0]
    schedule = sketch.schedule(tuple(int(v) for v in sketch.sample(1, seed=1)[0]))
    entry = metaschedule_files.DatabaseEntry(
        mod=task.mod, trace=schedule.trace, latencies_us=(latency_us,), target=task.target
    )
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(out, "w") as archive:
        metaschedule_files.export_database(folder, [entry])
        for path in pathlib.Path(folder).iterdir():
            archive.write(path, f"felix-job-1/database/{path.name}")
        archive.writestr("felix-job-1/manifest.json", "{}")
    return out.getvalue()
