"""The process that talks to a board: it leases a session, then checks and times candidates there.

It executes nothing of a candidate itself; the board does. A session ends at the board after
`session_s` seconds, so that a kernel that hangs does not keep the board; one that is older than
`lease_s` is given back and asked for again, so that others have their turns.

TVM's helper empties the board's caches of every argument but the first.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

from tvm import rpc

from felix.runner import protocol, timing
from felix.runner.cpu import runner as cpu_runner
from felix.runner.cpu import timing as cpu_timing
from felix.tir import grammar

#: What TVM raises for errors of a board and for a connection that has ended.
_BOARD_ERRORS = (*grammar.TVM_ERRORS, OSError)
_FLUSH = "cache_flush_cpu_non_first_arg"


@dataclasses.dataclass(slots=True)
class _Session:
    """A session on the board, and the task whose tensors are there."""

    remote: rpc.RPCSession
    since_s: float
    task: cpu_runner.Prepared | None = None


class Runner:
    """Verbs of the process; see `felix.measure.worker_main`."""

    def __init__(self) -> None:
        self._session: _Session | None = None

    def lease(
        self, host: str, port: int, key: str, priority: int, lease_s: float, session_s: float
    ) -> dict[str, Any]:
        """The `lease` verb: have a session on the board that is young enough."""
        held = self._session
        if held is not None and time.monotonic() - held.since_s < lease_s:
            return {"reusable": True}
        self._session = held = None  # the board is free before it is asked for
        tracker = rpc.connect_tracker(host, port)
        try:
            remote = tracker.request(key, priority, session_timeout=session_s, max_retry=1)
        finally:
            tracker.close()
        self._session = _Session(remote, time.monotonic())
        return {"reusable": True}

    def run(
        self, folder: str, library: str, options: dict[str, Any], best_us: float | None
    ) -> dict[str, Any]:
        """The `run` verb: check one candidate, then time it; `lost`: the session has ended."""
        session = self._session
        if session is None:
            return _failure(protocol.ErrorClass.INFRASTRUCTURE, "no session", lost=True)
        try:
            return self._measured(session, folder, library, options, best_us) | {"reusable": True}
        except _BOARD_ERRORS as error:
            lost = not _answers(session.remote)
            if lost:
                self._session = None
            return _failure(protocol.ErrorClass.LAUNCH, protocol.message_of(error), lost)

    def _measured(
        self,
        session: _Session,
        folder: str,
        library: str,
        options: dict[str, Any],
        best_us: float | None,
    ) -> dict[str, Any]:
        task = _load(session, folder)
        device, name = session.remote.cpu(0), pathlib.Path(library).name
        session.remote.upload(library, name)
        module = session.remote.load_module(name)
        first_us = task.first_us(module["main"], device)
        wrong = task.mismatch()
        if wrong is not None:
            return _failure(protocol.ErrorClass.WRONG_RESULT, wrong, lost=False)
        settings = timing.TimingOptions(**options)
        latencies_us = cpu_timing.latencies(
            module,
            device,
            task.tensors,
            settings,
            flush=_FLUSH,
            first_us=first_us,
            best_us=best_us,
        )
        session.remote.remove(name)
        return {"latencies_us": latencies_us}


def _load(session: _Session, folder: str) -> cpu_runner.Prepared:
    """The task with its tensors on the board."""
    if session.task is None or session.task.stored.folder != folder:
        session.task = None  # frees the other task's tensors before these are made
        session.task = cpu_runner.Prepared.read(folder, session.remote.cpu(0))
    return session.task


def _answers(remote: rpc.RPCSession) -> bool:
    """Whether the board still serves the session."""
    try:
        remote.cpu(0).sync()
        remote.get_function("tvm.rpc.server.workpath")("")
    except _BOARD_ERRORS:
        return False
    return True


def _failure(error: protocol.ErrorClass, message: str, lost: bool) -> dict[str, Any]:
    return {"error": error.value, "message": message, "reusable": True, "lost": lost}
