"""The loop of a measuring worker, run in a fork of a fork server.

`fork_server_main` forks builders and what runs on CPUs, `gpu_fork_server_main` what runs on GPUs,
which is why nothing here needs TVM.

A request is a pickled dict with a `verb`. The worker replies in JSON (`inbox`): `started`, then
any number of `quiet` (each of which the parent answers when nothing else runs) and `resting` (it
sleeps so many seconds, which are not charged to the request), then `done` with the reply. A reply
is a dict with the `seconds` that the request took, CPU seconds of a build; one with `error` says
that it failed. End-of-file ends the worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from felix import errors
from felix.measure import inbox
from felix.processes import confine, fork_loop, policy
from felix.runner import protocol

Reply = dict[str, Any]
Verbs: TypeAlias = Mapping[str, Callable[..., Reply]]
_ErrorClass = protocol.ErrorClass
#: Error class of what a verb raises; others are not about a candidate.
_ERROR_OF_VERB = dict.fromkeys(("build", "build_cuda", "reference"), _ErrorClass.BUILD)
_ERROR_OF_VERB["run"] = _ErrorClass.LAUNCH


def become(conn: Connection, settings: Mapping[str, Any]) -> None:
    """Become a worker: if need be confined, before the first request is read."""
    fork_loop.write_to(settings["log"])
    os.nice(settings["nice"])
    os.environ.update(settings["environment"])
    if settings["confined"]:
        confine.confine(policy.Policy(**settings["policy"]), [conn.fileno()])


def serve(conn: Connection, verbs: Verbs) -> None:
    """Answer requests until the parent closes the pipe."""
    while True:
        try:
            request = conn.recv()
            inbox.send(conn, "started")
            name = request.pop("verb")
            inbox.send(conn, "done", _answer(name, verbs[name], request))
        except (EOFError, BrokenPipeError):
            return


def quiet(conn: Connection) -> None:
    """Wait until nothing else runs."""
    inbox.send(conn, "quiet")
    conn.recv()


def rest(conn: Connection, seconds: float) -> None:
    """Sleep, not charged to the request."""
    inbox.send(conn, "resting", seconds)
    time.sleep(seconds)


def _answer(name: str, verb: Callable[..., Reply], request: dict[str, Any]) -> Reply:
    # a build computes all the time, if it has a core and is not stopped
    error_class = _ERROR_OF_VERB.get(name, _ErrorClass.INFRASTRUCTURE)
    clock = time.process_time if error_class is _ErrorClass.BUILD else time.perf_counter
    start = clock()
    try:
        reply = verb(**request)
    except errors.MeasureError as error:  # something that this machine lacks
        reply = {"error": _ErrorClass.INFRASTRUCTURE.value, "message": protocol.message_of(error)}
    except Exception as error:  # the edge of the process: the candidate failed, whatever it was
        reply = {"error": error_class.value, "message": protocol.message_of(error)}
    reply["seconds"] = clock() - start
    return reply
