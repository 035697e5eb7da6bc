"""The cheapest groups of a module.

Every possible group starts with an optimistic cost: one kernel, on tensor cores. What the choice
takes is made a program and looked at: does it have schedules, of how many kernels, on tensor cores
or not. The choice is made again with what that says, until it takes only groups that were looked
at. So it is the choice that looking at every one would give, at the price of few programs.

Where the latency of every group of that choice was measured, the cheapest groups are chosen among
these and those of the fixed rules and of FuseOps that were measured. So a model that was tuned
before needs no measuring, and what tuning showed of these groupings counts.

The groups of the fixed rules and of TVM's FuseOps are candidates, and a choice that costs more
than either of them is not taken.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import tvm
from tvm import tirx

from felix import errors
from felix.frontend.programs import groups, outlining
from felix.frontend.programs.planning import graph, merged, norms, possible_groups, reading
from felix.frontend.programs.planning.graph import PossibleGroup, Role, Schedules, candidate
from felix.target import Hardware
from felix.task import Task

#: Cost of a candidate that neither rules nor FuseOps make: of equal ones theirs are taken.
NEW = 1.001

#: Of a candidate that was not looked at.
_ASSUMED = Schedules(n_kernels=1)

#: Operators that any number of are one loop, and what is known of that.
_MAPS = frozenset({Role.ELEMENTWISE, Role.CAST, Role.MOVE, Role.VIEW})
_OF_MAP = Schedules(n_kernels=1, has_template=False)

_log = logging.getLogger("felix.frontend")


class GroupCosts(Protocol):
    """What is known of programs as tasks."""

    def schedules(self, tasks: Sequence[Task]) -> Sequence[Schedules]:
        """The schedules of each task."""

    def latency_us(self, task: Task) -> float | None:
        """The task's latency if it was measured."""


def plan(
    mod: tvm.IRModule,
    target: tvm.target.Target,
    machine: Hardware,
    costs: GroupCosts | None = None,
) -> tuple[tvm.IRModule, list[list[groups.Call]]]:
    """A module, and the groups of its calls, each in the order of execution.

    The module has more calls than the one given, some of which no group may have: other ways to
    compute a value than the model's (`merged`, `norms`).

    Args:
        mod: with operators lowered, and TVM's kinds of operators on its programs.
        costs: of what is chosen; without them every candidate that is a task is one kernel.
    """
    read = norms.extended(merged.extended(reading.read(mod)))
    return read.mod, _Planner(read, target, machine, costs).chosen_groups()


class _Planner:
    """The candidates of a module and what is known of them, by their signatures."""

    def __init__(
        self,
        read: reading.Reading,
        target: tvm.target.Target,
        machine: Hardware,
        costs: GroupCosts | None,
    ) -> None:
        self.read = read
        self.target = target
        self.machine = machine
        self.costs = costs
        self.known = [
            [candidate(read.graph, group) for group in way]
            for way in (read.by_rules, read.by_fuseops)
        ]
        self.all_known = {each for way in self.known for each in way}
        self.every = possible_groups.enumerate_all(read.graph, [*read.by_rules, *read.by_fuseops])
        self.signatures: dict[PossibleGroup, Any] = {}
        #: what is known of candidates by their signatures, where it is not what is assumed
        self.schedules: dict[Any, Schedules] = {}
        self.seen: set[Any] = set()
        self.tasks: dict[Any, Task | None] = {}

    def signature(self, each: PossibleGroup) -> Any:
        """Of a candidate: equal ones have equal programs."""
        if each not in self.signatures:
            self.signatures[each] = reading.signature(self.read.group(each))
        return self.signatures[each]

    def chosen_groups(self) -> list[list[groups.Call]]:
        self._look_at(list(self.all_known))
        chosen = self._chosen()
        while self._look_at(chosen):
            chosen = self._chosen()
        return [self.read.group(each) for each in self._best_measured(chosen) or chosen]

    def _chosen(self) -> list[PossibleGroup]:
        return possible_groups.choose(self.read.graph, self._estimates_us(), self.known)

    def _estimates_us(self) -> dict[PossibleGroup, float]:
        """Costs of the candidates that may be chosen."""
        estimates = {}
        for each in self.every:
            schedules = self.schedules.get(self.signature(each)) if self.schedules else None
            has_schedule = schedules is None or schedules.n_kernels is not None
            if has_schedule or self._is_one_operator(each) or each in self.all_known:
                estimate = graph.projected(self.read.graph, each, self.machine, schedules)
                factor = 1.0 if each in self.all_known else NEW
                estimates[each] = factor * estimate.latency_us
        return estimates

    def _best_measured(self, chosen: Sequence[PossibleGroup]) -> list[PossibleGroup] | None:
        """The cheapest choice of measured candidates; None if one of `chosen` was not measured.

        Those of the fixed rules and of FuseOps are looked up besides: a task of every candidate
        would take half a minute of a transformer.
        """
        uncertain = [each for each in chosen if not self._is_map(each)]
        if len(self._measured_us(uncertain)) < len(uncertain):
            return None
        if len(self._measured_us(chosen)) < len(chosen):
            return None
        measured = self._measured_us([*self.all_known, *chosen])
        return possible_groups.choose(self.read.graph, measured, [chosen])

    def _measured_us(self, every: Sequence[PossibleGroup]) -> dict[PossibleGroup, float]:
        """Latencies of those that were measured, and estimates of those that nothing measures."""
        if self.costs is None:
            return {}
        self._make_tasks(every)
        estimates = self._estimates_us()
        measured = {}
        latencies: dict[Any, float | None] = {}
        for each in every:
            signature = self.signature(each)
            task = self.tasks.get(signature)
            if signature not in latencies:
                latencies[signature] = None if task is None else self.costs.latency_us(task)
            latency_us = latencies[signature]
            if task is None and each in estimates and self._is_one_operator(each):
                latency_us = estimates[each]
            if latency_us is not None:
                measured[each] = latency_us
        return measured

    def _look_at(self, chosen: Sequence[PossibleGroup]) -> bool:
        """Look at what was not yet; whether there was anything."""
        first = {self.signature(each): each for each in chosen if not self._is_trivial(each)}
        fresh = [signature for signature in first if signature not in self.seen]
        self._make_tasks([each for each in chosen if not self._is_map(each)])
        self.seen.update(fresh)
        maps = {signature for signature in fresh if self._is_map(first[signature])}
        schedules = {s: _OF_MAP if s in maps else Schedules(n_kernels=None) for s in fresh}
        tasks = {s: task for s in fresh if (task := self.tasks.get(s)) is not None}
        schedules |= zip(tasks, self._schedules_of([*tasks.values()]), strict=True)
        self.schedules |= {s: each for s, each in schedules.items() if each != _ASSUMED}
        return bool(fresh)

    def _schedules_of(self, tasks: Sequence[Task]) -> Sequence[Schedules]:
        if self.costs is None or not tasks:
            return [_ASSUMED] * len(tasks)
        schedules = self.costs.schedules(tasks)
        for task, each in zip(tasks, schedules, strict=True):
            _log.debug("candidate %s: %s", task.name, each)
        return schedules

    def _make_tasks(self, every: Sequence[PossibleGroup]) -> None:
        """The tasks of candidates, where Felix can tune their programs."""
        first: dict[Any, PossibleGroup] = {}
        for each in every:
            if self.signature(each) not in self.tasks and not self._is_trivial(each):
                first.setdefault(self.signature(each), each)
        members = [self.read.group(each) for each in first.values()]
        made = outlining.of_groups(self.read.mod, members) if first else []
        for signature, group, func in zip(first, members, made, strict=True):
            self.tasks[signature] = self._task(group, func)

    def _is_one_operator(self, each: PossibleGroup) -> bool:
        """Whether it is an operator of the model, which something has to compute."""
        return len(each.members) == 1 and all(map(self.read.graph.is_own, each.members))

    def _is_trivial(self, each: PossibleGroup) -> bool:
        """Whether there is nothing to look at: a view, or an operator that nothing is known of."""
        return self._roles(each) <= {Role.VIEW, Role.OPAQUE}

    def _is_map(self, each: PossibleGroup) -> bool:
        """Whether it is one loop over the elements of its result, whatever its schedule."""
        return self._roles(each) <= _MAPS

    def _roles(self, each: PossibleGroup) -> set[Role]:
        return {self.read.graph.operators[number].role for number in each.members}

    def _task(self, group: Sequence[groups.Call], func: tirx.PrimFunc) -> Task | None:
        """A program as the task that it becomes in the lowered module."""
        names = [str(call.value.args[0].name_hint) for call in group]
        func = func.without_attr("global_symbol").without_attr("op_pattern")
        try:
            return Task.from_prim_func(func, self.target, "_".join(names)[:60], clamp=True)
        except errors.WorkloadError:
            return None
