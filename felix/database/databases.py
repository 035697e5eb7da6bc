"""Known results as MetaSchedule databases, and MetaSchedule databases as known results."""

from __future__ import annotations

import os
from collections.abc import Sequence

from felix import errors
from felix.database import metaschedule_files, outcome, store
from felix.metaschedule import trace_text
from felix.space import sketch as sketching
from felix.space.sketch import Sketch
from felix.space.trace_sketch import TraceSketch
from felix.task import Task


def export(known: store.Store, folder: str | os.PathLike[str]) -> int:
    """Write the schedules of a store as a MetaSchedule database; how many there are.

    Generated kernels are left out: no trace makes them.

    Raises:
        OutputError: the folder cannot be written.
        RecordError: the store cannot be read.
    """
    made = [_entry(Task.from_json(text, trusted=True), result) for text, result in known.entries()]
    entries = [entry for entry in made if entry is not None]
    metaschedule_files.export_database(folder, entries)
    return len(entries)


class Database:
    """A MetaSchedule database, whose schedules are candidates to measure first.

    Their latencies are another run's, so none counts before it is measured here.

    Args:
        folder: of the database; read once.

    Raises:
        RecordError: there is no database, or it cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._entries = metaschedule_files.import_database(folder)
        self._by_target: dict[str, list[str | None]] = {}

    def schedules(self, task: Task, sketches: Sequence[Sketch]) -> list[tuple[str, Sequence[int]]]:
        """Schedules of a task, as (sketch key, decisions), fastest first; no generated kernels.

        It is as `TuneOptions.first_schedules` wants it.
        """
        traces = [sketch for sketch in sketches if isinstance(sketch, TraceSketch)]
        finder = trace_text.Finder(traces)
        located: list[tuple[str, Sequence[int]]] = []
        for entry, key in zip(self._entries, self._keys(task), strict=True):
            if key != task.program_key:
                continue
            candidate = finder.find(*trace_text.read(entry.trace.simplified(True)))
            if candidate is not None:
                index, decisions = candidate
                located.append((traces[index].key, decisions))
        return located

    def _keys(self, task: Task) -> list[str | None]:
        """Of the entries' programs, on a task's target."""
        text = str(task.target)
        if text not in self._by_target:
            self._by_target[text] = [_key(entry, task) for entry in self._entries]
        return self._by_target[text]


def _entry(task: Task, result: outcome.KnownResult) -> metaschedule_files.DatabaseEntry | None:
    if result.schedule is None or result.tuned_us is None:
        return None
    try:
        sketches = sketching.trace_sketches(task)
    except errors.UnsupportedSchedule:  # of traces there is none: templates generate its kernels
        return None
    for sketch in sketches:
        if sketch.key == result.schedule.sketch_key:
            return metaschedule_files.DatabaseEntry(
                mod=sketch.mod,
                trace=sketch.schedule(result.schedule.row).trace,
                latencies_us=(result.tuned_us,),
                target=task.target,
            )
    return None


def _key(entry: metaschedule_files.DatabaseEntry, task: Task) -> str | None:
    """The key of an entry's program; None if it is none that Felix tunes."""
    try:
        return Task.from_prim_func(entry.mod["main"], task.target, clamp=True).program_key
    except errors.WorkloadError:
        return None
