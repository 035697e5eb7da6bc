"""What tuning gives: `TuneResult` of one task, `NetworkResult` of several.

Latencies in microseconds, durations in seconds; a curve holds (trial, elapsed_s, best_us).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from felix import errors
from felix.database import records
from felix.runner import protocol
from felix.templates import generated
from felix.tuning import pacing

if TYPE_CHECKING:
    import tvm

    from felix.space.sketch import Sketch
    from felix.space.template_sketch import TemplateSketch
    from felix.space.trace_sketch import TraceSketch
    from felix.space.variables import Variable
    from felix.task import Task
    from felix.templates.generated import Program

Trial = records.Trial

#: The unscheduled program ships where the fastest schedule takes longer by more than this share.
#: Less is within what two measurements of one program differ by, and the schedule ships.
TIE = 0.03
#: (trials so far, elapsed seconds, best latency in us so far)
Curve = tuple[tuple[int, float, float], ...]


class Best:
    """The fastest schedule or generated program whose output agreed with the reference."""

    def __init__(self, trial: records.Trial, sketch: Sketch) -> None:
        self.trial = trial
        self._sketch = sketch

    @property
    def latency_us(self) -> float:
        """Median measured latency."""
        assert self.trial.latency_us is not None
        return self.trial.latency_us

    @property
    def measurement(self) -> protocol.Measurement:
        """What measuring gave."""
        return self.trial.measured

    @property
    def sketch_index(self) -> int:
        """The `index` of its sketch, one of `felix.sketches(task)`."""
        return self.trial.sketch_index

    @property
    def variant(self) -> str:
        """Which program of the task the sketch schedules, "stock" for the task's own; or the name
        of the template."""
        return self.trial.variant

    @property
    def decisions(self) -> tuple[int, ...]:
        """Values of the sketch's variables, in order."""
        return self.trial.decisions

    @property
    def variables(self) -> Sequence[Variable]:
        """The variables of the sketch, whose values the decisions are."""
        return self._sketch.variables

    @functools.cached_property
    def program(self) -> Program:
        """What was measured: the scheduled module, or the generated program of a template."""
        return self.schedule.mod if self.generated is None else self.generated

    @functools.cached_property
    def generated(self) -> generated.GeneratedProgram | None:
        """The program that a template generated; None of a schedule."""
        template = _template(self._sketch)
        return None if template is None else template.program(self.decisions)

    @property
    def template_text(self) -> str | None:
        """Template and its parameters in one line; None of a schedule."""
        template = _template(self._sketch)
        if template is None:
            return None
        values = template.values(self.decisions).items()
        return f"{self.variant}: {', '.join(f'{name}={value}' for name, value in values)}"

    @property
    def mod(self) -> tvm.IRModule:
        """The program that is scheduled: the task's, or a variant of it; of a template the
        task's, which it computes."""
        return self._trace.mod if self.generated is None else self._sketch.task.mod

    @functools.cached_property
    def schedule(self) -> tvm.s_tir.Schedule:
        """The schedule, made by TVM from the decisions.

        Raises:
            TuningError: a template generated the program; `program` has it.
        """
        return self._trace.schedule(self.decisions)

    @property
    def _trace(self) -> TraceSketch:
        """The sketch, if it is a trace's; raises TuningError."""
        if _template(self._sketch) is not None:
            raise errors.TuningError(f"{self.variant} is a template: there is no schedule of TVM")
        return cast("TraceSketch", self._sketch)

    def __repr__(self) -> str:
        return (
            f"Best({self.latency_us:.2f} us, sketch {self.sketch_index}, {self.variant}, "
            f"{self.decisions})"
        )


def _template(sketch: Sketch) -> TemplateSketch | None:
    """The sketch, if it is a template's."""
    from felix.space import template_sketch

    return sketch if isinstance(sketch, template_sketch.TemplateSketch) else None


def unscheduled(task: Task) -> tvm.s_tir.Schedule:
    """The unscheduled program of a task as it runs on its target: the default schedule on a GPU.

    Raises:
        UnsupportedSchedule: the program has no default schedule.
    """
    from felix.tir.design_space import default_schedule

    return default_schedule.of(task.mod, task.target)


def baseline_name(task: Task) -> str:
    """What the unscheduled program of a task is called where people read it."""
    is_gpu = task.target.kind.name == "cuda"
    return "default schedule" if is_gpu else "unscheduled program"


class Unscheduled:
    """The unscheduled program, where it is faster than every schedule, or none ran correctly."""

    #: no sketch and no decisions made it
    sketch_index = None
    variant = "stock"
    decisions: tuple[int, ...] = ()
    #: no template, either
    generated = None
    template_text = None

    def __init__(self, task: Task, measurement: protocol.Measurement) -> None:
        self._task = task
        self.measurement = measurement

    @property
    def latency_us(self) -> float:
        """Median measured latency."""
        assert self.measurement.latency_us is not None
        return self.measurement.latency_us

    @property
    def mod(self) -> tvm.IRModule:
        """The task's program."""
        return self._task.mod

    @functools.cached_property
    def schedule(self) -> tvm.s_tir.Schedule:
        """One that changes nothing; the default schedule on a GPU."""
        return unscheduled(self._task)

    @property
    def program(self) -> tvm.IRModule:
        """What was measured."""
        return self.schedule.mod

    def __repr__(self) -> str:
        return f"Unscheduled({self.latency_us:.2f} us)"


def faster(
    task: Task, tuned: Best | None, unscheduled: protocol.Measurement | None
) -> Best | Unscheduled | None:
    """What ships of a task: the fastest schedule, or the unscheduled program if that is faster.

    Where no schedule ran correctly that is the unscheduled program, if its output was compared
    with the reference; else None.
    """
    if unscheduled is None or unscheduled.latency_us is None:
        return tuned
    if tuned is None:
        return Unscheduled(task, unscheduled) if unscheduled.checked else None
    if tuned.latency_us <= (1.0 + TIE) * unscheduled.latency_us:
        return tuned
    return Unscheduled(task, unscheduled)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """One task after tuning; `records` holds its trials.

    `reason` says why tuning ended: trials, seconds, converged, exhausted, failed, interrupted.
    """

    task: Task
    records: tuple[records.Trial, ...]
    curve: Curve
    #: what ships; None if neither a candidate nor the unscheduled program ran correctly
    best_or_none: Best | Unscheduled | None
    #: of the unscheduled program; None if it was not measured
    unscheduled_us: float | None
    reason: str
    breakdown: pacing.Breakdown
    #: of the fastest candidates, measured again at the end
    repeats: tuple[Trial, ...] = ()
    #: the fastest schedule: `best`, unless the unscheduled program is faster; None if none ran
    #: correctly
    tuned_or_none: Best | None = None
    #: what TVM says of candidates that it rejected before they were built; None if of none
    rejection: str | None = None
    #: why the task was not tuned; None if it was
    skipped: str | None = None

    @property
    def ships_unscheduled(self) -> bool:
        """Whether `best` is the unscheduled program: the fastest, or alone right."""
        return isinstance(self.best_or_none, Unscheduled)

    @property
    def best(self) -> Best | Unscheduled:
        """What ships: the best schedule, or the unscheduled program where that is faster or no
        schedule ran correctly.

        Raises:
            TuningError: nothing ran correctly; the message says what happened to most candidates.
        """
        if self.best_or_none is None:
            raise errors.TuningError(self.failure())
        return self.best_or_none

    @property
    def gflops(self) -> float:
        """Rate of the best schedule, in GFLOP/s."""
        return self.task.flops / self.best.latency_us / 1e3

    @property
    def speedup(self) -> float | None:
        """Unscheduled over best latency; 1 where the two cannot be told apart (`TIE`)."""
        if self.unscheduled_us is None:
            return None
        return speedup(self.unscheduled_us, self.best.latency_us)

    def unscheduled_note(self) -> str | None:
        """That the unscheduled program ships and why, in one line; None if a schedule does."""
        if not self.ships_unscheduled:
            return None
        name, unscheduled_us = baseline_name(self.task), self.best.latency_us
        if self.tuned_or_none is None:
            return (
                f"{self.task.name}: no schedule ran correctly: the {name} is what ships "
                f"({unscheduled_us:.2f} us); {self._what_happened()}"
            )
        return (
            f"{self.task.name}: the {name} was faster ({unscheduled_us:.2f} us; the fastest "
            f"schedule takes {self.tuned_or_none.latency_us:.2f} us): it is what ships"
        )

    def notes(self) -> list[str]:
        """`unscheduled_note`, and which template ships with which parameters, if one does."""
        text = None if self.best_or_none is None else self.best_or_none.template_text
        template = None if text is None else f"{self.task.name}: generated kernel {text}"
        return [note for note in (self.unscheduled_note(), template) if note is not None]

    def failure(self) -> str:
        """Why there is no best schedule, in one line."""
        if self.skipped is not None:
            return f"{self.task.name}: skipped: {self.skipped}"
        return f"{self.task.name}: {self._what_happened()}"

    def _what_happened(self) -> str:
        """To candidates of which none ran correctly."""
        if not self.records:
            why = self.reason if self.rejection is None else f"{self.reason}: {self.rejection}"
            return f"nothing was measured ({why})"
        kinds = collections.Counter(str(r.measured.error) for r in self.records)
        kind, count = kinds.most_common(1)[0]
        message = next(r.measured.message for r in self.records if str(r.measured.error) == kind)
        return (
            f"none of {len(self.records)} candidates ran correctly; "
            f"{count} had a {kind} error: {message}"
        )

    def export(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Write the artifact bundle (`felix.artifact`).

        Raises:
            OutputError: the folder cannot be written.
            TuningError: there is no best schedule.
        """
        from felix.artifact import export as artifact_export

        self.best  # noqa: B018  (raises before anything is written)
        return artifact_export.export(self, folder)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkResult:
    """Several tasks after tuning, in the order they were given."""

    results: tuple[TuneResult, ...]
    #: weighted sum of best latencies over trials of all tasks, once each task has one
    curve: Curve
    reason: str
    breakdown: pacing.Breakdown

    @property
    def latency_us(self) -> float | None:
        """Sum of weight x best latency over the tasks that were not skipped.

        None if one of them has no result, or there is none.
        """
        tuned = [result for result in self.results if result.skipped is None]
        total = 0.0
        for result in tuned:
            if result.best_or_none is None:
                return None
            total += result.task.weight * result.best_or_none.latency_us
        return total if tuned else None

    @property
    def skipped(self) -> tuple[TuneResult, ...]:
        """The tasks that could not be tuned; `TuneResult.skipped` says why."""
        return tuple(result for result in self.results if result.skipped is not None)

    def export(self, folder: str | os.PathLike[str]) -> pathlib.Path:
        """Write one artifact bundle a task, in folders named by number and task.

        Raises:
            OutputError: a folder cannot be written.
        """
        for path, result in zip(folders(folder, self.results), self.results, strict=True):
            if result.best_or_none is not None:
                result.export(path)
        return pathlib.Path(folder)


def speedup(unscheduled_us: float, best_us: float) -> float:
    """Unscheduled over best latency; 1 where the two cannot be told apart (`TIE`)."""
    ratio = unscheduled_us / best_us
    return max(1.0, ratio) if ratio * (1.0 + TIE) >= 1.0 else ratio


def network(
    results: Sequence[TuneResult], reason: str, breakdown: pacing.Breakdown
) -> NetworkResult:
    """The results of a run's tasks as one."""
    every = sorted((r for result in results for r in result.records), key=lambda r: r.elapsed_s)
    weights = {r.task.key: r.task.weight for r in results if r.skipped is None}
    return NetworkResult(
        results=tuple(results),
        curve=network_curve(every, weights),
        reason=reason,
        breakdown=breakdown,
    )


def network_curve(every: Sequence[records.Trial], weights: Mapping[str, float]) -> Curve:
    """Weighted sum of the best latencies after each trial that lowered it.

    Args:
        every: records of all tasks in the order of measuring.
        weights: weight of each task by its key.
    """
    best: dict[str, float] = {}
    curve = []
    for number, trial in enumerate(every, start=1):
        latency_us = trial.latency_us
        if latency_us is None or not trial.measured.checked:
            continue
        if best.get(trial.task_key, math.inf) <= latency_us:
            continue
        best[trial.task_key] = latency_us
        if len(best) == len(weights):
            total = sum(weights[key] * value for key, value in best.items())
            curve.append((number, trial.elapsed_s, total))
    return tuple(curve)


def folders(folder: str | os.PathLike[str], results: Sequence[TuneResult]) -> list[pathlib.Path]:
    """Where the bundle of each of several results goes."""
    return [
        pathlib.Path(folder, f"{index:02d}-{re.sub(r'[^A-Za-z0-9._-]+', '_', r.task.name)[:60]}")
        for index, r in enumerate(results)
    ]
