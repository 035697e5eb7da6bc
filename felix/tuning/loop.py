"""The loop of a run, for one task and for many: ask, build, run, tell.

A task has one round at a time. A searcher (`felix.tuning.searching.searcher`) is asked for its
candidates and answers here or in a process; they are built and timed; when few of them are left
the round has ended: the allocator and the cost model are told, and the task may have the next one.

Where the run searches itself one round follows the other, and the next one begins when so many
results are there, however fast the machine is: a seed gives the same run. With search processes
tasks have rounds side by side.
"""

from __future__ import annotations

from concurrent import futures
from typing import TYPE_CHECKING

from felix.tuning import rounds

if TYPE_CHECKING:
    from felix.tuning.run import Run
    from felix.tuning.searching import searcher

#: How long to wait for a search before measurements are looked after, in seconds.
WAIT_S = 0.02


class Loop:
    """Asks, measures and tells until there is a reason to end.

    Args:
        run: whose steps a round is made of.
        searches: chooses the candidates.
    """

    def __init__(self, run: Run, searches: searcher.Here) -> None:
        self._run, self._searches = run, searches
        self._searching, self._measuring = run.rounds.searching, run.rounds.measuring

    def until_end(self) -> str:
        """Rounds until a budget is spent or no task can improve; the reason why it ended."""
        run = self._run
        run.learn()  # what a resumed session measured last
        while True:
            self._end_rounds()
            if self._measuring and not self._searches.is_concurrent:
                run.collect(leave=run.n_pending() - 1)
                continue
            reason = run.stop_reason()
            if reason is not None and not self._is_awaited(reason):
                self._end_rounds(has_time=False)
                return reason
            if reason is None:
                with run.asking():
                    self._ask()
            if self._searching:
                self._take_searched()
            elif run.n_pending() and self._searches.is_concurrent:
                run.collect(leave=run.n_pending() - 1)
            elif not run.settle():
                if run.is_late:  # it was not while rounds were asked for
                    return "seconds"
                return "exhausted" if any(each.best for each in run.task_runs) else "failed"

    def _is_awaited(self, reason: str) -> bool:
        """Whether rounds that are being searched are still to be measured: their trials are
        counted."""
        return reason == "trials" and bool(self._searching)

    def _end_rounds(self, has_time: bool = True) -> None:
        """End the rounds of which few candidates are still measured; all, if time is up."""
        run, is_concurrent = self._run, self._searches.is_concurrent
        ended = [
            index
            for index, each in self._measuring.items()
            if not has_time or run.n_pending(index if is_concurrent else None) <= each.n_left
        ]
        for index in ended:
            run.end_round(run.task_runs[index], self._measuring.pop(index).n)
        if ended:
            run.learn()
            run.save()

    def _ask(self) -> None:
        """Ask for rounds while there is room; one at a time where the answer is there at once."""
        run = self._run
        while run.has_room() and run.stop_reason() is None:
            task_run = run.choose_task(self._waiting())
            if task_run is None:
                return
            asked = self._searches.ask(task_run)
            if asked is not None:  # the task is not skipped
                self._searching[task_run.index] = asked
                if asked.is_answered_here:
                    return

    def _waiting(self) -> list[int]:
        """Tasks that get no round now, of rounds side by side: their process is busy, or what is
        left of time or trials is for others' first rounds."""
        run = self._run
        if not self._searches.is_concurrent:
            return []
        has_more = not run.is_late and run.has_spare_trials
        return [
            task_run.index
            for task_run in run.task_runs
            if (task_run.n_rounds and not has_more) or not self._searches.is_free(task_run.index)
        ]

    def _take_searched(self) -> None:
        """Send off what is searched by now; where processes search, wait a moment for it, and
        take measurements in."""
        if self._searches.is_concurrent:
            answers = [each.answer for each in self._searching.values()]
            with self._run.breakdown.of("search"):
                futures.wait(answers, WAIT_S, futures.FIRST_COMPLETED)
            self._run.take_measured()
        for asked in [each for each in self._searching.values() if each.answer.done()]:
            del self._searching[asked.task_run.index]
            chosen = self._searches.chosen(asked)
            if chosen is not None:
                self._measure(asked.task_run.index, chosen)

    def _measure(self, index: int, chosen: rounds.Chosen) -> None:
        """Have candidates built and timed."""
        run = self._run
        n = run.submit(run.task_runs[index], chosen.candidates, chosen.programs)
        is_concurrent = self._searches.is_concurrent
        n_left = run.options.lookahead * n if is_concurrent else run.n_in_flight(n)
        self._measuring[index] = rounds.BeingMeasured(n, n_left)
