"""Scoring predictors on tasks: per task, per operator, averaged; as JSON and as a table.

A predictor is any function from a task to predicted ln(latency_us) [N]. Failed schedules are
not scored.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from costmodel.data import features as task_features
from costmodel.training import metrics, train
from felix import errors

Predictor = Callable[[task_features.TaskData], metrics.Vector]
COLUMNS = tuple(field.name for field in dataclasses.fields(metrics.Scores))


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Scores of one task with `count` schedules that ran."""

    name: str
    operator: str
    count: int
    scores: metrics.Scores


@dataclass(frozen=True, slots=True)
class Report:
    """Scores of one predictor.

    Attributes:
        label: which predictor.
        overall: mean over tasks, but slope and intercept of one line through all schedules.
    """

    label: str
    tasks: tuple[TaskScore, ...]
    overall: metrics.Scores

    def as_json(self) -> dict[str, Any]:
        """JSON with null for undefined scores."""
        return {
            "label": self.label,
            "overall": _json(self.overall),
            "operators": {name: _json(s) for name, s in self.by_operator().items()},
            "tasks": [
                {"name": t.name, "operator": t.operator, "count": t.count, **_json(t.scores)}
                for t in self.tasks
            ],
        }

    def by_operator(self) -> dict[str, metrics.Scores]:
        """Mean scores of each operator."""
        groups: dict[str, list[metrics.Scores]] = defaultdict(list)
        for task in self.tasks:
            groups[task.operator].append(task.scores)
        return {name: metrics.mean(groups[name]) for name in sorted(groups)}


def without_workloads(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores with `reports` as `Report.as_json` writes them, but those of each workload."""
    if "reports" not in scores:
        return scores
    reports = [
        {key: value for key, value in report.items() if key != "tasks"}
        for report in scores["reports"]
    ]
    return scores | {"reports": reports}


def evaluate(
    label: str, predictor: Predictor, tasks: Sequence[task_features.TaskData], at_least: int = 5
) -> Report:
    """Score `predictor` on every task with at least `at_least` schedules that ran.

    Raises:
        RecordError: no task has that many.
    """
    scored, all_p, all_y = [], [], []
    for task in tasks:
        measured = task.measured
        if measured.sum() < at_least:
            continue
        p, y = predictor(task)[measured], task.ln_latency[measured]
        scored.append(TaskScore(task.name, task.workload.operator, len(y), metrics.score(p, y)))
        all_p.append(p)
        all_y.append(y)
    if not scored:
        raise errors.RecordError(f"no task to score has {at_least} schedules that ran")
    slope, intercept = metrics.line(np.concatenate(all_p), np.concatenate(all_y))
    overall = dataclasses.replace(
        metrics.mean([t.scores for t in scored]), slope=slope, intercept=intercept
    )
    return Report(label, tuple(scored), overall)


def of_module(module: nn.Module) -> Predictor:
    """A torch cost model as a predictor."""

    def predict(task: task_features.TaskData) -> metrics.Vector:
        module.eval()
        rows, mask = torch.from_numpy(task.rows), torch.from_numpy(task.mask)
        return train.predict(module, rows, mask).double().numpy()

    return predict


def by_task(predictors: dict[int, Predictor]) -> Predictor:
    """One predictor of many; `predictors` has them by the tasks' `id`."""

    def predict(task: task_features.TaskData) -> metrics.Vector:
        return predictors[id(task)](task)

    return predict


def table(reports: Sequence[Report], per_task: bool = False) -> str:
    """Aligned text: one line a predictor, then per operator (or task) of the first one."""
    lines = [("predictor", *COLUMNS)]
    lines += [(r.label, *_cells(r.overall)) for r in reports]
    first = reports[0]
    lines.append((f"-- {first.label}", *("" for _ in COLUMNS)))
    if per_task:
        lines += [(t.name, *_cells(t.scores)) for t in first.tasks]
    else:
        lines += [(name, *_cells(s)) for name, s in first.by_operator().items()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True)]
        ).rstrip()
        for line in lines
    )


def _cells(scores: metrics.Scores) -> list[str]:
    return [f"{v:.3f}" if math.isfinite(v) else "-" for v in dataclasses.astuple(scores)]


def _json(scores: metrics.Scores) -> dict[str, float | None]:
    values = dataclasses.asdict(scores)
    return {k: round(v, 5) if math.isfinite(v) else None for k, v in values.items()}
