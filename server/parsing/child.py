"""The child's side of `server.parsing.parser`: confined first, then the client's bytes.

The fork server imports this module, and with it TVM, once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from felix import errors, frontend, names, workloads
from felix import target as targets
from felix.database import metaschedule_files, outcome, records
from felix.frontend import imported
from felix.measure import limits
from felix.metaschedule import trace_text
from felix.network import groups as network_groups
from felix.processes import confine, fork_loop, policy
from felix.task import Task
from felix.tir import sandbox
from server.parsing import devices, grouping

# Loaded once, by the fork server, before there are limits.
with contextlib.suppress(ImportError):
    importlib.import_module("onnx")

#: Programs that a message names.
_MAX_REASONS = 3


def become(settings: Mapping[str, Any]) -> None:
    """Become a child, in a fork of the fork server; the folder of `settings` is empty.

    Standard output and error lead nowhere: where they are files, the limit of files would turn
    what libraries print into errors.
    """
    os.chdir(settings["folder"])
    fork_loop.write_to(os.devnull)


def serve(connection: Connection) -> None:
    """Serve one request, as JSON."""
    request = json.loads(connection.recv_bytes())
    content = connection.recv_bytes()
    confine_to(float(request["seconds"]), int(request["bytes"]), [connection.fileno()])
    connection.send_bytes(json.dumps(answer(request, content)).encode())
    connection.close()


def answer(request: dict[str, Any], content: bytes) -> dict[str, Any]:
    """The reply to a request; `error` is None, or one line that says what is wrong."""
    try:
        return {"error": None, **_reply(request, content)}
    except errors.FelixError as error:
        return {"error": " ".join(str(error).split())[:2000]}
    except MemoryError:
        return {"error": f"reading the workload {imported.message()}"}
    except RecursionError:
        return {"error": "the workload is nested too deeply"}


def _reply(request: dict[str, Any], content: bytes) -> dict[str, Any]:
    if request["verb"] == "operators":
        return {"operators": {name: op.schema for name, op in workloads.OPERATORS.items()}}
    if request["verb"] == "database":
        return read_database(content, request["name"])
    notes = _Notes()
    logging.getLogger("felix.frontend").addHandler(notes)
    tasks, groups = _tasks(request, content)
    if not tasks:
        raise errors.WorkloadError(_nothing(groups))
    return {
        "tasks": [_described(task, family=outcome.family(task)) for task in tasks],
        "target_key": devices.key_of(request["target"]),
        "notes": notes.lines,
        "versions": records.versions(),
        "groups": groups,
    }


def _described(task: Task, **others: Any) -> dict[str, Any]:
    """A task as the parser hands it on (`server.store.jobs.NewTask`), with other fields."""
    fields = {
        "name": task.name,
        "weight": task.weight,
        "flops": float(task.flops),
        "min_bytes": float(task.min_bytes),
        "program_key": task.program_key,
        "program": task.to_json(),
    }
    return fields | others


def _tasks(request: dict[str, Any], content: bytes) -> tuple[list[Task], list[dict[str, Any]]]:
    """The tasks of a workload, and of a model the groups that it calls."""
    name = request["name"]
    target = targets.describe(targets.parse_of_client(request["target"]))
    capacity = devices.capacity(request["target"], request.get("devices", ()))
    groups: list[dict[str, Any]] = []
    match request["kind"]:
        case "operator":
            tasks = [workloads.build(name, request["params"], target)]
        case "tir":
            tasks = [_tir(content, target)]
        case "onnx":
            tasks, groups = _model(content, target, request)
        case other:
            raise errors.WorkloadError(f"unknown kind of workload {other!r}")
    if request["allow_tf32"]:
        tasks = [task.where_tf32_matters() for task in tasks]
    for task in tasks:
        limits.check(task, capacity)
        if request["kind"] != "operator":
            sandbox.rehearse(task.func, task.target)
    return tasks, groups


def _model(
    content: bytes, target: str, request: Mapping[str, Any]
) -> tuple[list[Task], list[dict[str, Any]]]:
    """The tasks of an ONNX model, and its groups as `server.store.networks` has them."""
    full = targets.parse(target)
    model = frontend.import_onnx(content, request["shapes"] or None, request.get("values"))
    lowered = frontend.lowered(model, full, grouping.of(full))
    every = network_groups.of(lowered, full, allow_tf32=request["allow_tf32"])
    tasks = network_groups.tasks(every)
    numbers = {task.key: number for number, task in enumerate(tasks)}
    return tasks, [
        {
            "name": names.derived(group.name),
            "calls": group.calls,
            "task": None if group.task is None else numbers[group.task.key],
            "untuned": None if group.reason is None else names.derived(group.reason),
            "dtypes": group.dtypes,
        }
        for group in every
    ]


def _nothing(groups: Sequence[Mapping[str, Any]]) -> str:
    """Why a model has no tasks."""
    message = "the model has no program that Felix can tune: "
    reasons = [f"{group['name']}: {group['untuned']}" for group in groups]
    if not reasons:
        return f"{message}its outputs are constants, views, or TVM's runtime computes them"
    more = f" and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
    return message + "; ".join(reasons[:_MAX_REASONS]) + more


def _tir(content: bytes, target: str) -> Task:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise errors.WorkloadError("the TIR file is not UTF-8 text") from None
    if len(text) > sandbox.MAX_JSON_CHARACTERS:
        raise errors.WorkloadError(
            f"the TIR file has more than {sandbox.MAX_JSON_CHARACTERS} characters"
        )
    return Task.from_json(text, target, trusted=True)  # this is the limited process


class _Notes(logging.Handler):
    """Collects the importer's messages about programs that it leaves out."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a line."""
        self.lines.append(record.getMessage()[:500])


def confine_to(seconds: float, memory_bytes: int, keep_files: Sequence[int]) -> None:
    """No rights to data: an empty folder to work in, and nothing to write to."""
    rights = policy.Policy(
        folder=os.getcwd(),
        file_bytes=0,
        address_bytes=memory_bytes,
        cpu_s=math.ceil(seconds),
        open_files=64,
    )
    confine.confine(rights, keep_files)


#: Workloads of one database, and schedules of a workload (the fastest) that are read.
MAX_WORKLOADS = 64
MAX_SCHEDULES = 64


#: A workload and its schedules, the fastest first.
_Program: TypeAlias = tuple[Task, list[dict[str, Any]]]


def read_database(content: bytes, name: str) -> dict[str, Any]:
    """Tasks with their schedules, as JSON.

    Raises:
        WorkloadError: it has no usable record, too many workloads, or is for several kinds of
            devices.
        RecordError: it is malformed.
    """
    texts = json.loads(content)
    entries = metaschedule_files.parse_database(
        texts["workloads"], texts["records"], MAX_WORKLOADS
    )
    by_program: dict[str, _Program] = {}
    left_out: list[str] = []
    kinds = {str(entry.target.kind.name) for entry in entries}
    if len(kinds) > 1:
        raise errors.WorkloadError(
            f"the database has records for {' and '.join(sorted(kinds))}: import one at a time"
        )
    for entry in entries:
        _add(entry, by_program, left_out)
    if not by_program:
        why = f": {left_out[0]}" if left_out else ""
        raise errors.WorkloadError(f"the database has no record that Felix can use{why}")
    kind = kinds.pop()
    return {
        "tasks": [
            _described(task, name=f"{name} {number}", weight=1.0, schedules=schedules)
            for number, (task, schedules) in enumerate(by_program.values())
        ],
        "target": kind,
        "target_key": devices.key_of(kind),
        "n_records": len(entries),
        "notes": sorted(set(left_out))[:20],
    }


def _add(
    entry: metaschedule_files.DatabaseEntry, by_program: dict[str, _Program], left_out: list[str]
) -> None:
    functions = list(entry.mod.functions.values())
    if len(functions) != 1:
        left_out.append("a program of several functions")
        return
    try:
        task = Task.from_prim_func(functions[0], entry.target)
    except errors.FelixError as error:
        left_out.append(str(error)[:200])
        return
    _, schedules = by_program.setdefault(task.program_key, (task, []))
    if len(schedules) >= MAX_SCHEDULES:
        return
    signature, decisions = trace_text.read(entry.trace.simplified(True))
    latency_us = sum(entry.latencies_us) / len(entry.latencies_us)
    schedules.append({"signature": signature, "decisions": decisions, "latency_us": latency_us})
