"""The loop of a measuring worker, run in a fork of the `fork_server_main`.

A request is a pickled dict with a `verb`. The worker replies in JSON (`inbox`): `started`, then
any number of `quiet` (each of which the parent answers when nothing else runs) and `resting` (it
sleeps so many seconds, which are not charged to the request), then `done` with the reply. A reply
is a dict with the `seconds` that the request took, CPU seconds of a build; one with `error` says
that it failed. End-of-file ends the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from felix import errors
from felix.measure import board_runner, build, protocol, reference_build
from felix.measure.cpu import runner as cpu_runner
from felix.measure.cuda import build as cuda_build
from felix.measure.cuda import runner as cuda_runner
from felix.measure.pool import inbox

Reply = dict[str, Any]
_ErrorClass = protocol.ErrorClass
#: Error class of what a verb raises.
_ERROR_OF_VERB = {
    "build": _ErrorClass.BUILD,
    "build_cuda": _ErrorClass.BUILD,
    "reference": _ErrorClass.BUILD,
    "open": _ErrorClass.INFRASTRUCTURE,
    "lease": _ErrorClass.INFRASTRUCTURE,
    "prepare": _ErrorClass.INFRASTRUCTURE,
    "run": _ErrorClass.LAUNCH,
}


def serve(conn: Connection, settings: dict[str, Any]) -> None:
    """Answer requests until the parent closes the pipe."""
    verbs: dict[str, Callable[..., Reply]] = {
        "build": build.handle,
        "build_cuda": cuda_build.handle,
        "reference": reference_build.handle,
    }
    if settings["device"] == "board":
        boards = board_runner.Runner()
        return _loop(conn, {"lease": boards.lease, "run": boards.run})
    runner: cpu_runner.Runner | cuda_runner.Runner
    if settings["device"] == "cuda":
        runner = cuda_runner.Runner(settings["tasks"], quiet=lambda: _quiet(conn))
        verbs["open"] = runner.open
    else:
        runner = cpu_runner.Runner(
            settings["device"],
            settings["threads"],
            quiet=lambda: _quiet(conn),
            rest=lambda seconds: _rest(conn, seconds),
        )
    return _loop(conn, verbs | {"prepare": runner.prepare, "run": runner.run})


def _loop(conn: Connection, verbs: dict[str, Callable[..., Reply]]) -> None:
    while True:
        try:
            request = conn.recv()
            inbox.send(conn, "started")
            name = request.pop("verb")
            inbox.send(conn, "done", _answer(name, verbs[name], request))
        except (EOFError, BrokenPipeError):
            return


def _answer(name: str, verb: Callable[..., Reply], request: dict[str, Any]) -> Reply:
    # a build computes all the time, if it has a core and is not stopped
    error_class = _ERROR_OF_VERB[name]
    clock = time.process_time if error_class is _ErrorClass.BUILD else time.perf_counter
    start = clock()
    try:
        reply = verb(**request)
    except errors.MeasureError as error:  # something that this machine lacks
        reply = {"error": _ErrorClass.INFRASTRUCTURE.value, "message": _message(error)}
    except Exception as error:  # the edge of the process: the candidate failed, whatever it was
        reply = {"error": error_class.value, "message": _message(error)}
    reply["seconds"] = clock() - start
    return reply


def _message(error: Exception) -> str:
    """The first line that says something: TVM's messages begin with a stack trace at times."""
    lines = [line.strip() for line in str(error).splitlines()]
    informative = [line for line in lines if line and not line.startswith(("File ", "Traceback"))]
    return f"{type(error).__name__}: {informative[0] if informative else 'no message'}"[:500]


def _quiet(conn: Connection) -> None:
    inbox.send(conn, "quiet")
    conn.recv()


def _rest(conn: Connection, seconds: float) -> None:
    inbox.send(conn, "resting", seconds)
    time.sleep(seconds)
