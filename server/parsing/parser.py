"""Workloads of clients, parsed where they can do no harm: in limited child processes.

    parser = Parser(seconds=60, memory_bytes=8 << 30)
    parsed = parser.parse(Workload(kind="onnx", name="net.onnx", content=data), "llvm")

The children come from a fork server that has TVM imported already, so one costs milliseconds,
and the API's process never imports TVM. A child has limits of time, address space and file size;
it replies with JSON text, so nothing of a client's is ever unpickled. Whatever kills it (a crash
of TVM's reader, too much memory) is `InvalidRequest`, too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from server import errors
from server.store import jobs

Kind = Literal["operator", "onnx", "tir"]

#: Replies longer than this are refused: the tasks of one model.
MAX_REPLY_BYTES = 256 << 20


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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The tasks, and which devices can measure them (`server.parsing.devices`)."""

    tasks: tuple[jobs.NewTask, ...]
    target_key: str
    #: what was left out and why
    notes: tuple[str, ...]


class Parser:
    """Parses in child processes; safe to share between threads.

    Args:
        seconds: limit of one child, in CPU and wall time.
        memory_bytes: limit of one child's address space.
        at_once: children at the same time; further callers wait.
    """

    def __init__(
        self, seconds: float = 60.0, memory_bytes: int = 8 << 30, at_once: int = 2
    ) -> None:
        self._seconds, self._memory_bytes = seconds, memory_bytes
        self._turn = threading.Semaphore(at_once)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["felix.without_torch", "server.parsing.child"])

    def warm(self) -> None:
        """Start the fork server and let it import TVM, in a thread."""
        threading.Thread(target=self.operators, daemon=True).start()

    def parse(self, workload: Workload, target: str) -> Parsed:
        """The tasks of a workload.

        Raises:
            InvalidRequest: it is malformed, or not what Felix can tune; the message says why.
        """
        request = {
            "verb": "parse",
            "kind": workload.kind,
            "name": workload.name,
            "params": dict(workload.params),
            "shapes": {name: list(shape) for name, shape in workload.shapes.items()},
            "target": target,
        }
        reply = self._request(request, workload.content)
        return Parsed(
            tasks=tuple(jobs.NewTask(**task) for task in reply["tasks"]),
            target_key=reply["target_key"],
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
                "the workload crashed the reader, or needs more memory than reading may take"
            )
        reply: dict[str, Any] = json.loads(text)
        if reply["error"] is not None:
            raise errors.InvalidRequest(reply["error"])
        return reply

    def _run_child(self, header: bytes, content: bytes) -> bytes | None:
        """The child's reply; None if it died."""
        ours, theirs = self._context.Pipe()
        child = self._context.Process(target=_child, args=(theirs,), daemon=True)
        with ours:
            child.start()
            theirs.close()
            try:
                ours.send_bytes(header)
                ours.send_bytes(content)
                if not ours.poll(self._seconds):
                    raise errors.InvalidRequest(
                        f"reading the workload takes longer than {self._seconds:g} s"
                    )
                return ours.recv_bytes(MAX_REPLY_BYTES)
            except (EOFError, OSError):
                return None
            finally:
                child.kill()
                child.join()
                child.close()


def _child(connection: Any) -> None:
    from server.parsing import child as parsing_child

    parsing_child.main(connection)
