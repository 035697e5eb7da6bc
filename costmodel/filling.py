"""Computing features in several processes: they fill the cache that `tasks` then reads.

Each process has a featurizer of its own and takes one task after the other, those with most
records first. Reads `tasks`; feeds the command line.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

from costmodel import dataset as data
from costmodel import tasks as task_data

#: Of a process: makes features, and where they go.
_featurizer: task_data.Featurizer | None = None
_cache: Path | None = None


def fill(
    dataset: data.Dataset,
    make: Callable[[], task_data.Featurizer],
    cache: Path,
    jobs: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Put the rows of all tasks into the cache; what is there already is not computed.

    Args:
        dataset: measured schedules.
        make: called in every process; a class or function of a module.
        cache: folder for computed rows.
        jobs: processes.
        progress: called with (tasks done, tasks) after each task.
    """
    groups = sorted(task_data.grouped(dataset), key=lambda group: -len(group[1]))
    context = multiprocessing.get_context("spawn")  # TVM's threads do not survive a fork
    with context.Pool(jobs, _begin, (make, cache)) as pool:
        for done, _ in enumerate(pool.imap_unordered(_one, groups), start=1):
            if progress is not None:
                progress(done, len(groups))


def _begin(make: Callable[[], task_data.Featurizer], cache: Path) -> None:
    global _featurizer, _cache
    _featurizer, _cache = make(), cache


def _one(group: tuple[data.Workload, list[data.Record]]) -> None:
    assert _featurizer is not None  # set by `_begin`
    task_data.task_of(*group, _featurizer, _cache)
