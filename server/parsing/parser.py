"""Workloads of clients, parsed where they can do no harm: in limited child processes.

    parser = Parser(seconds=60, memory_bytes=8 << 30)
    parsed = parser.parse(Workload(kind="onnx", name="net.onnx", content=data), "llvm")

The children come from a fork server that has TVM imported already, so one costs milliseconds,
and the API's process never imports TVM. A child is confined (`felix.processes.confine`): it works
in an empty folder, with no rights to data and no secret in its memory, within limits of time and
address space. It replies with JSON text, so nothing of a client's is ever unpickled. Whatever
kills it (a crash of TVM's reader, too much memory) is `InvalidRequest`, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import multiprocessing
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from felix.processes import child, confine, fork_server
from server import errors
from server.parsing import databases
from server.store import imports, jobs, networks

Kind = Literal["operator", "onnx", "tir"]

#: Replies longer than this are refused: the tasks of one model.
MAX_REPLY_BYTES = 256 << 20
#: What the child has to know of a device.
_DEVICE_FIELDS = ("target_keys", "hardware", "memory_bytes")
#: How long the fork server may take to import TVM, in seconds.
START_S = 120.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What to tune: an operator's name and parameters, or a file's name and content."""

    kind: Kind
    #: the operator, or the file's name
    name: str
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    content: bytes = b""
    #: of ONNX inputs whose extents the file leaves open
    shapes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    #: of ONNX inputs that are the same in every call
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    #: whether products of float32 may be computed in TF32
    allow_tf32: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The tasks, and which devices can measure them (`server.parsing.devices`)."""

    tasks: tuple[jobs.NewTask, ...]
    target_key: str
    #: what was left out and why
    notes: tuple[str, ...]
    #: software that latencies depend on
    versions: Mapping[str, str]
    #: what a model calls, those with a task first; none of an operator or a program
    groups: tuple[networks.Group, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDatabase:
    """The programs of a MetaSchedule database, and the schedules of each, the fastest first."""

    tasks: tuple[jobs.NewTask, ...]
    schedules: tuple[tuple[imports.NewSchedule, ...], ...]
    #: llvm or cuda
    target: str
    target_key: str
    n_records: int
    #: what was left out and why
    notes: tuple[str, ...]


class Parser:
    """Parses in child processes; safe to share between threads.

    Args:
        seconds: limit of one child, in CPU and wall time.
        memory_bytes: limit of one child's address space.
        at_once: children at the same time; further callers wait.
        forks: what gives the fork server; None: one for all parsers of this process.
    """

    def __init__(
        self,
        seconds: float = 60.0,
        memory_bytes: int = 8 << 30,
        at_once: int = 2,
        forks: Callable[[], fork_server.ForkServer] | None = None,
    ) -> None:
        self._seconds, self._memory_bytes = seconds, memory_bytes
        self._turn = threading.Semaphore(at_once)
        self._forks = forks or shared_fork_server
        confine.warn_of_missing()

    def warm(self) -> None:
        """Start the fork server and let it import TVM, in a thread."""
        threading.Thread(target=self.operators, daemon=True).start()

    def parse(
        self, workload: Workload, target: str, devices: Sequence[Mapping[str, Any]] = ()
    ) -> Parsed:
        """The tasks of a workload.

        Args:
            workload: what the client sent.
            target: what the client wants it for.
            devices: those of the tuners; a workload too large for all that fit is refused.

        Raises:
            InvalidRequest: it is malformed, or not what Felix can tune; the message says why.
        """
        request = {
            "verb": "parse",
            "kind": workload.kind,
            "name": workload.name,
            "params": dict(workload.params),
            "shapes": {name: list(shape) for name, shape in workload.shapes.items()},
            "values": dict(workload.values),
            "allow_tf32": workload.allow_tf32,
            "target": target,
            "devices": [
                {name: device[name] for name in _DEVICE_FIELDS if name in device}
                for device in devices
            ],
        }
        reply = self._request(request, workload.content)
        return Parsed(
            tasks=tuple(jobs.NewTask(**task) for task in reply["tasks"]),
            target_key=reply["target_key"],
            notes=tuple(reply["notes"]),
            versions=reply["versions"],
            groups=tuple(networks.Group(**group) for group in reply["groups"]),
        )

    def parse_database(self, name: str, database: databases.Database) -> ParsedDatabase:
        """The programs and schedules of a MetaSchedule database.

        Raises:
            InvalidRequest: it is malformed or has no record that Felix can use.
        """
        content = json.dumps(dataclasses.asdict(database)).encode()
        reply = self._request({"verb": "database", "name": name}, content)
        schedules = [task.pop("schedules") for task in reply["tasks"]]
        return ParsedDatabase(
            tasks=tuple(jobs.NewTask(**task) for task in reply["tasks"]),
            schedules=tuple(
                tuple(imports.NewSchedule(**schedule) for schedule in of_task)
                for of_task in schedules
            ),
            target=reply["target"],
            target_key=reply["target_key"],
            n_records=reply["n_records"],
            notes=tuple(reply["notes"]),
        )

    @functools.cached_property
    def _operators(self) -> dict[str, Any]:
        schemas: dict[str, Any] = self._request({"verb": "operators"}, b"")["operators"]
        return schemas

    def operators(self) -> dict[str, Any]:
        """JSON Schema of the parameters of every operator, by name."""
        return self._operators

    def _request(self, request: Mapping[str, Any], content: bytes) -> dict[str, Any]:
        header = json.dumps({**request, "seconds": self._seconds, "bytes": self._memory_bytes})
        with self._turn:
            text = self._run_child(header.encode(), content)
        if text is None:
            raise errors.InvalidRequest(
                "the workload crashed the reader, or needs more memory than the "
                f"{self._memory_bytes >> 20:,} MiB that reading may take"
            )
        reply: dict[str, Any] = json.loads(text)
        if reply["error"] is not None:
            raise errors.InvalidRequest(reply["error"])
        return reply

    def _run_child(self, header: bytes, content: bytes) -> bytes | None:
        """The child's reply; None if it died."""
        server = self._forks()
        ours, theirs = multiprocessing.Pipe()
        with ours:
            with theirs:
                pid = server.fork({"folder": str(_empty_folder(server))}, theirs)
            try:
                ours.send_bytes(header)
                ours.send_bytes(content)
                if not ours.poll(self._seconds):
                    raise errors.InvalidRequest(
                        f"reading the workload takes longer than {self._seconds:g} s"
                    )
                with _killed_after(self._seconds, pid):  # half a reply
                    return ours.recv_bytes(MAX_REPLY_BYTES)
            except (EOFError, OSError):
                return None
            finally:
                child.end_group(pid, server.wait)


@functools.cache
def shared_fork_server() -> fork_server.ForkServer:
    """One for this process: it takes seconds to start, and ends with the process."""
    return fork_server.ForkServer("server.parsing.fork_server_main", START_S)


def _empty_folder(server: fork_server.ForkServer) -> pathlib.Path:
    folder = server.work_dir / "empty"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def _killed_after(seconds: float, pid: int) -> Iterator[None]:
    """End a process unless the block ends first."""
    timer = threading.Timer(seconds, child.signal_group, [pid, signal.SIGKILL])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
