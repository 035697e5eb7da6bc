"""What a job takes from earlier ones: tasks that need no trials, schedules to try first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from felix import errors, records
from felix.known_results import adapt, outcome
from felix.metaschedule import trace_text
from felix.task import Task
from server.store import reuse
from server.tuner import engine

if TYPE_CHECKING:
    from felix.sketch.sketch import Sketch
    from felix.sketch.trace_sketch import TraceSketch

#: Schedules of an earlier job that are measured first.
MOST_FIRST = 8


class EarlierJobs:
    """What earlier jobs know of the tasks of a claimed one.

    Args:
        claimed: the job.
        tasks: of it, in order.
    """

    def __init__(self, claimed: engine.JobAccess, tasks: Sequence[Task]) -> None:
        self._claimed = claimed
        rows = claimed.tasks()
        self._numbers = {task.key: number for number, task in enumerate(tasks)}
        self._is_measured = [row.n_trials > 0 for row in rows]
        #: keys of tasks that get no trials
        self.settled = frozenset(
            task.key for task, row in zip(tasks, rows, strict=True) if row.settled
        )

    def first_schedules(
        self, task: Task, sketches: Sequence[Sketch]
    ) -> list[tuple[str, Sequence[int]]]:
        """The fastest schedules that an earlier job or an imported database has of a task.

        Where there are none, those of its operator with other extents, adapted.
        """
        number = self._numbers[task.key]
        if self._is_measured[number]:
            return []  # its trials are the job's own already
        lines = self._claimed.known_schedules(number)
        imported = self._claimed.known_imports(number)
        schedules = [schedule for line in lines if (schedule := _recorded(line)) is not None]
        if imported:
            traces = _traces(sketches)  # a database of TVM knows no templates
            finder = trace_text.Finder(traces)
            for each in imported:
                located = finder.find(each.signature, each.decisions)
                if located is not None:
                    schedules.append((traces[located[0]].key, located[1]))
        known = {sketch.key for sketch in sketches}
        usable = [schedule for schedule in schedules if schedule[0] in known]
        if not usable:
            similar = map(_outcome, self._claimed.known_similar(number))
            usable = adapt.first_schedules(filter(None, similar), sketches)
        return usable[:MOST_FIRST]


def _traces(sketches: Sequence[Sketch]) -> list[TraceSketch]:
    from felix.sketch.template_sketch import TemplateSketch

    return [sketch for sketch in sketches if not isinstance(sketch, TemplateSketch)]


def _outcome(similar: reuse.SimilarTask) -> outcome.Outcome | None:
    """What another task's record says, with what its decisions are; None if nobody knows them."""
    try:
        record = records.Record.from_json(similar.record)
        task = Task.from_json(similar.program, similar.resolved_target, trusted=True)
        sketch = _sketch(task, record.sketch_key)
    except errors.FelixError:
        return None
    if sketch is None or len(sketch.variables) != len(record.decisions):
        return None
    schedule = outcome.Schedule(
        sketch_key=record.sketch_key,
        sketch_index=record.sketch_index,
        variant=str(sketch.variant),
        decisions=outcome.decided(sketch.variables, record.decisions),
    )
    return outcome.Outcome(tuned_us=record.measurement.latency_us, schedule=schedule)


def _sketch(task: Task, key: str) -> Sketch | None:
    """A task's sketch; those of traces are made, which takes long, where no template has the key.

    Raises:
        UnsupportedSchedule: no sketch can be modelled.
    """
    from felix.sketch import sketch as sketching

    for every in (sketching.of_templates, sketching.trace_sketches):
        found = next((sketch for sketch in every(task) if sketch.key == key), None)
        if found is not None:
            return found
    return None


def _recorded(line: str) -> tuple[str, Sequence[int]] | None:
    """Sketch key and decisions of a record; None if another version wrote it."""
    try:
        record = records.Record.from_json(line)
    except errors.RecordError:
        return None
    return record.sketch_key, record.decisions
