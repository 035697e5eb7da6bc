"""What runs in the engine's process: one engine, made warm, and one request after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from felix.measure import readings
from server import logs
from server.store import rows
from server.tuner import engine, job_access
from server.tuner.process import messages

_log = logs.of(__name__)

#: How often an engine without a job says how its devices are, in seconds.
IDLE_S = 2.0


def serve(connection: Connection, make_engine: Callable[[], engine.RemoteEngine]) -> None:
    """Serve requests until the tuner's process is gone."""
    try:
        made = make_engine()
    except Exception as error:  # the edge of this process: its tuner says why there is no engine
        messages.send(connection, messages.Verb.FAILED, messages.name_of(error), str(error))
        raise
    with contextlib.closing(made) as served:
        messages.send(connection, messages.Verb.READY, served.devices(), served.versions())
        requests = _Requests(connection, served)
        while (request := _next(connection, served)) is not None:
            requests.serve(request)


class _Requests:
    def __init__(self, connection: Connection, served: engine.RemoteEngine) -> None:
        self._connection, self._engine = connection, served
        self._outcome: engine.Outcome | None = None

    def serve(self, request: tuple[Any, ...]) -> None:
        """Do what is asked for and say how it ended."""
        try:
            if request not in (("stop",), ("yield",)):  # they are for a run that had just ended
                messages.send(self._connection, *self._run(*request))
        except (BrokenPipeError, EOFError):
            raise
        except Exception as error:  # the edge of this process
            if not isinstance(error, Refused):
                _log.exception("the engine failed", action="engine_failed")
            name = messages.name_of(error)
            messages.send(self._connection, messages.Verb.FAILED, name, str(error))

    def _run(self, verb: str, job: rows.Job, *path: pathlib.Path) -> tuple[Any, ...]:
        """Have the engine do it; the last message to the tuner."""
        claimed = RemoteJob(self._connection, job, self._engine.conditions)
        if verb == "run":
            self._outcome = None
            self._outcome = outcome = self._engine.run(claimed)
            return messages.Verb.ENDED, outcome.reason, outcome.failure
        assert self._outcome is not None
        if verb == "export":
            codes = self._engine.export(claimed, self._outcome, *path)
            return messages.Verb.EXPORTED, [dataclasses.asdict(code) for code in codes]
        built = self._engine.build_network(claimed, self._outcome, *path)
        return messages.Verb.BUILT, dataclasses.asdict(built)


def _next(connection: Connection, served: engine.RemoteEngine) -> tuple[Any, ...] | None:
    try:
        while not connection.poll(IDLE_S):
            say_alive(connection, served.conditions)
        request: tuple[Any, ...] = connection.recv()
    except (EOFError, ConnectionError):
        return None
    return request


#: How often an engine that computes says that it is alive, in seconds.
ALIVE_S = 0.5


class Refused(Exception):
    """The tuner could not do what the engine asked for; it knows why."""


def say_alive(connection: Connection, how: Callable[[], list[readings.Condition]]) -> None:
    """Tell the tuner that the engine is alive, and how its devices are."""
    said = [dataclasses.asdict(each) for each in how()]
    messages.send(connection, messages.Verb.ALIVE, said)


class RemoteJob(job_access.JobAccess):
    """A job over a pipe; used by one thread.

    Args:
        connection: to the tuner.
        job: what to tune.
        how: says how the engine's devices are.
    """

    def __init__(
        self,
        connection: Connection,
        job: rows.Job,
        how: Callable[[], list[readings.Condition]] = list,
    ) -> None:
        self.job, self._how = job, how
        self._connection = connection
        self._is_stopped = self._is_yielding = False
        self._said_s = time.monotonic()

    def should_stop(self) -> bool:
        """Whether the tuner said so."""
        while not self._is_stopped and self._connection.poll():
            self._take()
        if time.monotonic() - self._said_s >= ALIVE_S:
            say_alive(self._connection, self._how)
            self._said_s = time.monotonic()
        return self._is_stopped

    def should_yield(self) -> bool:
        """Whether the tuner said that it is another key's turn."""
        self.should_stop()
        return self._is_yielding

    def begin_step(self, step: str) -> None:
        """Say what is done from now on."""
        self._say(messages.Verb.STEP, step)

    def do(self, verb: str, *arguments: Any) -> Any:
        """Have the tuner do it."""
        plain, attachment = messages.encoded(verb, arguments)
        self._say(verb, *plain, attachment=attachment)
        while (reply := self._take()) is None:
            pass
        kind, content = reply
        if kind == "refused":
            raise Refused(content)
        return content

    def _say(self, verb: str, *arguments: Any, attachment: bytes = b"") -> None:
        messages.send(self._connection, verb, *arguments, attachment=attachment)
        self._said_s = time.monotonic()

    def _take(self) -> tuple[str, Any] | None:
        """The next message of the tuner; None if it was one to stop or yield."""
        kind, *content = self._connection.recv()
        if kind == "yield":
            self._is_yielding = True
            return None
        if kind == "stop":
            self._is_stopped = True
            return None
        return kind, content[0]
