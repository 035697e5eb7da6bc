"""A board as the stages of a pool know it: two processes here, one that talks to it.

References are built for this machine's CPU and run by a confined run worker
(`run_stage.RunWorker`); another process, which executes nothing of a candidate, sends candidates
to the board and reads what they compute there.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import Any

from felix import errors
from felix.measure import protocol
from felix.measure.boards import tracker as trackers
from felix.measure.pool import candidates
from felix.measure.pool import worker as pool_worker
from felix.measure.pool.stages import run_stage

_ErrorClass = protocol.ErrorClass
_log = logging.getLogger(__name__)

#: A board that is not to be had for so many seconds is gone: others give it back sooner.
_GONE_S = 120.0
#: A server that starts again after a crash refuses some requests.
_TRIES = 5
#: Between two of them, and between two questions whether a board is back.
_AGAIN_S = 1.0
_UNCONFINED = "TVM's RPC server runs what it is sent, on the board"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A board.

    Attributes:
        tracker: where it is to be had.
        key: its own at the tracker.
        priority: of requests; those of larger numbers come first.
        lease_s: a session that is older is given back before the next candidate, so that others
            have their turns. The board ends it by itself two candidates' time later, which is
            how long a kernel that hangs may keep it.
    """

    tracker: trackers.Tracker
    key: str
    priority: int = 1
    lease_s: float = 20.0


class BoardRuns(run_stage.OneByOne):
    """A `device_stage.Runs` on a board.

    Args:
        board: where.
        client: the process that talks to it.
        here: runs references.
        options: of the pool.
        device: the board, as measurements name it.
        closed: set when the pool is closed.
    """

    broken: str | None = None
    unconfined: str | None = _UNCONFINED

    def __init__(
        self,
        board: Board,
        client: pool_worker.Worker,
        here: run_stage.RunWorker,
        options: candidates.LocalOptions,
        device: candidates.Device,
        closed: threading.Event,
    ) -> None:
        super().__init__(options, device)
        self._board, self._client, self._here, self._closed = board, client, here, closed

    @property
    def workers(self) -> list[pool_worker.Worker]:
        """The processes."""
        return [self._client, self._here.worker]

    def open(self, arch: str) -> None:
        """Nothing: the board is asked for when there is a candidate."""

    def prepare(self, state: candidates.TaskState) -> None:
        """Run a task's reference on this machine; `state` holds a failure."""
        self._here.prepare(state)

    def _run(
        self, candidate: candidates.Candidate, state: candidates.TaskState
    ) -> protocol.Measurement:
        """One that costs two sessions their lives has failed."""
        start = time.monotonic()
        self._lease()
        reply = self._reply(candidate, state)
        if reply.get("lost"):
            self._lease()
            reply = self._reply(candidate, state)
        if reply.get("lost") or reply.get("error") == _ErrorClass.TIMEOUT.value:
            self._lease()  # or the board is gone, and the candidate is not to blame
        if "error" in reply:
            run_s = time.monotonic() - start
            error, message = _ErrorClass(reply["error"]), f"running: {reply['message']}"
            return candidate.failed(error, message, run_s)
        return run_stage.timed(candidate, state, reply, self._device)

    def is_back(self) -> bool:
        """Wait until the tracker has the board; False: the pool is closed before."""
        while not self._closed.is_set():
            try:
                if self._board.key in self._board.tracker.keys():
                    return True
            except errors.MeasureError:
                pass  # the tracker is away, too
            self._closed.wait(_AGAIN_S)
        return False

    def _lease(self) -> None:
        """Have a session; raises `WorkerGone` if the board gives none."""
        for number in range(1, _TRIES + 1):
            why = self._refused()
            if why is None:
                return
            if self._closed.is_set() or number == _TRIES:
                break
            self._closed.wait(_AGAIN_S)
        raise candidates.WorkerGone(f"board {self._board.key}: {why}")

    def _refused(self) -> str | None:
        """Why the board gives no session; None if it has given one."""
        board = self._board
        request = {
            "verb": "lease",
            "host": board.tracker.host,
            "port": board.tracker.port,
            "key": board.key,
            "priority": board.priority,
            "lease_s": board.lease_s,
            "session_s": board.lease_s + 2 * self._options.run_timeout_s,
        }
        try:
            if board.key not in board.tracker.keys():
                return f"the tracker at {board.tracker} has no such key now"
            reply = self._client.call(request, _GONE_S)
        except pool_worker.WorkerTimeout as error:
            raise candidates.WorkerGone(f"board {board.key}: {error}") from None
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            return str(error)
        return str(reply["message"]) if "error" in reply else None

    def _reply(
        self, candidate: candidates.Candidate, state: candidates.TaskState
    ) -> dict[str, Any]:
        """The process's reply, or a failure in its form."""
        request = self._request(candidate, state)
        try:
            return self._client.call(request, self._options.run_timeout_s)
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            kind = run_stage.classify(error, _ErrorClass.INFRASTRUCTURE)
            return {"error": kind.value, "message": str(error)}
