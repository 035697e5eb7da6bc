"""What runs in the engine's process: one engine, made warm, and one request after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

from felix.measure import conditions
from server.store import networks, rows
from server.tuner import engine
from server.tuner.process import messages, remote_job

_log = logging.getLogger(__name__)

#: How often an engine without a job says how its devices are, in seconds.
IDLE_S = 2.0


class RemoteEngine(Protocol):
    """An engine that needs no more of a job than `engine.JobAccess`."""

    def devices(self) -> list[dict[str, Any]]:
        """See `engine.Engine`."""
        ...

    def conditions(self) -> list[conditions.Condition]:
        """How each device is; called while nothing or a job runs."""
        ...

    def versions(self) -> dict[str, str]:
        """See `engine.Engine`."""
        ...

    def run(self, claimed: engine.JobAccess) -> engine.Outcome:
        """See `engine.Engine`."""
        ...

    def export(
        self, claimed: engine.JobAccess, outcome: engine.Outcome, path: pathlib.Path
    ) -> list[engine.Code]:
        """See `engine.Engine`."""
        ...

    def build_network(
        self, claimed: engine.JobAccess, outcome: engine.Outcome, path: pathlib.Path
    ) -> networks.Built:
        """See `engine.Engine`."""
        ...

    def close(self) -> None:
        """See `engine.Engine`."""
        ...


def serve(connection: Connection, make_engine: Callable[[], RemoteEngine]) -> None:
    """Serve requests until the tuner's process is gone."""
    messages.send(connection, messages.Verb.HELLO, os.getpid())
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
    def __init__(self, connection: Connection, served: RemoteEngine) -> None:
        self._connection, self._engine = connection, served
        self._outcome: engine.Outcome | None = None

    def serve(self, request: tuple[Any, ...]) -> None:
        """Do what is asked for and say how it ended."""
        try:
            match request:
                case ("run", job):
                    self._run(job)
                case ("export", job, path):
                    self._export(job, path)
                case ("network", job, path):
                    self._build_network(job, path)
                case ("stop" | "yield",):
                    pass  # for a run that had just ended
        except (BrokenPipeError, EOFError):
            raise
        except Exception as error:  # the edge of this process
            if not isinstance(error, remote_job.Refused):
                _log.exception("the engine failed", extra={"action": "engine_failed"})
            name = messages.name_of(error)
            messages.send(self._connection, messages.Verb.FAILED, name, str(error))

    def _run(self, job: rows.Job) -> None:
        self._outcome = None
        outcome = self._engine.run(
            remote_job.RemoteJob(self._connection, job, self._engine.conditions)
        )
        self._outcome = outcome
        messages.send(self._connection, messages.Verb.ENDED, outcome.reason, outcome.failure)

    def _export(self, job: rows.Job, path: pathlib.Path) -> None:
        assert self._outcome is not None
        claimed = remote_job.RemoteJob(self._connection, job, self._engine.conditions)
        codes = self._engine.export(claimed, self._outcome, path)
        plain = [[code.task, code.schedule, code.source, code.assembly] for code in codes]
        messages.send(self._connection, messages.Verb.EXPORTED, plain)

    def _build_network(self, job: rows.Job, path: pathlib.Path) -> None:
        assert self._outcome is not None
        claimed = remote_job.RemoteJob(self._connection, job, self._engine.conditions)
        built = self._engine.build_network(claimed, self._outcome, path)
        messages.send(self._connection, messages.Verb.BUILT, dataclasses.asdict(built))


def _next(connection: Connection, served: RemoteEngine) -> tuple[Any, ...] | None:
    try:
        while not connection.poll(IDLE_S):
            remote_job.say_alive(connection, served.conditions)
        request: tuple[Any, ...] = connection.recv()
    except (EOFError, ConnectionError):
        return None
    return request
