"""A process that does one request after the other, and is replaced when one fails."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

Request = dict[str, Any]
#: What a lane's process has while it lives, and what it does with a request.
Worker = Callable[[], contextlib.AbstractContextManager[Callable[[Request], None]]]

#: Seconds that a request may take before its process is ended.
PATIENCE_S = 240.0
#: Seconds that a process may take to end when there is nothing left to do.
END_S = 20.0


class Lane:
    """One process at a time, which starts with the first request; used by one thread.

    Args:
        worker: what the process runs; a function of a module, which the process imports.
        preloaded: modules that processes find imported.
        patience_s: how long a request may take.
    """

    def __init__(
        self, worker: Worker, preloaded: Sequence[str] = (), patience_s: float = PATIENCE_S
    ) -> None:
        self._worker = worker
        self._preloaded = list(preloaded)
        self._patience_s = patience_s
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def run(self, request: Request) -> bool:
        """Do a request, whose "log" is the file of what is printed; whether it was done.

        If not, the process is gone with all that it had, and the next request gets another one.
        """
        connection = self._connection or self._start()
        try:
            connection.send(request)
            if connection.poll(self._patience_s):
                connection.recv()
                return True
        except (EOFError, OSError):  # it ended
            pass
        self._end(0.0)
        return False

    def close(self) -> None:
        """Let the process end what it has."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.send(None)
            self._end(END_S)

    def _start(self) -> Connection:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(self._preloaded)
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._worker))
        self._process.start()
        theirs.close()  # so that the end of the process is the end of the stream
        self._connection = ours
        return ours

    def _end(self, patience_s: float) -> None:
        assert self._process is not None and self._connection is not None
        self._process.join(patience_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()
        self._process = self._connection = None


def _serve(connection: Connection, worker: Worker) -> None:
    """The process: an error of a request ends it, and is in the request's log."""
    request = connection.recv()
    if request is None:
        return
    _log_to(pathlib.Path(request["log"]))
    with worker() as do:
        while request is not None:
            do(request)
            connection.send(None)
            request = connection.recv()
            if request is not None:
                _log_to(pathlib.Path(request["log"]))


def _log_to(path: pathlib.Path) -> None:
    with open(path, "a") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
