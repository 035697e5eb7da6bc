"""Rounds of several tasks at a time: while some are searched, others are built and timed.

A task has one round at a time. It is searched in a process (`processes`), with the state that the
run's own search of it has; then its candidates are measured, and when few of them are left the
round has ended: the allocator and the cost model know what it gave, and the task may have the
next one.

Before any process is ready the run searches itself, one round after the other, and so it does for
tasks that no process can search.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING

from felix.search import interface
from felix.tuning.run import Run
from felix.tuning.searching import messages, processes
from felix.tuning.task_run import TaskRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from felix.search import interface
    from felix.sketch.sketch import Sketch
    from felix.tuning import task_run as task_run_module
    from felix.tuning.task_run import TaskRun

#: How long to wait for a search before measurements are looked after, in seconds.
WAIT_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Searching:
    """A round that is being searched."""

    task_run: TaskRun
    #: candidates that are measured before what the search chooses
    first: Sequence[interface.Candidate]
    #: in all
    n: int
    #: whether traces are searched, too
    has_rest: bool
    answer: futures.Future[messages.Answer]


@contextlib.contextmanager
def side_by_side(run: Run) -> Iterator[Rounds | None]:
    """The rounds of a run with their processes; None where these would not pay."""
    every = [task_run.task for task_run in run.task_runs]
    tasks = [task for task in every if task.key not in run.options.settled]
    count = processes.n_processes(tasks, run.options.search_processes)
    if not count or run.options.make_search is not None:  # no process knows a caller's search
        yield None
        return
    with contextlib.closing(processes.SearchProcesses(count)) as searches:
        yield Rounds(run, searches)


class Rounds:
    """The rounds of a run whose searches have processes.

    Args:
        run: whose steps they are made of.
        searches: the processes.
    """

    def __init__(self, run: Run, searches: processes.SearchProcesses) -> None:
        self._run, self._searches, self._exchange = run, searches, Exchange(run)
        self._searching: dict[int, _Searching] = {}
        #: candidates of each task whose round is being measured
        self._measuring: dict[int, int] = {}
        #: tasks that no process could search: the run does
        self._alone: set[int] = set()

    def until_end(self) -> str:
        """Rounds until a budget is spent or no task can improve; the reason why it ended."""
        run = self._run
        run.learn()  # what a resumed session measured last
        while True:
            self._end_rounds()
            reason = run.stop_reason(self._n_reserved, self._busy)
            if reason is not None and not self._is_awaited(reason):
                self._end_rounds(has_time=False)
                return reason
            has_searched = reason is None and self._begin_rounds()
            if self._searching:
                self._take_searched()
            elif has_searched:
                run.take_measured()
            elif run.n_pending():
                run.collect(leave=run.n_pending() - 1)
            elif not run.settle():
                return "exhausted" if run.has_best() else "failed"

    @property
    def _busy(self) -> set[int]:
        """Tasks that have a round."""
        return {*self._searching, *self._measuring}

    @property
    def _n_reserved(self) -> int:
        """Trials that searches were asked for."""
        return sum(each.n for each in self._searching.values())

    def _is_awaited(self, reason: str) -> bool:
        """Whether rounds that are being searched are still to be measured: their trials are
        counted, or they are the first ones of their tasks."""
        if reason == "seconds":
            n_first = sum(not each.task_run.n_rounds for each in self._searching.values())
            return self._run.may_begin_late(n_first)
        return reason == "trials" and bool(self._searching)

    def _end_rounds(self, has_time: bool = True) -> None:
        """End the rounds of which few candidates are still measured; all, if time is up."""
        run = self._run
        lookahead = run.options.lookahead
        ended = [
            index
            for index, n in self._measuring.items()
            if not has_time or run.n_pending(index) <= lookahead * n
        ]
        for index in ended:
            run.end_round(run.task_runs[index], self._measuring.pop(index))
        if ended:
            run.learn()
            run.save()

    def _begin_rounds(self) -> bool:
        """Begin rounds while processes are idle and not too many candidates are on their way.

        A round that no process can search is searched here, at once: True.
        """
        run = self._run
        while run.has_room() and run.stop_reason(self._n_reserved, self._busy) is None:
            task_run = run.choose_task({*self._busy, *self._waiting()})
            if task_run is None:
                break
            if not self._searches.n_ready or task_run.index in self._alone:
                if run.opener.open_or_skip(task_run):
                    self._submit(task_run, run.search(task_run, self._n_reserved, self._busy), {})
                return True
            if task_run.is_open or run.opener.begin_or_skip(task_run):
                self._ask(task_run)
        return False

    def _waiting(self) -> list[int]:
        """Tasks that get no round now: their process is busy, or what is left of time or trials
        is for others' first rounds."""
        run, searches = self._run, self._searches
        has_more = not run.is_late and run.has_spare_trials(self._n_reserved, self._busy)
        return [
            task_run.index
            for task_run in run.task_runs
            if (task_run.n_rounds and not has_more)
            or (
                searches.n_ready
                and task_run.index not in self._alone
                and not searches.may_take(task_run.index)
            )
        ]

    def _ask(self, task_run: TaskRun) -> None:
        """Have a round of a task searched."""
        n_at_a_time = max(1, self._searches.n_ready)  # the last one may just have ended
        n = self._run.round_size(task_run, self._n_reserved, n_at_a_time, self._busy)
        first = task_run.take_first(n) if task_run.is_open else []
        request = self._exchange.request(task_run, n - len(first))
        answer = self._searches.submit(request)
        self._searching[task_run.index] = _Searching(task_run, first, n, request.has_rest, answer)

    def _take_searched(self) -> None:
        """Send off what is searched by now; wait a moment for it, and take measurements in."""
        answers = [each.answer for each in self._searching.values()]
        with self._run.breakdown.of("search"):
            futures.wait(answers, WAIT_S, futures.FIRST_COMPLETED)
        self._run.take_measured()
        for searching in [each for each in self._searching.values() if each.answer.done()]:
            del self._searching[searching.task_run.index]
            self._send_off(searching)

    def _send_off(self, searching: _Searching) -> None:
        """Measure the candidates of a round; where it failed, the run searches one itself."""
        run, task_run, answer = self._run, searching.task_run, searching.answer.result()
        if run.is_late and task_run.n_rounds:
            return
        chosen: list[interface.Candidate] | None = None
        made: Mapping[interface.Key, task_run_module.Applied] = {}
        if isinstance(answer, messages.Searched):
            if not self._exchange.open_or_skip(task_run, answer, searching.has_rest):
                return
            chosen = self._exchange.adopt(task_run, answer, searching.first, searching.n)
            made = answer.programs
        if chosen is None:
            if not run.opener.open_or_skip(task_run):
                return
            self._leave_alone(task_run, answer)
            n_reserved = self._n_reserved + len(searching.first)
            chosen = [*searching.first, *run.search(task_run, n_reserved, self._busy)]
            made = {}
        self._submit(task_run, chosen, made)

    def _leave_alone(self, task_run: TaskRun, answer: messages.Answer) -> None:
        """Ask no process for a task any more; the first time, say why."""
        if not self._alone:
            why = (
                answer.message if isinstance(answer, messages.Failed) else "it has other sketches"
            )
            self._run.warn(f"{task_run.task.name} is searched without a process: {why}")
        self._alone.add(task_run.index)

    def _submit(
        self,
        task_run: TaskRun,
        chosen: Sequence[interface.Candidate],
        made: Mapping[interface.Key, task_run_module.Applied],
    ) -> None:
        self._measuring[task_run.index] = self._run.submit(task_run, chosen, made)


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

    def open_or_skip(self, task_run: TaskRun, answer: messages.Searched, has_rest: bool) -> bool:
        """Open a task as the process did, without making formulas; whether it can be tuned.

        Args:
            task_run: of the answer.
            answer: of the process.
            has_rest: as the request said.
        """

        def make_formulas(sketch: Sketch) -> str | None:
            return answer.failures.get(sketch.index)

        if not self._opener.open_or_skip(task_run, make_formulas, answer.open_s):
            return False
        if task_run.unopened and has_rest:
            self._opener.open_rest(task_run, make_formulas)
        return True

    def adopt(
        self,
        task_run: TaskRun,
        answer: messages.Searched,
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
