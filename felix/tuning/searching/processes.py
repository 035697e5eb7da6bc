"""The search processes of a run (`process_main`): started, asked, ended.

A task stays with one of them, which keeps its formulas. A process that cannot be started, or
that ends, costs time and nothing else: the run searches itself where no process can.
"""

from __future__ import annotations

import collections
import pickle
import socket
from collections.abc import Sequence
from concurrent import futures
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from felix.processes import child
from felix.target import cpu
from felix.tuning.searching import messages

if TYPE_CHECKING:
    from felix.task import Task

#: Processes at most, and cores for each: builders have the others.
MAX_PROCESSES, CORES_EACH = 8, 4
_MODULE = "felix.tuning.searching.process_main"


def n_processes(
    tasks: Sequence[Task], asked: int | None = None, n_cores: int | None = None
) -> int:
    """How many processes pay, or as many as were asked for.

    None for one task, or on a CPU (they would disturb timing).
    """
    if len(tasks) < 2 or tasks[0].target.kind.name == "llvm":
        return 0
    cores = cpu.available_cores() if n_cores is None else n_cores
    count = min(MAX_PROCESSES, cores // CORES_EACH) if asked is None else asked
    return min(count, len(tasks))


class SearchProcesses:
    """So many processes; `close` ends them."""

    def __init__(self, count: int) -> None:
        self._processes: list[_Process] = []
        self._process_of: dict[int, _Process] = {}
        try:
            for _ in range(count):
                self._processes.append(_Process())
        except OSError:  # the run does with those that could be started
            return
        except BaseException:
            self.close()
            raise

    @property
    def n_ready(self) -> int:
        """How many processes take requests by now."""
        return sum(process.is_ready for process in self._processes)

    @property
    def is_idle(self) -> bool:
        """Whether any process has nothing to do."""
        return any(process.is_idle for process in self._processes)

    def may_take(self, task_index: int) -> bool:
        """Whether the process of a task is idle, or it has none and any process is idle."""
        process = self._process_of.get(task_index)
        if process is None or not process.is_ready:
            return self.is_idle
        return process.is_idle

    def submit(self, request: messages.Request) -> futures.Future[messages.Answer]:
        """Have a round searched by the task's process; `may_take` says that it is idle.

        A process may have ended since `may_take`; where none is idle any more, the answer is that
        of one that has ended, or of one that is busy when it has time.
        """
        process = self._process_of.get(request.task_index)
        if process is None or not process.is_ready:
            n_tasks = collections.Counter(self._process_of.values())
            idle = [each for each in self._processes if each.is_idle] or self._processes
            process = self._process_of[request.task_index] = min(idle, key=n_tasks.__getitem__)
        return process.submit(request)

    def close(self) -> None:
        """End all processes; may be called twice."""
        for process in self._processes:
            process.close()


class _Process:
    """One process, and the thread that talks to it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._connection = Connection(ours.detach())
            descriptor = theirs.fileno()
            self._child = child.start(_MODULE, str(descriptor), pass_fds=[descriptor])
        self._thread = futures.ThreadPoolExecutor(1, "felix-search")
        self._greeting = self._thread.submit(self._wait_for_greeting)
        self._request: futures.Future[messages.Answer] | None = None
        self._has_ended = False

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests: it has started, and has not ended."""
        has_ended = self._has_ended or self._child.poll() is not None
        return self._greeting.done() and self._greeting.result() and not has_ended

    @property
    def is_idle(self) -> bool:
        """Whether it takes requests and has none."""
        return self.is_ready and (self._request is None or self._request.done())

    def submit(self, request: messages.Request) -> futures.Future[messages.Answer]:
        """Have a round searched."""
        self._request = self._thread.submit(self._ask, request)
        return self._request

    def close(self) -> None:
        """End it, and what it started."""
        child.end(self._child)
        self._thread.shutdown()
        self._connection.close()

    def _wait_for_greeting(self) -> bool:
        try:
            self._connection.recv()
        except (EOFError, OSError):
            return False
        return True

    def _ask(self, request: messages.Request) -> messages.Answer:
        try:
            data = pickle.dumps(request)
        except Exception as error:  # of a user's model: its own code says how it is pickled
            return messages.Failed(f"the cost model cannot be sent to a search process: {error!r}")
        try:
            self._connection.send_bytes(data)
            answer: messages.Answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            self._has_ended = True
            return messages.Failed(f"a search process ended: {error!r}")
        return answer
