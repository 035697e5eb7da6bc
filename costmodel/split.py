"""Splits of tasks into training, validation and test: never two parts of one workload.

"workload" holds out a share of every operator's workloads, so that the test part has unseen
shapes of seen operators; "operator" holds out whole operators, which asks for more. Splits
depend on the workloads' keys and the seed only, not on the order or number of records.
Reads nothing; feeds `train`, `evaluate`.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from costmodel import tasks as task_data
from felix import errors


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """How tasks are split.

    Attributes:
        by: "workload" or "operator".
        validation: share of workloads (or operators) that stops the training.
        test: share that only scores it.
        seed: which of the possible splits.
    """

    by: str = "workload"
    validation: float = 0.15
    test: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by not in ("workload", "operator"):
            raise errors.RecordError(f"cannot split by {self.by!r}: use workload or operator")
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise errors.RecordError("validation and test shares must be >= 0 and sum below 1")


@dataclass(frozen=True, slots=True)
class Split:
    """The three parts."""

    train: tuple[task_data.TaskData, ...]
    validation: tuple[task_data.TaskData, ...]
    test: tuple[task_data.TaskData, ...]


def split(tasks: Sequence[task_data.TaskData], options: SplitOptions) -> Split:
    """Assign every task to one part; tasks of the same workload go to the same part."""
    groups: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        unit = task.workload.key if options.by == "workload" else task.workload.operator
        groups[task.workload.operator if options.by == "workload" else ""].add(unit)
    part_of: dict[str, str] = {}
    carry = {"validation": 0.0, "test": 0.0}
    for operator in sorted(groups):
        units = sorted(groups[operator], key=lambda unit: _hash(unit, options.seed))
        for part, share in (("test", options.test), ("validation", options.validation)):
            carry[part] += share * len(groups[operator])  # small operators add up
            take = min(int(carry[part] + 1e-9), max(len(units) - 1, 0))
            carry[part] -= take
            part_of |= dict.fromkeys(units[:take], part)
            units = units[take:]
        part_of |= dict.fromkeys(units, "train")
    parts: dict[str, list[task_data.TaskData]] = {"train": [], "validation": [], "test": []}
    for task in tasks:
        unit = task.workload.key if options.by == "workload" else task.workload.operator
        parts[part_of[unit]].append(task)
    return Split(tuple(parts["train"]), tuple(parts["validation"]), tuple(parts["test"]))


def _hash(unit: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{unit}".encode()).hexdigest()
