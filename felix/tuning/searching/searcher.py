"""Who chooses the candidates of rounds: the run itself, or its search processes.

Before any process is ready the run searches itself, one round after the other, and so it does for
tasks that no process can search.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING

from felix.tuning.rounds import Asked, Chosen
from felix.tuning.searching import processes

if TYPE_CHECKING:
    from felix.search import interface
    from felix.space.sketch import Sketch
    from felix.tuning.run import Run
    from felix.tuning.task_run import TaskRun


@contextlib.contextmanager
def of_run(run: Run) -> Iterator[Here]:
    """The searcher of a run, with processes where these pay."""
    every = [task_run.task for task_run in run.task_runs]
    tasks = [task for task in every if task.key not in run.options.settled]
    count = processes.n_processes(tasks, run.options.search_processes)
    if not count or run.options.make_search is not None:  # no process knows a caller's search
        yield Here(run)
        return
    with contextlib.closing(processes.SearchProcesses(count)) as searches:
        yield InProcesses(run, searches)


class Here:
    """The run searches."""

    #: whether several tasks may have rounds at a time
    is_concurrent = False

    def __init__(self, run: Run) -> None:
        self._run = run

    def is_free(self, task_index: int) -> bool:
        """Whether a round of a task would be searched at once: always."""
        return True

    def ask(self, task_run: TaskRun) -> Asked | None:
        """Have a round of a task searched; None for a task that cannot be tuned."""
        if not self._run.opener.open_or_skip(task_run):
            return None
        candidates = self._run.search(task_run)
        answer: futures.Future[Chosen] = futures.Future()
        answer.set_result(Chosen(candidates, {}))
        return Asked(task_run, len(candidates), answer, is_answered_here=True)

    def chosen(self, asked: Asked) -> Chosen | None:
        """What a round has, once there is an answer; None where it has nothing any more."""
        chosen: Chosen = asked.answer.result()
        return chosen


class InProcesses(Here):
    """Processes search, with the state that the run's own search of a task has."""

    is_concurrent = True

    def __init__(self, run: Run, searches: processes.SearchProcesses) -> None:
        super().__init__(run)
        self._searches = searches
        #: tasks that no process could search: the run does
        self._alone: set[int] = set()
        self._texts: dict[int, str] = {}

    def is_free(self, task_index: int) -> bool:
        """Whether a round of a task would be searched at once."""
        return self._is_here(task_index) or self._searches.may_take(task_index)

    def _is_here(self, task_index: int) -> bool:
        return not self._searches.n_ready or task_index in self._alone

    def ask(self, task_run: TaskRun) -> Asked | None:
        """Have a round searched by the task's process, or here where none can."""
        run = self._run
        if self._is_here(task_run.index):
            return super().ask(task_run)
        if not task_run.is_open and not run.opener.begin_or_skip(task_run):
            return None
        n_at_a_time = max(1, self._searches.n_ready)  # the last one may just have ended
        n = run.round_size(task_run, n_at_a_time)
        first = task_run.take_first(n) if task_run.is_open else []
        request = self._request(task_run, n - len(first))
        answer = self._searches.submit(request)
        return Asked(task_run, n, answer, False, first, request.has_rest)

    def chosen(self, asked: Asked) -> Chosen | None:
        """What a round has; where a process failed, the run searches one itself."""
        run, task_run, answer = self._run, asked.task_run, asked.answer.result()
        if isinstance(answer, Chosen):
            return answer
        if run.is_late:
            return None
        if isinstance(answer, processes.Searched):
            if not self._open_or_skip(task_run, answer, asked.has_rest):
                return None
            candidates = self.adopt(task_run, answer, asked.first, asked.n)
            if candidates is not None:
                return Chosen(candidates, answer.programs)
        if not run.opener.open_or_skip(task_run):
            return None
        self._leave_alone(task_run, answer)
        searched = run.search(task_run, n_taken=len(asked.first))
        return Chosen([*asked.first, *searched], {})

    def _leave_alone(self, task_run: TaskRun, answer: processes.Answer) -> None:
        """Ask no process for a task any more; the first time, say why."""
        if not self._alone:
            why = (
                answer.message if isinstance(answer, processes.Failed) else "it has other sketches"
            )
            self._run.warn(f"{task_run.task.name} is searched without a process: {why}")
        self._alone.add(task_run.index)

    def _request(self, task_run: TaskRun, n: int) -> processes.Request:
        """That a round of so many candidates is searched."""
        run, is_open = self._run, task_run.is_open
        if task_run.index not in self._texts:
            self._texts[task_run.index] = task_run.task.to_json()
        return processes.Request(
            task_index=task_run.index,
            task=self._texts[task_run.index],
            sizes=run.options.sizes(run.request.budget.strategy),
            has_templates=run.options.templates,
            seed=run.request.budget.seed,
            has_rest=is_open and (task_run.n_rounds > 0 or not task_run.unopened),
            models=run.learner.models_for(task_run.index),
            state=task_run.search.state_dict() if is_open else None,
            n=n,
        )

    def _open_or_skip(self, task_run: TaskRun, answer: processes.Searched, has_rest: bool) -> bool:
        """Open a task as the process did, without making formulas; whether it can be tuned.

        Args:
            task_run: of the answer.
            answer: of the process.
            has_rest: as the request said.
        """

        def make_formulas(sketch: Sketch) -> str | None:
            return answer.failures.get(sketch.index)

        is_open = self._run.opener.open_or_skip(task_run, make_formulas, answer.open_s)
        if is_open and task_run.unopened and has_rest:
            self._run.opener.open_rest(task_run, make_formulas)
        return is_open

    def adopt(
        self,
        task_run: TaskRun,
        answer: processes.Searched,
        first: Sequence[interface.Candidate],
        n: int,
    ) -> list[interface.Candidate] | None:
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
        taken = {candidate.key for candidate in before}
        searched = answer.searched
        kept = [
            pair
            for pair in zip(searched.candidates, searched.features, strict=True)
            if pair[0].key not in taken
        ][: n - len(before)]
        chosen = [candidate for candidate, _ in kept]
        task_run.search.adopt(
            dataclasses.replace(
                searched, candidates=chosen, features=[features for _, features in kept]
            )
        )
        return [*before, *chosen]
