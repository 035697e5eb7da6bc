"""Results of tuning as `felix.artifact.export` takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tvm

from felix.database import records
from felix.task import Task
from felix.templates.generated import GeneratedProgram


@dataclasses.dataclass
class Best:
    """A schedule, or a generated program, which has none."""

    mod: tvm.IRModule
    schedule: tvm.s_tir.Schedule | None = None
    latency_us: float = 3.0
    sketch_index: int = 0
    decisions: tuple[int, ...] = ()
    variant: str = "stock"
    generated: GeneratedProgram | None = None
    template_text: str | None = None


@dataclasses.dataclass
class Result:
    """That of a task."""

    task: Task
    best: Best
    curve: Sequence[tuple[int, float, float]] = ((1, 1.0, 3.0),)
    records: Sequence[records.Trial] = ()
    repeats: tuple[()] = ()
    unscheduled_us: float | None = None
    tuned_or_none: Any = None

    def unscheduled_note(self) -> str | None:
        """None: a schedule ships."""
        return None


def unscheduled(task: Task) -> Best:
    """The program as it is."""
    schedule = tvm.s_tir.Schedule(task.mod)
    schedule.get_sblock("root")
    return Best(task.mod, schedule)
