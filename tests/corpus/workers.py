"""Worker processes that check programs of the corpus, and are replaced when they die."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from multiprocessing.connection import Connection

from tests.corpus import outcome

LIMIT_S = 600

Case = tuple[str, str]
#: What to do with a case; a function of a module, or a partial one.
Check = Callable[[str, str], outcome.Outcome]


class _Worker:
    """A process that checks one program after the other, and is replaced when it dies."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._check), daemon=True)
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


def _serve(pipe: Connection, check: Check) -> None:
    while True:
        name, target = pipe.recv()
        pipe.send(check(name, target))


def outcomes(cases: Sequence[Case], jobs: int, check: Check) -> Iterator[outcome.Outcome]:
    """The outcome of each (program, target), in order."""
    idle = [_Worker(check) for _ in range(jobs)]
    workers = list(idle)

    def of(case: Case) -> outcome.Outcome:
        worker = idle.pop()
        try:
            return worker.check(case)
        finally:
            idle.append(worker)

    with futures.ThreadPoolExecutor(jobs) as threads:
        yield from threads.map(of, cases)
    for worker in workers:
        worker.close()
