"""What the store takes for a trial: transactions a second of one tuner, and of several at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import tempfile
import time
import uuid
from collections.abc import Iterator
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import Any

import sqlalchemy as sa

from benchmarks.support.service import full_store
from server.database import database, schema
from server.store import trials

WRITERS = (1, 8)
_START_S = 120.0


def measure(server_url: str | None, n_trials: int) -> list[dict[str, Any]]:
    """Milliseconds of a trial on SQLite, and on a server of PostgreSQL if one is named."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "felix.db")
        rows += _rows("sqlite", f"sqlite:///{path}", n_trials)
    if server_url is not None:
        with _postgres(server_url) as url:
            rows += _rows("postgresql", url, n_trials)
    return rows


def _rows(name: str, url: str, n_trials: int) -> Iterator[dict[str, Any]]:
    db = database.Database(url)
    schema.upgrade(db)
    db.close()
    for n_writers in WRITERS:
        seconds, cpu_s = _written(url, n_writers, n_trials)
        n = n_writers * n_trials
        yield {
            "store": name,
            "writers": n_writers,
            "rate": n / seconds,
            "ms": 1e3 * seconds / n_trials,
            "tuner_cpu_ms": 1e3 * cpu_s / n,
        }


def _written(url: str, n_writers: int, n_trials: int) -> tuple[float, float]:
    """Seconds, and CPU seconds, of tuners that write so many trials each, a process each."""
    context = multiprocessing.get_context("spawn")
    ready, used = context.Barrier(n_writers + 1), context.SimpleQueue()
    writers = [
        context.Process(target=_write, args=(url, n_trials, ready, used)) for _ in range(n_writers)
    ]
    for writer in writers:
        writer.start()
    ready.wait(_START_S)
    start = time.perf_counter()
    for writer in writers:
        writer.join()
    seconds = time.perf_counter() - start
    if any(writer.exitcode for writer in writers):
        raise RuntimeError("a writer failed")
    return seconds, sum(used.get() for _ in writers)


def _write(url: str, n_trials: int, ready: Barrier, used: SimpleQueue[float]) -> None:
    """One tuner: a job, then each of its trials in a transaction of its own."""
    db = database.Database(url)
    fence = full_store.claimed(db).fence
    with db.write() as tx:
        full_store.begin(tx, fence)
    ready.wait(_START_S)
    start = time.process_time()
    for number in range(n_trials):
        with db.write() as tx:
            trials.append(tx, fence, full_store.new_trial(number))
    used.put(time.process_time() - start)
    db.close()


@contextlib.contextmanager
def _postgres(server_url: str) -> Iterator[str]:
    """URL of an empty database on a server, dropped at the end."""
    server = sa.make_url(server_url)
    name = f"felix_benchmark_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()
