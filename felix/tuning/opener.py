"""Opens the tasks of a run: their sketches and searches, the unscheduled programs beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from felix import errors, events
from felix.features.kind import FeatureKind
from felix.measure import limits
from felix.space import legality, variables
from felix.tuning import checkpoint, pending, task_search
from felix.tuning.task_run import TaskRun

if TYPE_CHECKING:
    from felix.space.sketch import Sketch


class Opener:
    """Opens tasks, each once.

    Args:
        run: its parts; the allocator is told of tasks that cannot be tuned.
        baselines: measures the unscheduled programs.
    """

    def __init__(self, run: checkpoint.Parts, baselines: pending.Baselines) -> None:
        self._run, self._baselines = run, baselines
        self._request, self._options = run.request, run.request.options
        self._on_event, self._n_tasks = run.request.on_event, len(run.request.tasks)
        #: indices of tasks that `begin` has begun
        self._begun: set[int] = set()

    def begin_or_skip(self, task_run: TaskRun) -> bool:
        """`begin`, or False: one of several that cannot be tuned is skipped.

        Raises:
            FelixError: the only task cannot be tuned.
        """
        return self._or_skip(task_run, lambda: self.begin(task_run))

    def open_or_skip(
        self,
        task_run: TaskRun,
        make_formulas: task_search.MakeFormulas = legality.make_formulas,
        elsewhere_s: float = 0.0,
    ) -> bool:
        """`open` a task that is not, or False: one of several that cannot be tuned is skipped.

        Raises:
            FelixError: the only task cannot be tuned.
        """
        return task_run.is_open or self._or_skip(
            task_run,
            lambda: self.open(task_run, make_formulas=make_formulas, elsewhere_s=elsewhere_s),
        )

    def begin(self, task_run: TaskRun, is_resumed: bool = False) -> None:
        """Say that a task is being opened; time its unscheduled program beside.

        Raises:
            WorkloadError: it is too large to be measured here.
        """
        if task_run.index in self._begun:
            return
        self._on_event(events.Opening(task=task_run.task.name, task_index=task_run.index))
        limits.check(task_run.task, limits.of_this_machine(task_run.task))
        if self._options.baseline and not is_resumed:
            self._baselines.submit(task_run)
        self._begun.add(task_run.index)

    def open(
        self,
        task_run: TaskRun,
        is_resumed: bool = False,
        make_formulas: task_search.MakeFormulas = legality.make_formulas,
        elsewhere_s: float = 0.0,
    ) -> None:
        """Make a task's sketches and search.

        Args:
            task_run: not open yet.
            is_resumed: an earlier session had opened it.
            make_formulas: as in `TaskSearch.open`.
            elsewhere_s: what opening it took in a process.

        Raises:
            NoDesignSpace: the task has no sketch with legal schedules.
            WorkloadError: it is too large to be measured here.
        """
        self.begin(task_run, is_resumed)
        before_s = self._run.breakdown.extract_s
        with self._run.compute_guard.computing("extract"):
            left_out = task_run.open(
                self._options.maker(self._request.budget.strategy),
                self._run.learner.models_for(task_run.index),
                self._request.budget.seed,
                has_templates=self._options.templates,
                templates_first=self._n_tasks > 1 and not is_resumed,
                make_formulas=self._between_timings(make_formulas),
            )
        every = [*task_run.sketches, *task_run.unopened]
        if self._options.first_schedules is not None:
            self._set_first(task_run, self._options.first_schedules(task_run.task, every))
        for message in left_out:
            self._on_event(events.Warned(message=message))
        self._on_event(
            events.Opened(
                task=task_run.task.name,
                task_index=task_run.index,
                n_sketches=len(every),
                extract_s=self._run.breakdown.extract_s - before_s + elsewhere_s,
                decisions={s.index: _labels(s) for s in every},
            )
        )

    def open_rest(
        self, task_run: TaskRun, make_formulas: task_search.MakeFormulas = legality.make_formulas
    ) -> None:
        """Let a task's search have the sketches of traces, too."""
        with self._run.compute_guard.computing("extract"):
            left_out = task_run.open_rest(self._between_timings(make_formulas))
        for message in left_out:
            self._on_event(events.Warned(message=message))

    def _between_timings(
        self, make_formulas: task_search.MakeFormulas
    ) -> task_search.MakeFormulas:
        """Makes the formulas of each sketch once waiting kernels were timed."""

        def made(sketch: Sketch) -> str | None:
            self._run.compute_guard.yield_to_timing()
            return make_formulas(sketch)

        return made

    def _set_first(
        self, task_run: TaskRun, schedules: Sequence[tuple[str, Sequence[int]]]
    ) -> None:
        """Let schedules be measured first, whichever sketches they are of."""
        unopened = {sketch.key for sketch in task_run.unopened}
        if any(key in unopened for key, _ in schedules):
            self.open_rest(task_run)
        task_run.set_first(schedules)

    def _or_skip(self, task_run: TaskRun, step: Callable[[], None]) -> bool:
        try:
            step()
        except (errors.NoDesignSpace, errors.UnsupportedSchedule, errors.WorkloadError) as error:
            if self._n_tasks == 1:
                raise
            task_run.skipped = str(error)
            self._run.allocator.settle(task_run.index)
            self._on_event(
                events.Skipped(
                    task=task_run.task.name, task_index=task_run.index, reason=str(error)
                )
            )
            return False
        return True


def _labels(sketch: Sketch) -> tuple[tuple[str, int], ...]:
    """What the decisions of a sketch are, as `events.Opened` says."""
    labels = variables.labels(sketch.variables)
    if sketch.formulas.kind is FeatureKind.TEMPLATE:
        return ((f"generated kernel {sketch.variant}", 0), *labels)
    return labels
