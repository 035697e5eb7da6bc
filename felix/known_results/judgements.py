"""What was found of a program's schedules when a network's groups were planned.

Making the sketches of a convolution takes up to half a second, and a network has a hundred
candidates of groups. A row belongs to a task, its device, versions, and the code that makes
sketches: other code may make others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from felix import errors
from felix.known_results import store
from felix.sketch import formula_cache

if TYPE_CHECKING:
    from felix.task import Task

#: What decides which sketches a task has.
SOURCES = (
    "sketch", "symbolic", "templates", "tir", "frontend/programs/planning/cost.py",
    "network/judging.py",
)  # fmt: skip

_TABLE = """
CREATE TABLE IF NOT EXISTS judgements (
    task_key TEXT NOT NULL, device TEXT NOT NULL, versions TEXT NOT NULL, code TEXT NOT NULL,
    judgement TEXT NOT NULL,
    PRIMARY KEY (task_key, device, versions)
)
"""


def find(known: store.Store, task: Task) -> dict[str, Any] | None:
    """What was stored of a task by this code; None if nothing was.

    Raises:
        RecordError: the file cannot be read.
    """
    query = (
        "SELECT judgement FROM judgements WHERE task_key = ? AND device = ? AND versions = ? "
        "AND code = ?"
    )
    with known.connection() as connection:
        connection.execute(_TABLE)
        row = connection.execute(query, (*known.key(task), _code())).fetchone()
    try:
        return None if row is None else dict(json.loads(row[0]))
    except ValueError as error:
        raise errors.RecordError(f"a known judgement is malformed: {error}") from error


def add(known: store.Store, task: Task, judgement: dict[str, Any]) -> None:
    """Store what was found of a task, in place of what other code found.

    Raises:
        RecordError: the file cannot be written.
    """
    with known.connection() as connection:
        connection.execute(_TABLE)
        connection.execute(
            "INSERT OR REPLACE INTO judgements VALUES (?, ?, ?, ?, ?)",
            (*known.key(task), _code(), json.dumps(judgement)),
        )


def _code() -> str:
    return formula_cache.code_digest(SOURCES)[:40]
