"""The search processes of a run (`process_main`): started, asked, ended.

A task stays with one of them, which keeps its formulas. A process that cannot be started, or
that ends, costs time and nothing else: the run searches itself where no process can.

One request has one answer. Both ends are of one user and one version, so messages are pickled.
"""

from __future__ import annotations

import collections
import dataclasses
import pickle
import socket
from collections.abc import Mapping, Sequence
from concurrent import futures
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeAlias

from felix.features.kind import FeatureKind
from felix.processes import child
from felix.target import cpu

if TYPE_CHECKING:
    from torch import nn

    from felix.search import GradientOptions, base, interface
    from felix.task import Task
    from felix.tuning import task_run

#: Processes at most, and cores for each: builders have the others.
MAX_PROCESSES, CORES_EACH = 8, 4
_MODULE = "felix.tuning.searching.process_main"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Search one round of a task."""

    task_index: int
    #: its text (`Task.to_json`)
    task: str
    #: of the search
    sizes: GradientOptions
    has_templates: bool
    #: of the run
    seed: int
    #: whether the search has the sketches of traces, which may be left to the second round
    has_rest: bool
    #: copies that predict ln(latency_us) for the task
    models: Mapping[FeatureKind, nn.Module]
    #: of the search; None: it begins
    state: dict[str, Any] | None
    #: candidates
    n: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The round."""

    searched: base.Round
    #: (index, key) of the sketches that the search has, in its order
    sketches: tuple[tuple[int, str], ...]
    #: what is measured of each candidate, or why there is nothing
    programs: Mapping[interface.Key, task_run.Applied]
    #: why others have no legal schedule, by their index
    failures: Mapping[int, str]
    #: what opening sketches took for this request
    open_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """There is no round: the run searches itself, and finds out why."""

    message: str


Answer: TypeAlias = Searched | Failed


def n_processes(tasks: Sequence[Task], asked: int | None) -> int:
    """How many processes pay, or as many as were asked for.

    None for one task, or on a CPU (they would disturb timing).
    """
    if len(tasks) < 2 or tasks[0].target.kind.name == "llvm":
        return 0
    pay = min(MAX_PROCESSES, cpu.available_cores() // CORES_EACH)
    count = pay if asked is None else asked
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

    def submit(self, request: Request) -> futures.Future[Answer]:
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
        self._request: futures.Future[Answer] | None = None
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

    def submit(self, request: Request) -> futures.Future[Answer]:
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

    def _ask(self, request: Request) -> Answer:
        try:
            data = pickle.dumps(request)
        except Exception as error:  # of a user's model: its own code says how it is pickled
            return Failed(f"the cost model cannot be sent to a search process: {error!r}")
        try:
            self._connection.send_bytes(data)
            answer: Answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            self._has_ended = True
            return Failed(f"a search process ended: {error!r}")
        return answer
