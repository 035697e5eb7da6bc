"""The measurer of a tuner whose devices are boards: built here, run there.

Each board has a key of its own at the tracker, so that latencies of two boards do not mix: a
second one is compared with the first, as a second GPU of a machine is (`device_thread`).

The stages know a board as two processes here: references are built for this machine's CPU and run
by a confined run worker (`running.LocalRunner`); another process, which executes nothing of a
candidate, sends candidates to the board and reads what they compute there.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from felix import errors, target
from felix.builder import payload as payloads
from felix.measure import local_workers, running, work
from felix.measure import worker as pool_worker
from felix.measure.boards import tracker as trackers
from felix.runner import protocol
from felix.target import cpu
from felix.task import Task


class BoardPool(local_workers.PoolOfWorkers):
    """A `measurer.Measurer` for candidates of `task`; `for_task` serves others as well.

    Args:
        task: for the CPU of the boards.
        boards: at least one; all of one kind.
        options: of builders, references and timing.

    Raises:
        MeasureError: the tracker does not answer or has no such board, two boards have one key,
            or the target is no CPU.
    """

    def __init__(
        self, task: Task, boards: Sequence[Board], options: work.LocalOptions | None = None
    ) -> None:
        options = options or work.LocalOptions()
        _check(task, boards)
        hardware = target.hardware(task.target)
        cache_bytes = hardware.l3_bytes or hardware.l2_bytes
        devices = tuple(
            work.Device("cpu", hardware.name, cache_bytes, index) for index in range(len(boards))
        )
        self._stopped = threading.Event()
        super().__init__(task.target.kind.name, options, devices)
        runs = [
            self._runs_of(board, index, device, options)
            for index, (board, device) in enumerate(zip(boards, devices, strict=True))
        ]
        self._begin(runs, [worker for each in runs for worker in each.workers])
        self._task = self._task_of(task)

    def _reference_payload(self, task: Task) -> str:
        """References run on this machine, which may be of another kind than the boards."""
        return payloads.of(task.mod, target.parse("llvm"))

    def _runs_of(
        self, board: Board, index: int, device: work.Device, options: work.LocalOptions
    ) -> BoardRunner:
        here = self._processes.runner(
            f"reference-{index}",
            index,
            dataclasses.replace(device, name="this machine"),
            cpu.available_cores(),
            self.timing_lock,
            [],
        )
        client = self._processes.board_client(f"board-{index}", index, device)
        return BoardRunner(board, client, here, options, device, self._stopped)

    def _end(self) -> None:
        self._stopped.set()
        super()._end()


def _check(task: Task, boards: Sequence[Board]) -> None:
    if task.target.kind.name != "llvm":
        raise errors.MeasureError(
            f"boards run programs for their CPU, not for {task.target.kind.name}: give a target "
            "like 'llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -num-cores=4'"
        )
    if not boards:
        raise errors.MeasureError("name at least one board by its key")
    for board in boards:
        trackers.check_key(board.key)
    if len({(board.tracker, board.key) for board in boards}) < len(boards):
        raise errors.MeasureError("name each board once")
    for board in boards:
        there = board.tracker.keys()
        if there.count(board.key) > 1:
            raise errors.MeasureError(
                f"{there.count(board.key)} servers have the key {board.key}: latencies of two "
                "boards do not mix, so give each a key of its own and name all keys"
            )
        if board.key not in there:
            raise errors.MeasureError(
                f"the tracker at {board.tracker} has no board {board.key}, it has "
                f"{', '.join(sorted(there)) or 'none'}: start `felix worker --tracker "
                f"{board.tracker} --key {board.key}` on the board"
            )


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


class BoardRunner(running.OneByOne):
    """A board as a device.

    Args:
        board: where.
        client: the process that talks to it.
        here: runs references.
        options: of the pool.
        device: the board, as measurements name it.
        closed: set when the pool is closed.
    """

    unconfined = _UNCONFINED

    def __init__(
        self,
        board: Board,
        client: pool_worker.Worker,
        here: running.LocalRunner,
        options: work.LocalOptions,
        device: work.Device,
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

    def prepare(self, state: work.TaskState) -> None:
        """Run a task's reference on this machine; `state` holds a failure."""
        self._here.prepare(state)

    def _run(self, candidate: work.QueuedProgram, state: work.TaskState) -> protocol.Measurement:
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
        return running.timed(candidate, state, reply, self._device)

    def await_return(self) -> bool:
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
        raise work.WorkerGone(f"board {self._board.key}: {why}")

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
            raise work.WorkerGone(f"board {board.key}: {error}") from None
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            return str(error)
        return str(reply["message"]) if "error" in reply else None

    def _reply(self, candidate: work.QueuedProgram, state: work.TaskState) -> dict[str, Any]:
        """The process's reply, or a failure in its form."""
        request = self._request(candidate, state)
        try:
            return self._client.call(request, self._options.run_timeout_s)
        except (pool_worker.WorkerLost, errors.MeasureError) as error:
            kind = running.classify(error, _ErrorClass.INFRASTRUCTURE)
            return {"error": kind.value, "message": str(error)}
