"""The store of known results: an SQLite file that several processes may use at once.

A result belongs to a task (its program and target), a device, and the versions of what its
latency depends on. The file is `$FELIX_KNOWN_RESULTS`, else `known-results.sqlite` in Felix's
cache folder (`felix.files.cache_folder`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from felix import errors, files, target
from felix.database import outcome, records

if TYPE_CHECKING:
    from felix.task import Task

#: Version of the file's table.
FORMAT = 1
#: Names the file.
VARIABLE = "FELIX_KNOWN_RESULTS"
#: How long a process waits for another one's writing.
TIMEOUT_S = 60.0

_TABLE = """
CREATE TABLE IF NOT EXISTS outcomes (
    task_key TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL,
    family TEXT NOT NULL, task TEXT NOT NULL, tuned_us REAL, outcome TEXT NOT NULL,
    updated_s REAL NOT NULL,
    PRIMARY KEY (task_key, device, versions)
);
CREATE INDEX IF NOT EXISTS by_family ON outcomes (family, updated_s);
"""


#: What else was found of a task, by subject: contenders that were timed, sketches that were made.
_FINDINGS = """
CREATE TABLE IF NOT EXISTS findings (
    task_key TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL,
    subject TEXT NOT NULL, finding TEXT NOT NULL,
    PRIMARY KEY (task_key, device, versions, subject)
)
"""


#: Of the rows of a task (`Store.key`).
_OF_TASK = "task_key = ? AND device = ? AND versions = ?"


class Store:
    """Known results in a file, which is made when it is needed.

    Args:
        path: the file; when left out, that of the environment or in the cache folder.

    Raises:
        RecordError: by each method where the file cannot be used or what is in it is malformed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is None:
            path = os.environ.get(VARIABLE) or files.cache_folder() / "known-results.sqlite"
        self.path = pathlib.Path(path).absolute()
        self._versions = json.dumps(_versions(), sort_keys=True)

    def find(self, task: Task) -> outcome.KnownResult | None:
        """What is known of a task on its device under these versions."""
        with self.connection() as connection:
            return self._found(connection, task)

    def add(self, task: Task, result: outcome.KnownResult) -> outcome.KnownResult:
        """Store what tuning gave; of two results of a task the faster schedule stays.

        Returns:
            What the store has now.
        """
        with self.connection() as connection:
            connection.execute("BEGIN IMMEDIATE")  # what is read may not change until the write
            known = self._found(connection, task)
            merged = result if known is None else faster(known, result)
            values = (
                *self.key(task),
                outcome.family(task),
                task.to_json(),
                merged.tuned_us,
                json.dumps(dataclasses.asdict(merged)),
                time.time(),
            )
            connection.execute(
                "INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values
            )
        return merged

    def _found(self, connection: sqlite3.Connection, task: Task) -> outcome.KnownResult | None:
        query = f"SELECT outcome FROM outcomes WHERE {_OF_TASK}"
        row = connection.execute(query, self.key(task)).fetchone()
        return None if row is None else _from_json(row[0])

    def similar(self, task: Task, limit: int = 4) -> list[outcome.KnownResult]:
        """Results of the same operator with other extents, or of this task elsewhere.

        The latest come first; those without a schedule are left out.
        """
        query = (
            f"SELECT outcome FROM outcomes WHERE family = ? AND tuned_us IS NOT NULL "
            f"AND NOT ({_OF_TASK}) ORDER BY updated_s DESC LIMIT ?"
        )
        with self.connection() as connection:
            rows = connection.execute(
                query, (outcome.family(task), *self.key(task), limit)
            ).fetchall()
        return [_from_json(text) for (text,) in rows]

    def entries(self) -> list[tuple[str, outcome.KnownResult]]:
        """Every task (`Task.to_json`) with what is known of it, the oldest first."""
        query = "SELECT task, outcome FROM outcomes ORDER BY updated_s"
        with self.connection() as connection:
            return [(task, _from_json(text)) for task, text in connection.execute(query)]

    def find_findings(self, subjects: Iterable[tuple[Task, str]]) -> list[dict[str, Any] | None]:
        """What was found of each task on its subject; None if nothing was."""
        query = f"SELECT finding FROM findings WHERE {_OF_TASK} AND subject = ?"
        with self.connection(_FINDINGS) as connection:
            rows = [
                connection.execute(query, (*self.key(task), subject)).fetchone()
                for task, subject in subjects
            ]
        try:
            return [None if row is None else dict(json.loads(row[0])) for row in rows]
        except ValueError as error:
            raise errors.RecordError(f"a known finding is malformed: {error}") from error

    def add_findings(self, found: Iterable[tuple[Task, str, dict[str, Any]]]) -> None:
        """Store what was found of tasks on subjects; the last one stays."""
        rows = [(*self.key(task), subject, json.dumps(each)) for task, subject, each in found]
        with self.connection(_FINDINGS) as connection:
            connection.execute("BEGIN")
            connection.executemany("INSERT OR REPLACE INTO findings VALUES (?, ?, ?, ?, ?)", rows)

    def key(self, task: Task) -> tuple[str, str, str]:
        """What rows of a task have: its key, its device's name, the versions."""
        return task.key, target.hardware(task.target).name, self._versions

    @contextlib.contextmanager
    def connection(self, table: str = "") -> Iterator[sqlite3.Connection]:
        """A connection whose changes are written when the block ends without an error.

        Args:
            table: makes one that a file of an older version may lack.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=TIMEOUT_S, isolation_level=None)
            with contextlib.closing(connection):
                self._prepare(connection)
                connection.execute(table)
                yield connection
                if connection.in_transaction:
                    connection.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise errors.RecordError(
                f"the known results in {self.path} cannot be used: {error}; name another file, or "
                f"delete it"
            ) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == FORMAT:
            return
        if version:
            raise sqlite3.DatabaseError(f"it has the format {version}, not {FORMAT}")
        connection.executescript(_TABLE + f"PRAGMA user_version = {FORMAT};")


def _versions() -> dict[str, str]:
    """Versions of what latencies depend on, and the programs that are stored."""
    versions = records.versions()
    del versions["python"]
    return versions


def faster(earlier: outcome.KnownResult, later: outcome.KnownResult) -> outcome.KnownResult:
    """The faster schedule of two results of a task, and the later of everything else."""
    default_us = earlier.default_us if later.default_us is None else later.default_us
    is_earlier_faster = earlier.tuned_us is not None and (
        later.tuned_us is None or earlier.tuned_us < later.tuned_us
    )
    faster = earlier if is_earlier_faster else later
    return dataclasses.replace(
        faster, default_us=default_us, n_trials=earlier.n_trials + later.n_trials
    )


def _from_json(text: str) -> outcome.KnownResult:
    try:
        fields: dict[str, Any] = json.loads(text)
        if fields["schedule"] is not None:
            decisions = tuple(outcome.Decided(**each) for each in fields["schedule"]["decisions"])
            fields["schedule"] = outcome.Schedule(**{**fields["schedule"], "decisions": decisions})
        return outcome.KnownResult(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise errors.RecordError(f"a known result is malformed: {error}") from error


# The queue of tasks of which nothing is known: met by somebody who does not wait for tuning.
#
# It is a table beside the known results. A task is there once for each device, with how often it
# was met; whoever tunes it takes it out (`felix.network.backend.queued`).

_QUEUE = """
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
    """

    task_key: str
    device: str
    task: str
    form: str | None
    n_requests: int


def enqueue(known: Store, tasks: Iterable[tuple[Task, str | None]]) -> None:
    """Put tasks with their forms into the queue; those that wait already are counted once more."""
    rows = [
        (task.key, target.hardware(task.target).name, task.to_json(), form, 1, time.time())
        for task, form in tasks
    ]
    if not rows:
        return
    with known.connection(_QUEUE) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO queue VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "n_requests = n_requests + 1, form = COALESCE(excluded.form, form)",
            rows,
        )


def queued(known: Store) -> list[QueuedTask]:
    """What waits, the most requested first."""
    with known.connection(_QUEUE) as connection:
        rows = connection.execute(
            "SELECT task_key, device, task, form, n_requests FROM queue "
            "ORDER BY n_requests DESC, first_s"
        ).fetchall()
    names = [field.name for field in dataclasses.fields(QueuedTask)]
    return [QueuedTask(**dict(zip(names, row, strict=True))) for row in rows]


def unqueue(known: Store, done: Sequence[QueuedTask]) -> None:
    """Take tasks out of the queue."""
    with known.connection(_QUEUE) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "DELETE FROM queue WHERE task_key = ? AND device = ?",
            [(each.task_key, each.device) for each in done],
        )
