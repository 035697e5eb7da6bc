"""What is known of a candidate group: its schedules, and its latency if it was tuned before."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import tvm

from felix import errors
from felix.database import store
from felix.frontend import Fusion, Grouping, Schedules, fusion_for
from felix.space import formula_cache, sketch
from felix.task import Task

#: Code that decides which sketches a task has, and what is said of them.
SOURCES = (
    "space",
    "symbolic",
    "templates",
    "tir",
    "frontend/programs/planning/graph.py",
    "network/group_costs.py",
)


class KnownCosts:
    """Costs by known results alone: every candidate is one kernel. It makes no sketches.

    Args:
        known: where latencies are looked up; None for nowhere.
        allow_tf32: products of float32 may be computed in TF32.
    """

    def __init__(self, known: store.Store | None = None, allow_tf32: bool = False) -> None:
        self._known = known
        self._allow_tf32 = allow_tf32

    def schedules(self, tasks: Sequence[Task]) -> list[Schedules]:
        """One kernel for each, generated where there are templates for it."""
        return [Schedules(n_kernels=1)] * len(tasks)

    def latency_us(self, task: Task) -> float | None:
        """The least latency of the task that is known.

        Raises:
            RecordError: the file of known results cannot be read.
        """
        outcome = None if self._known is None else self._known.find(self._allowing(task))
        if outcome is None:
            return None
        latencies = [us for us in (outcome.tuned_us, outcome.default_us) if us is not None]
        return min(latencies, default=None)

    def _allowing(self, task: Task) -> Task:
        return task.where_tf32_matters() if self._allow_tf32 else task


class SketchCosts(KnownCosts):
    """Costs by the sketches of a task, too.

    Args:
        known, allow_tf32: as `KnownCosts` takes them.
        has_time: whether there is time to make further sketches.
    """

    def __init__(
        self,
        known: store.Store | None = None,
        allow_tf32: bool = False,
        has_time: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(known, allow_tf32)
        self._has_time = has_time

    def schedules(self, tasks: Sequence[Task]) -> list[Schedules]:
        """Kernels of each task's best sketch, and whether tensor cores compute it.

        What was found is kept with the known results: a network has hundreds of candidates.

        Raises:
            RecordError: the file of known results cannot be used.
        """
        allowed = [self._allowing(task) for task in tasks]
        found = self._found(allowed)
        made: dict[Task, Schedules] = {}
        for task, stored in zip(allowed, found, strict=True):
            if stored is None and task not in made and self._has_time():
                made[task] = _schedules(task)
        self._store(made)
        assumed = super().schedules(tasks)
        return [
            stored or made.get(task, each)
            for task, stored, each in zip(allowed, found, assumed, strict=True)
        ]

    def _found(self, tasks: Sequence[Task]) -> list[Schedules | None]:
        if self._known is None:
            return [None] * len(tasks)
        found = self._known.find_findings((task, self._subject) for task in tasks)
        return [None if each is None else Schedules(**each) for each in found]

    def _store(self, made: Mapping[Task, Schedules]) -> None:
        if self._known is not None and made:
            self._known.add_findings(
                (task, self._subject, dataclasses.asdict(each)) for task, each in made.items()
            )

    @functools.cached_property
    def _subject(self) -> str:
        return f"sketches made by {formula_cache.code_digest(SOURCES)[:40]}"


def _schedules(task: Task) -> Schedules:
    """What a task's sketches say.

    A generated kernel is one kernel, so trace sketches, which take longest, are made only where
    there is none.
    """
    generated = sketch.of_templates(task)
    if generated:
        rows = (row for each in generated for row in each.template.rows().values())
        return Schedules(1, has_template=any("tensor_instructions" in row for row in rows))
    fewest = sketch.fewest_kernels(task)
    return Schedules(None) if fewest is None else Schedules(fewest, has_template=False)


def grouping(
    fusion: str | None,
    full: tvm.target.Target,
    known: store.Store | None,
    allow_tf32: bool = False,
    has_time: Callable[[], bool] = lambda: True,
) -> Grouping:
    """How a network's groups are chosen: in the named way, or as is best for the target, and by
    sketches as long as there is time for them.

    Raises:
        WorkloadError: there is no such way.
    """
    names = [str(each) for each in Fusion]
    if fusion is not None and fusion not in names:
        raise errors.WorkloadError(f"fusion is one of {', '.join(names)}, got {fusion!r}")
    chosen = fusion_for(full) if fusion is None else Fusion(fusion)
    return Grouping(chosen, SketchCosts(known, allow_tf32, has_time))


def known_grouping(
    full: tvm.target.Target, known: store.Store, allow_tf32: bool = False
) -> Grouping:
    """How groups are chosen as is best for the target, where there is no time to make sketches."""
    return Grouping(fusion_for(full), KnownCosts(known, allow_tf32))
