"""Splits of tasks into training, validation and test: never two parts of one workload.

"workload" holds out a share of every operator's workloads, so that the test part has unseen
shapes of seen operators; "operator" holds out whole operators, which asks for more. Splits
depend on the workloads' keys and the seed only, not on the order or number of records.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.data import features as task_features
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

    train: tuple[task_features.TaskData, ...]
    validation: tuple[task_features.TaskData, ...]
    test: tuple[task_features.TaskData, ...]


def split(tasks: Sequence[task_features.TaskData], options: SplitOptions) -> Split:
    """Assign every task to one part; tasks of the same workload go to the same part."""
    groups: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        unit = _unit(task, options)
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
    parts: dict[str, list[task_features.TaskData]] = {"train": [], "validation": [], "test": []}
    for task in tasks:
        parts[part_of[_unit(task, options)]].append(task)
    return Split(tuple(parts["train"]), tuple(parts["validation"]), tuple(parts["test"]))


def folds(
    tasks: Sequence[task_features.TaskData], count: int, options: SplitOptions
) -> tuple[Split, ...]:
    """`count` splits whose test parts together are all tasks, each task in one of them.

    Units (workloads or operators) are dealt out in turn, a workload's operator by operator.
    `options.validation` is the share of the rest that is set apart; `options.test` is not used.

    Raises:
        RecordError: fewer units than folds.
    """
    units = {(t.workload.operator, t.workload.key) for t in tasks}
    if options.by == "operator":
        order = [name for name, _ in sorted(units, key=lambda u: _hash(u[0], options.seed))]
    else:
        order = [k for _, k in sorted(units, key=lambda u: (u[0], _hash(u[1], options.seed)))]
    distinct = list(dict.fromkeys(order))
    if not 2 <= count <= len(distinct):
        raise errors.RecordError(f"{len(distinct)} {options.by}s cannot make {count} folds")
    fold_of = {unit: i % count for i, unit in enumerate(distinct)}
    inner = dataclasses.replace(options, test=0.0)
    result = []
    for fold in range(count):
        held_out = [t for t in tasks if fold_of[_unit(t, options)] == fold]
        rest = split([t for t in tasks if fold_of[_unit(t, options)] != fold], inner)
        result.append(Split(rest.train, rest.validation, tuple(held_out)))
    return tuple(result)


def _unit(task: task_features.TaskData, options: SplitOptions) -> str:
    return task.workload.key if options.by == "workload" else task.workload.operator


def _hash(unit: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{unit}".encode()).hexdigest()
