"""In the limited child: a MetaSchedule database of a client as programs and schedules in text."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from felix import errors, records
from felix.metaschedule import trace_text
from felix.task import Task
from server.parsing import devices

#: Workloads of one database, and schedules of a workload (the fastest) that are read.
MAX_WORKLOADS = 64
MAX_SCHEDULES = 64


def read(content: bytes, name: str) -> dict[str, Any]:
    """Tasks with their schedules, as JSON.

    Raises:
        WorkloadError: it has no usable record, too many workloads, or is for several kinds of
            devices.
        RecordError: it is malformed.
    """
    texts = json.loads(content)
    entries = records.parse_database(texts["workloads"], texts["records"], MAX_WORKLOADS)
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
    kind, programs = kinds.pop(), by_program.values()
    return {
        "tasks": [program.to_json(number, name) for number, program in enumerate(programs)],
        "target": kind,
        "target_key": devices.key_of(kind),
        "n_records": len(entries),
        "notes": sorted(set(left_out))[:20],
    }


@dataclasses.dataclass(slots=True)
class _Program:
    """A workload and its schedules, the fastest first."""

    task: Task
    schedules: list[dict[str, Any]]

    def to_json(self, number: int, name: str) -> dict[str, Any]:
        """As the parser hands it on."""
        task = self.task
        return {
            "name": f"{name} {number}",
            "weight": 1.0,
            "flops": float(task.flops),
            "min_bytes": float(task.min_bytes),
            "program": task.to_json(),
            "program_key": task.program_key,
            "schedules": self.schedules,
        }


def _add(
    entry: records.DatabaseEntry, by_program: dict[str, _Program], left_out: list[str]
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
    program = by_program.setdefault(task.program_key, _Program(task, []))
    if len(program.schedules) >= MAX_SCHEDULES:
        return
    signature, decisions = trace_text.read(entry.trace.simplified(True))
    latency_us = sum(entry.latencies_us) / len(entry.latencies_us)
    program.schedules.append(
        {"signature": signature, "decisions": decisions, "latency_us": latency_us}
    )
