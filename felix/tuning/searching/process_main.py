"""A process that searches rounds of tasks: `python -m felix.tuning.searching.process_main FD`.

It opens a task with its first request and keeps it. The state of the search comes with each
request and goes back with the answer, so nothing is lost with the process.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from concurrent import futures
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch

from felix import errors
from felix.builder import payload
from felix.space import legality
from felix.task import Task
from felix.tuning import options, task_run, task_search
from felix.tuning.searching import processes

if TYPE_CHECKING:
    from felix.search import interface
    from felix.space.sketch import Sketch


class OpenTask:
    """A task of the run: its search, and which sketches have no legal schedule."""

    def __init__(self, index: int, task: Task) -> None:
        self._task_search = task_search.TaskSearch(index, task)
        self._failures: dict[int, str] = {}

    def answer(self, request: processes.Request) -> processes.Searched:
        """Search the round.

        Raises:
            FelixError: the task cannot be opened.
        """
        ours, start = self._task_search, time.perf_counter()
        if not ours.is_open:
            ours.open(
                options.making(request.sizes),
                request.models,
                request.seed,
                has_templates=request.has_templates,
                templates_first=not request.has_rest,
                make_formulas=self._make_formulas,
            )
        if request.has_rest and ours.unopened:
            ours.open_rest(make_formulas=self._make_formulas)
        search, open_s = ours.search, time.perf_counter() - start
        search.model = request.models
        if request.state is not None:
            search.load_state_dict(request.state)
        searched = search.run_round(request.n)
        return processes.Searched(
            searched=searched,
            programs=self._programs(searched.candidates),
            sketches=tuple((sketch.index, sketch.key) for sketch in ours.sketches),
            failures=dict(self._failures),
            open_s=open_s,
        )

    def _programs(
        self, candidates: Sequence[interface.Candidate]
    ) -> dict[interface.Key, task_run.Applied]:
        """What is measured of each candidate, as text."""
        with futures.ThreadPoolExecutor(processes.CORES_EACH) as threads:
            written = threads.map(self._written, candidates)
            return {each.key: made for each, made in zip(candidates, written, strict=True)}

    def _written(self, candidate: interface.Candidate) -> task_run.Applied:
        ours = self._task_search
        made = task_run.applied(ours.sketches[candidate.sketch_index], candidate)
        if isinstance(made, errors.InvalidSchedule):
            return made
        return payload.write(made, ours.task.target)

    def _make_formulas(self, sketch: Sketch) -> str | None:
        failure = legality.make_formulas(sketch)
        if failure is not None:
            self._failures[sketch.index] = failure
        return failure


def main(descriptor: int) -> None:
    """Say that the process is ready; answer requests until the run closes the connection."""
    torch.set_num_threads(1)
    tasks: dict[int, OpenTask] = {}
    with Connection(descriptor) as connection:
        connection.send(None)
        while True:
            try:
                data = connection.recv_bytes()
            except EOFError:
                return
            connection.send_bytes(_answer(tasks, data))


def _answer(tasks: dict[int, OpenTask], data: bytes) -> bytes:
    """The pickled answer to a pickled request, whatever happens: the run goes on without it."""
    try:
        request: processes.Request = pickle.loads(data)
        if request.task_index not in tasks:
            task = Task.from_json(request.task, trusted=True)  # the run's own
            tasks[request.task_index] = OpenTask(request.task_index, task)
        return pickle.dumps(tasks[request.task_index].answer(request))
    except errors.FelixError as error:
        return pickle.dumps(processes.Failed(str(error)))
    except Exception as error:  # the edge of the process
        return pickle.dumps(processes.Failed(f"a search process cannot search: {error!r}"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
