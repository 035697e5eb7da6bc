"""What runs in the engine's process: one engine, made warm, and one request after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from felix.measure import readings
from server.store import networks, progress, reuse, rows, trials
from server.tuner import engine
from server.tuner.process import messages

_log = logging.getLogger(__name__)

#: How often an engine without a job says how its devices are, in seconds.
IDLE_S = 2.0


class RemoteEngine(Protocol):
    """An engine that needs no more of a job than `engine.JobAccess`."""

    def devices(self) -> list[dict[str, Any]]:
        """See `engine.Engine`."""
        ...

    def conditions(self) -> list[readings.Condition]:
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
            if not isinstance(error, Refused):
                _log.exception("the engine failed", extra={"action": "engine_failed"})
            name = messages.name_of(error)
            messages.send(self._connection, messages.Verb.FAILED, name, str(error))

    def _run(self, job: rows.Job) -> None:
        self._outcome = None
        outcome = self._engine.run(RemoteJob(self._connection, job, self._engine.conditions))
        self._outcome = outcome
        messages.send(self._connection, messages.Verb.ENDED, outcome.reason, outcome.failure)

    def _export(self, job: rows.Job, path: pathlib.Path) -> None:
        assert self._outcome is not None
        claimed = RemoteJob(self._connection, job, self._engine.conditions)
        codes = self._engine.export(claimed, self._outcome, path)
        plain = [[code.task, code.schedule, code.source, code.assembly] for code in codes]
        messages.send(self._connection, messages.Verb.EXPORTED, plain)

    def _build_network(self, job: rows.Job, path: pathlib.Path) -> None:
        assert self._outcome is not None
        claimed = RemoteJob(self._connection, job, self._engine.conditions)
        built = self._engine.build_network(claimed, self._outcome, path)
        messages.send(self._connection, messages.Verb.BUILT, dataclasses.asdict(built))


def _next(connection: Connection, served: RemoteEngine) -> tuple[Any, ...] | None:
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


class RemoteJob:
    """An `engine.JobAccess` over a pipe; used by one thread.

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

    def programs(self) -> list[str]:
        """The tensor programs as `felix.Task.to_json`, in order."""
        return list(self._ask("programs"))

    def tasks(self) -> list[rows.Task]:
        """The job's tasks, in order."""
        return list(self._ask("tasks"))

    def model_file(self) -> bytes:
        """The file that the job was made from."""
        content: bytes = self._ask("model_file")
        return content

    def known_schedules(self, task: int) -> list[str]:
        """Records that an earlier job has of a task's program, fastest first."""
        return list(self._ask("known_schedules", task))

    def known_imports(self, task: int) -> list[rows.ImportedSchedule]:
        """Schedules that an imported database has of a task's program, fastest first."""
        return list(self._ask("known_imports", task))

    def known_similar(self, task: int) -> list[reuse.SimilarTask]:
        """Tasks of the same operator with other extents, and their fastest schedules."""
        return list(self._ask("known_similar", task))

    def begin(self, target_key: str, resolved_target: str) -> None:
        """Say for which device exactly the job is tuned."""
        self._ask("begin", target_key, resolved_target)

    def load(self) -> tuple[Sequence[str], progress.Checkpoint | None]:
        """Records of all trials so far, and the last checkpoint."""
        lines, checkpoint = self._ask("load")
        return lines, checkpoint

    def add_trial(self, new: trials.NewTrial) -> trials.Written:
        """Write a trial."""
        written: trials.Written = self._ask("add_trial", dataclasses.asdict(new))
        return written

    def add_remeasurement(self, new: trials.NewTrial) -> None:
        """Write a longer measurement of a candidate at the end of the run."""
        self._ask("add_remeasurement", dataclasses.asdict(new))

    def save(
        self, checkpoint: progress.Checkpoint, elapsed_s: float, breakdown: Mapping[str, Any]
    ) -> None:
        """Replace the checkpoint."""
        tensors = checkpoint.tensors
        arguments = (checkpoint.n_records, checkpoint.state, tensors is not None, elapsed_s)
        self._ask("save", *arguments, dict(breakdown), attachment=tensors or b"")

    def started(self, task_keys: Sequence[str], payload: Mapping[str, Any]) -> None:
        """Tuning begins or goes on."""
        self._ask("started", list(task_keys), dict(payload))

    def opened(
        self, task: int, n_sketches: int, extract_s: float, decisions: Mapping[str, Any]
    ) -> None:
        """The sketches of a task are ready."""
        self._ask("opened", task, n_sketches, extract_s, dict(decisions))

    def chosen(
        self, task: int, tuned_us: float | None, unscheduled_us: float, ships_unscheduled: bool
    ) -> None:
        """Which of the best schedule and the unscheduled program of a task ships."""
        self._ask("chosen", task, tuned_us, unscheduled_us, ships_unscheduled)

    def baseline(self, task: int, latency_us: float | None, message: str) -> None:
        """The unscheduled program of a task was timed."""
        self._ask("baseline", task, latency_us, message)

    def round_started(
        self, task: int, number: int, counts: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]
    ) -> None:
        """Candidates of a round were chosen."""
        self._ask("round_started", task, number, dict(counts), [dict(step) for step in steps])

    def trained(self, values: Mapping[str, Any]) -> None:
        """The cost model learnt."""
        self._ask("trained", dict(values))

    def warn(self, message: str) -> None:
        """Write something a person should know."""
        self._ask("warn", message)

    def _say(self, verb: str, *arguments: Any, attachment: bytes = b"") -> None:
        messages.send(self._connection, verb, *arguments, attachment=attachment)
        self._said_s = time.monotonic()

    def _ask(self, verb: str, *arguments: Any, attachment: bytes = b"") -> Any:
        self._say(verb, *arguments, attachment=attachment)
        while (reply := self._take()) is None:
            pass
        kind, content = reply
        if kind == "refused":
            raise Refused(content)
        return content

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


if TYPE_CHECKING:

    def _conforms(implementation: RemoteJob) -> engine.JobAccess:
        return implementation
