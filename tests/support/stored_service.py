"""Files that earlier versions wrote: unpacked, and a stored service whose paused job goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import tarfile
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from felix import target
from server import settings
from server.database import database, models, schema
from server.parsing import devices
from server.store import blobs, control, events, jobs, rows
from server.tuner import felix_engine, tuner
from tests.support import service_fakes, service_kill_child, tuning_fakes

#: What all files are of that any x86-64 machine with AVX2 runs.
TARGET = "llvm -num-cores 2 -mcpu x86-64-v3"
_DATA = pathlib.Path(__file__).parents[1] / "data"


def unpack(name: str, folder: pathlib.Path) -> pathlib.Path:
    """The folder of an archive of `tests/data`, unpacked in another one."""
    with tarfile.open(_DATA / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def upgraded(data_dir: pathlib.Path) -> settings.Settings:
    """Settings of a service on a stored database, after `felix db upgrade`, and blobs."""
    made = settings.Settings(data_dir=data_dir)
    with contextlib.closing(database.Database(made.database)) as db:
        schema.upgrade(db)
    return made


@dataclasses.dataclass(frozen=True)
class GoneOn:
    """A job that was paused, once it has ended: its trials before and after, what happened."""

    job: rows.Job
    before: Sequence[rows.Trial]
    after: Sequence[rows.Trial]
    events: Sequence[rows.Event]


class EngineHere(service_fakes.InItsTuner, felix_engine.FelixEngine):
    """The engine in the process of its tuner."""


class Engine(EngineHere):
    """The real engine on a device whose candidates a pool without processes measures."""

    def __init__(self, device: dict[str, Any], pool: tuning_fakes.Pool) -> None:
        self._places = service_kill_child.FakePlaces()
        self._places._devices, self._places.pool = [device], lambda task: pool


def go_on(
    service: settings.Settings,
    job_id: int,
    n_trials: int,
    patch: pytest.MonkeyPatch,
    pool: tuning_fakes.Pool | None = None,
) -> GoneOn:
    """Resume a paused job, which may have so many trials now, and let a tuner end it.

    Args:
        service, job_id, n_trials: where it is, and what it may.
        patch: for the devices of this machine.
        pool: measures instead of this machine.
    """
    parsed = target.parse(TARGET)
    device: dict[str, Any] = {
        "name": "x86-64-v3",
        "kind": "llvm",
        "target_keys": list(devices.keys(parsed)),
        "target": json.loads(target.describe(parsed)),
        "hardware": dataclasses.asdict(target.hardware(parsed)),
        "model": "pretrained",
    }
    patch.setattr(devices, "of_this_machine", lambda: [device])
    with contextlib.closing(database.Database(service.database)) as db:
        schema.check(db)
        with db.write() as tx:
            before, seq = service_fakes.trials_of(tx, job_id), jobs.get(tx, job_id).last_seq
            tx.execute(
                sa.update(models.Job).where(models.Job.id == job_id).values(trials=n_trials)
            )
            control.resume(tx, job_id)
        store = blobs.open_store(service.blobs)
        worker = EngineHere() if pool is None else Engine(device, pool)
        process = tuner.Tuner(db, store, worker, service, "today")
        with contextlib.closing(process):
            assert process.work_once()
        with db.read() as tx:
            return GoneOn(
                jobs.get(tx, job_id),
                before,
                service_fakes.trials_of(tx, job_id),
                events.after(tx, job_id, seq),
            )
