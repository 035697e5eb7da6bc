"""The queue of tasks of which nothing is known: met by somebody who does not wait for tuning.

It is a table beside the known results. A task is there once for each device, with how often it was
met; whoever tunes it takes it out (`felix.network.backend.queued`).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from felix import target

if TYPE_CHECKING:
    from felix.known_results.store import Store
    from felix.task import Task

_TABLE = """
CREATE TABLE IF NOT EXISTS queue (
    task_key TEXT NOT NULL, device TEXT NOT NULL, task TEXT NOT NULL, form TEXT,
    n_requests INTEGER NOT NULL, first_s REAL NOT NULL,
    PRIMARY KEY (task_key, device)
)
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """A task that waits for tuning.

    Attributes:
        task_key: its key (`Task.key`).
        device: name of the device that it is for.
        task: `Task.to_json`.
        form: the calls of PyTorch that compute the same (`TorchForm.to_json`), to compare with;
            None if there are none.
        n_requests: how often it was met.
        first_s: when it was met first, in seconds since 1970.
    """

    task_key: str
    device: str
    task: str
    form: str | None
    n_requests: int
    first_s: float


def add(known: Store, tasks: Iterable[tuple[Task, str | None]]) -> None:
    """Put tasks with their forms into the queue; those that wait already are counted once more.

    Raises:
        RecordError: the file cannot be written.
    """
    rows = [
        (task.key, target.hardware(task.target).name, task.to_json(), form, 1, time.time())
        for task, form in tasks
    ]
    if not rows:
        return
    with known.connection() as connection:
        connection.execute(_TABLE)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO queue VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "n_requests = n_requests + 1, form = COALESCE(excluded.form, form)",
            rows,
        )


def tasks(known: Store) -> list[QueuedTask]:
    """What waits, the most requested first.

    Raises:
        RecordError: the file cannot be read.
    """
    with known.connection() as connection:
        connection.execute(_TABLE)
        rows = connection.execute(
            "SELECT task_key, device, task, form, n_requests, first_s FROM queue "
            "ORDER BY n_requests DESC, first_s"
        ).fetchall()
    names = [field.name for field in dataclasses.fields(QueuedTask)]
    return [QueuedTask(**dict(zip(names, row, strict=True))) for row in rows]


def remove(known: Store, done: Sequence[QueuedTask]) -> None:
    """Take tasks out of the queue.

    Raises:
        RecordError: the file cannot be written.
    """
    with known.connection() as connection:
        connection.execute(_TABLE)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "DELETE FROM queue WHERE task_key = ? AND device = ?",
            [(each.task_key, each.device) for each in done],
        )
