"""Requests for rounds of tasks, and their answers taken over by the run's own searches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from felix.search import interface
from felix.tuning.run import Run
from felix.tuning.searching import messages
from felix.tuning.task_run import TaskRun

if TYPE_CHECKING:
    from felix.sketch.sketch import Sketch


class Exchange:
    """Between the tasks of a run and the processes that search for them."""

    def __init__(self, run: Run) -> None:
        self._budget, self._options = run.request.budget, run.options
        self._learner, self._opener = run.learner, run.opener
        self._texts: dict[int, str] = {}

    def request(self, task_run: TaskRun, n: int) -> messages.Request:
        """That a round of so many candidates is searched."""
        if task_run.index not in self._texts:
            self._texts[task_run.index] = task_run.task.to_json()
        is_open = task_run.is_open
        return messages.Request(
            task_index=task_run.index,
            task=self._texts[task_run.index],
            sizes=self._options.sizes(self._budget.strategy),
            has_templates=self._options.templates,
            seed=self._budget.seed,
            has_rest=is_open and (task_run.n_rounds > 0 or not task_run.unopened),
            models=self._learner.models_for(task_run.index),
            state=task_run.search.state_dict() if is_open else None,
            n=n,
        )

    def has_opened(self, task_run: TaskRun, answer: messages.Searched, has_rest: bool) -> bool:
        """Open a task as the process did, without making formulas; whether it can be tuned.

        Args:
            task_run: of the answer.
            answer: of the process.
            has_rest: as the request said.
        """

        def judge(sketch: Sketch) -> str | None:
            return answer.failures.get(sketch.index)

        if not self._opener.has_opened(task_run, judge, answer.open_s):
            return False
        if task_run.unopened and has_rest:
            self._opener.open_rest(task_run, judge)
        return True

    def adopt(
        self,
        task_run: TaskRun,
        answer: messages.Searched,
        first: Sequence[interface.Suggestion],
        n: int,
    ) -> list[interface.Suggestion] | None:
        """What is to be measured of a round, which the task's search then knows; None where the
        process has other sketches than the run.

        Args:
            task_run: an open task.
            answer: of the process.
            first: what is measured before; none where the task was opened with the answer.
            n: candidates in all.
        """
        ours = tuple((sketch.index, sketch.key) for sketch in task_run.sketches)
        if ours[: len(answer.sketches)] != answer.sketches:
            return None
        before = [*first] or task_run.take_first(n)
        taken = {suggestion.key for suggestion in before}
        searched = answer.searched
        kept = [
            pair
            for pair in zip(searched.suggestions, searched.features, strict=True)
            if pair[0].key not in taken
        ][: n - len(before)]
        chosen = [suggestion for suggestion, _ in kept]
        task_run.search.adopt(
            dataclasses.replace(
                searched, suggestions=chosen, features=[features for _, features in kept]
            )
        )
        return [*before, *chosen]
