"""Worker processes that check programs of the corpus, and are replaced when they die."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent import futures
from multiprocessing.connection import Connection

from tests.corpus import outcome

LIMIT_S = 300

Case = tuple[str, str]


class _Worker:
    """A process that checks one program after the other, and is replaced when it dies."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._rows), daemon=True)
        self._process.start()
        other.close()

    def check(self, case: Case) -> outcome.Outcome:
        self._pipe.send(case)
        try:
            if self._pipe.poll(LIMIT_S):
                result: outcome.Outcome = self._pipe.recv()
                return result
            message = f"took over {LIMIT_S} s"
        except (EOFError, ConnectionResetError):
            self._process.join()
            message = f"the process ended with status {self._process.exitcode}"
        self.close()
        self._start()
        return outcome.Outcome(*case, outcome.Kind.ERROR, message=message)

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, rows: int) -> None:
    while True:
        name, target = pipe.recv()
        pipe.send(outcome.of(name, target, rows))


def outcomes(cases: list[Case], jobs: int, rows: int) -> Iterator[outcome.Outcome]:
    """The outcome of each (program, target), in order."""
    idle = [_Worker(rows) for _ in range(jobs)]
    workers = list(idle)

    def check(case: Case) -> outcome.Outcome:
        worker = idle.pop()
        try:
            return worker.check(case)
        finally:
            idle.append(worker)

    with futures.ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(check, cases)
    for worker in workers:
        worker.close()
