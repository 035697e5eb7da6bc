"""The child's side of `server.parsing.parser`: limits first, then the client's bytes.

The fork server imports this module, and with it TVM, once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import resource
from collections.abc import Sequence
from typing import Any

from felix import errors, frontend, workloads
from felix.task import Task
from felix.tir import sandbox
from server.parsing import devices

# Loaded once, by the fork server, before there are limits.
with contextlib.suppress(ImportError):
    importlib.import_module("onnx")


def main(connection: Any) -> None:
    """Serve one request, as JSON; never returns."""
    request = json.loads(connection.recv_bytes())
    content = connection.recv_bytes()
    _limit(float(request["seconds"]), int(request["bytes"]))
    try:
        reply = {"error": None, **_reply(request, content)}
    except errors.FelixError as error:
        reply = {"error": " ".join(str(error).split())[:2000]}
    except MemoryError:
        reply = {"error": "reading the workload needs more memory than it may take"}
    except RecursionError:
        reply = {"error": "the workload is nested too deeply"}
    connection.send_bytes(json.dumps(reply).encode())
    connection.close()
    os._exit(0)


def _reply(request: dict[str, Any], content: bytes) -> dict[str, Any]:
    if request["verb"] == "operators":
        return {"operators": {name: op.schema for name, op in workloads.OPERATORS.items()}}
    notes = _Notes()
    logging.getLogger("felix.frontend").addHandler(notes)
    tasks = _tasks(request, content)
    if not tasks:
        raise errors.WorkloadError("the model has no program that Felix can tune")
    return {
        "tasks": [
            {
                "name": task.name,
                "weight": task.weight,
                "flops": float(task.flops),
                "min_bytes": float(task.min_bytes),
                "program": task.to_json(),
            }
            for task in tasks
        ],
        "target_key": devices.key_of(request["target"]),
        "notes": notes.lines,
    }


def _tasks(request: dict[str, Any], content: bytes) -> list[Task]:
    target, name = request["target"], request["name"]
    match request["kind"]:
        case "operator":
            return [workloads.build(name, request["params"], target)]
        case "tir":
            return [_tir(content, target)]
        case "onnx":
            return _onnx(content, target, request["shapes"])
    raise errors.WorkloadError(f"unknown kind of workload {request['kind']!r}")


def _tir(content: bytes, target: str) -> Task:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise errors.WorkloadError("the TIR file is not UTF-8 text") from None
    if len(text) > sandbox.MAX_JSON_CHARACTERS:
        raise errors.WorkloadError(
            f"the TIR file has more than {sandbox.MAX_JSON_CHARACTERS} characters"
        )
    task = Task.from_json(text, target, trusted=True)  # this is the limited process
    sandbox.rehearse(task.func, task.target)
    return task


def _onnx(content: bytes, target: str, shapes: dict[str, Sequence[int]]) -> list[Task]:
    tasks = frontend.extract_tasks_onnx(content, target, shapes=shapes or None)
    for task in tasks:
        sandbox.rehearse(task.func, task.target)
    return tasks


class _Notes(logging.Handler):
    """Collects the importer's messages about programs that it leaves out."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a line."""
        self.lines.append(record.getMessage()[:500])


def _limit(seconds: float, memory_bytes: int) -> None:
    whole = math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
