"""The measurer of a tuner whose devices are boards: built here, run there.

Each board has a key of its own at the tracker, so that latencies of two boards do not mix: a
second one is compared with the first, as a second GPU of a machine is (`stages.device_stage`).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from felix import errors, target
from felix.measure import payload as payloads
from felix.measure.boards import board_runs, tracker
from felix.measure.pool import candidates, local_workers
from felix.target import cpu

if TYPE_CHECKING:
    from felix.task import Task


class BoardPool(local_workers.PoolOfWorkers):
    """A `protocol.Measurer` for candidates of `task`; `for_task` serves others as well.

    Args:
        task: for the CPU of the boards.
        boards: at least one; all of one kind.
        options: of builders, references and timing.

    Raises:
        MeasureError: the tracker does not answer or has no such board, two boards have one key,
            or the target is no CPU.
    """

    def __init__(
        self,
        task: Task,
        boards: Sequence[board_runs.Board],
        options: candidates.LocalOptions | None = None,
    ) -> None:
        options = options or candidates.LocalOptions()
        _check(task, boards)
        hardware = target.hardware(task.target)
        cache_bytes = hardware.l3_bytes or hardware.l2_bytes
        devices = tuple(
            candidates.Device("cpu", hardware.name, cache_bytes, index)
            for index in range(len(boards))
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
        self,
        board: board_runs.Board,
        index: int,
        device: candidates.Device,
        options: candidates.LocalOptions,
    ) -> board_runs.BoardRuns:
        here = self._processes.runner(
            f"reference-{index}",
            index,
            dataclasses.replace(device, name="this machine"),
            cpu.available_cores(),
            self.timing_lock,
            [],
        )
        client = self._processes.board_client(f"board-{index}", index, device)
        return board_runs.BoardRuns(board, client, here, options, device, self._stopped)

    def _end(self) -> None:
        self._stopped.set()
        super()._end()


def _check(task: Task, boards: Sequence[board_runs.Board]) -> None:
    if task.target.kind.name != "llvm":
        raise errors.MeasureError(
            f"boards run programs for their CPU, not for {task.target.kind.name}: give a target "
            "like 'llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -num-cores=4'"
        )
    if not boards:
        raise errors.MeasureError("name at least one board by its key")
    for board in boards:
        tracker.check_key(board.key)
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
