"""A tuner with an engine that needs no device."""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from server import settings
from server.database import database
from server.store import blobs, rows
from server.tuner import tuner
from tests.support import service_fakes

FAST = settings.Settings(lease_s=20.0, beat_s=0.02, poll_s=0.02, reap_s=0.05, max_attempts=3)


@dataclasses.dataclass(frozen=True)
class Bench:
    """A tuner, and what is around it."""

    db: database.Database
    store: blobs.LocalStore
    engine: Any  # the fake one, unless a file has another
    tuner: tuner.Tuner

    def worked(self, job_id: int) -> rows.Job:
        """A job after the tuner worked on one."""
        assert self.tuner.work_once()
        return service_fakes.get(self.db, job_id)

    def meanwhile(self, act: Callable[[], None]) -> None:
        """Work on one job, and act once it has begun."""
        thread = threading.Thread(target=lambda: (self.engine.begun.wait(120), act()))
        thread.start()
        assert self.tuner.work_once()
        thread.join()


@pytest.fixture
def store(tmp_path: pathlib.Path) -> blobs.LocalStore:
    return blobs.LocalStore(tmp_path / "blobs")


@pytest.fixture
def engine() -> service_fakes.Engine:
    return service_fakes.Engine()


@pytest.fixture
def at(
    db: database.Database, store: blobs.LocalStore, engine: service_fakes.Engine
) -> Iterator[Bench]:
    made = tuner.Tuner(db, store, engine, FAST, "test tuner")
    yield Bench(db, store, engine, made)
    made.close()
    assert engine.closed
