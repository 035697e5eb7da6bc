"""Candidates on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from felix.measure import local
from felix.task import Task

#: Chance makes long sources, too.
PATIENT = local.LocalOptions(builders=4, build_timeout_s=300.0, max_source_bytes=1 << 30)


def measured(task: Task, programs: Sequence[Any], options: local.LocalOptions = PATIENT) -> None:
    """Fail with the messages of what does not compute the task."""
    with local.LocalPool(task, options) as pool:
        results = pool.measure(programs)
    messages = [each.message for each in results if not (each.ok and each.checked)]
    assert not messages, messages
