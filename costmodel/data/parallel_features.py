"""Computing features in several processes: they fill the cache that `features` then reads.

The processes take one task after the other, those with most records first, each with a
featurizer for each.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from pathlib import Path

from costmodel.data import dataset as datasets
from costmodel.data import features as task_features
from felix.processes import child


def fill_cache(
    dataset: datasets.Dataset,
    make: Callable[[], task_features.Featurizer],
    cache: Path,
    processes: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Put the rows of all tasks into the cache; what is there already is not computed.

    Args:
        dataset: measured schedules.
        make: called for every task, in its process; a class or function of a module.
        cache: folder for computed rows.
        processes: how many.
        progress: called with (tasks done, tasks) after each task.
    """
    groups = sorted(task_features.grouped(dataset, make().kind), key=lambda group: -len(group[1]))
    with child.pool(processes) as pool:
        begun = [pool.submit(_fill_task, make, cache, group) for group in groups]
        for done, filled in enumerate(futures.as_completed(begun), start=1):
            filled.result()
            if progress is not None:
                progress(done, len(groups))


def _fill_task(
    make: Callable[[], task_features.Featurizer],
    cache: Path,
    group: tuple[datasets.Workload, list[datasets.Record]],
) -> None:
    task_features.task_of(*group, make(), cache)
