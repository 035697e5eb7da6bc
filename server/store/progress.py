"""What a tuner writes of a job besides trials: rounds, training, baselines, checkpoints, times.

All writes need the fence.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm

from server.database import columns, models
from server.store import events, leases, rows, statements, trials


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a search (JSON-able), and the cost model's tensors (safetensors)."""

    n_records: int
    state: dict[str, Any]
    tensors: bytes | None


def warn(tx: orm.Session, fence: leases.Fence, message: str) -> None:
    """Write something a person should know.

    Raises:
        LeaseLost
    """
    leases.lock_job(tx, fence)
    events.append(tx, fence.job_id, events.Type.WARNING, {"message": message})


def started(
    tx: orm.Session, fence: leases.Fence, task_keys: Sequence[str], payload: Mapping[str, Any]
) -> None:
    """Tuning begins or goes on: which model, which task keys, which versions of software.

    Raises:
        LeaseLost
    """
    job = leases.lock_job(tx, fence)
    job.model = str(payload.get("model"))
    versions = payload.get("versions")
    is_first = job.versions is None and job.n_trials == 0
    job.versions = versions if is_first or job.versions == versions else {}
    for number, key in enumerate(task_keys):
        _change_task(tx, job.id, number, task_key=key)
    tx.flush()
    events.append(tx, job.id, events.Type.STARTED, payload)


def opened(
    tx: orm.Session,
    fence: leases.Fence,
    task: int,
    n_sketches: int,
    extract_s: float,
    decisions: Mapping[str, Sequence[tuple[str, int]]] | None = None,
) -> None:
    """The sketches of a task are ready; `decisions` are labels by number of a sketch.

    Raises:
        LeaseLost
    """
    job = leases.lock_job(tx, fence)
    labels = None if decisions is None else dict(decisions)
    _change_task(tx, job.id, task, n_sketches=n_sketches, decisions=labels)
    payload = {"task": task, "n_sketches": n_sketches, "extract_s": extract_s}
    events.append(tx, job.id, events.Type.OPENED, payload)


def baseline(
    tx: orm.Session, fence: leases.Fence, task: int, latency_us: float | None, message: str
) -> None:
    """The unscheduled program of a task was timed.

    Raises:
        LeaseLost
    """
    job = leases.lock_job(tx, fence)
    _change_task(tx, job.id, task, unscheduled_us=latency_us, unscheduled_message=message)
    job.unscheduled_us = trials.weighted(tx, job.id, models.Task.unscheduled_us)
    tx.flush()
    payload = {"task": task, "latency_us": latency_us, "message": message}
    events.append(tx, job.id, events.Type.BASELINE, payload)


def chosen(
    tx: orm.Session,
    fence: leases.Fence,
    task: int,
    tuned_us: float | None,
    unscheduled_us: float,
    ships_unscheduled: bool,
) -> None:
    """What ships of a task at the end; its best latency is then of that.

    Raises:
        LeaseLost
    """
    job = leases.lock_job(tx, fence)
    best_us = unscheduled_us if ships_unscheduled else tuned_us
    ships = {"unscheduled_us": unscheduled_us, "ships_unscheduled": ships_unscheduled}
    _change_task(tx, job.id, task, best_us=best_us, **ships)
    job.best_us = trials.weighted(tx, job.id, models.Task.best_us)
    job.unscheduled_us = trials.weighted(tx, job.id, models.Task.unscheduled_us)
    where = (models.Task.job_id == job.id, models.Task.ships_unscheduled.is_(True))
    job.n_unscheduled = statements.count(tx, models.Task, *where)
    tx.flush()
    payload = {
        "task": task,
        "ships_unscheduled": ships_unscheduled,
        "tuned_us": tuned_us,
        "unscheduled_us": unscheduled_us,
        "curve_us": job.best_us,
    }
    events.append(tx, job.id, events.Type.CHOSEN, payload)


def round_started(
    tx: orm.Session,
    fence: leases.Fence,
    task: int,
    number: int,
    counts: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
) -> None:
    """Candidates of a round were chosen: n_candidates, n_invalid, predicted_us, elapsed_s.

    A round that a killed tuner began is replaced by the one that really was measured.

    Raises:
        LeaseLost
    """
    job = leases.lock_job(tx, fence)
    values = {**counts, "steps": [dict(step) for step in steps]}
    tx.merge(models.Round(job_id=job.id, task=task, round=number, **values))
    _change_task(tx, job.id, task, n_rounds=number + 1)
    payload = {"task": task, "round": number, **counts}
    events.append(tx, job.id, events.Type.ROUND, payload)


def trained(tx: orm.Session, fence: leases.Fence, values: Mapping[str, Any]) -> None:
    """The cost model was fine-tuned: n_records, loss_before, loss_after, accepted.

    Raises:
        LeaseLost
    """
    job = leases.lock_job(tx, fence)
    tx.merge(models.Training(job_id=job.id, at=columns.db_now(), **values))
    events.append(tx, job.id, events.Type.TRAINED, values)


def save(
    tx: orm.Session,
    fence: leases.Fence,
    checkpoint: Checkpoint,
    elapsed_s: float,
    breakdown: Mapping[str, Any],
) -> None:
    """Replace the checkpoint; note the time spent so far, by part.

    Raises:
        LeaseLost
    """
    job = leases.lock_job(tx, fence)
    text = json.dumps(checkpoint.state, separators=(",", ":"))
    packed = zlib.compress(text.encode(), 3)
    tx.merge(
        models.Checkpoint(
            job_id=job.id,
            n_records=checkpoint.n_records,
            at=columns.db_now(),
            state=packed,
            tensors=checkpoint.tensors,
        )
    )
    job.elapsed_s, job.breakdown = max(job.elapsed_s, elapsed_s), dict(breakdown)
    tx.flush()
    size = len(packed) + len(checkpoint.tensors or b"")
    payload = {"n_records": checkpoint.n_records, "bytes": size}
    events.append(tx, job.id, events.Type.CHECKPOINT, payload)


def checkpoint(tx: orm.Session, job_id: int) -> Checkpoint | None:
    """The last checkpoint of a job; None if there is none."""
    stored = tx.get(models.Checkpoint, job_id)
    if stored is None:
        return None
    state = json.loads(zlib.decompress(stored.state))
    return Checkpoint(stored.n_records, state, stored.tensors)


def rounds(
    tx: orm.Session, job_id: int, task: int | None = None, after: int = -1, limit: int = 200
) -> list[rows.Round]:
    """Rounds with their descent steps, by task and number; of one task, those after a number."""
    row = models.Round
    query = sa.select(row).where(row.job_id == job_id)
    if task is not None:
        query = query.where(row.task == task, row.round > after)
    selected = tx.scalars(query.order_by(row.task, row.round).limit(limit))
    return [rows.Round.of(round_) for round_ in selected]


def trainings(tx: orm.Session, job_id: int) -> list[rows.Training]:
    """All fine-tunings of the cost model, oldest first."""
    row = models.Training
    selected = tx.scalars(sa.select(row).where(row.job_id == job_id).order_by(row.n_records))
    return [rows.Training.of(training) for training in selected]


def _change_task(tx: orm.Session, job_id: int, number: int, **values: Any) -> None:
    where = (models.Task.job_id == job_id, models.Task.number == number)
    statements.update(tx, models.Task, *where, **values)
