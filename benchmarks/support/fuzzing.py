"""Random legal settings of every template that suits a workload, measured and compared.

A *setting* is a template of a workload with values of its parameters. All generators that run on
the architecture and suit the problem are tried, not only the fastest one, which is the product's.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from benchmarks.support import random_workloads

if TYPE_CHECKING:
    from felix.measure.measurer import Measurer
    from felix.runner import protocol
    from felix.target import Hardware
    from felix.task import Task
    from felix.templates.generated import GeneratedProgram
    from felix.templates.template import Template

#: Random values of a template's parameters until it is said to have no more legal ones. About one
#: in a hundred is legal for the kernels of sm_90a.
MAX_DRAWS = 20_000
#: Outcomes that say that a generated kernel is not right.
WRONG, FAULT, HANG = "wrong_result", "launch", "timeout"


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A workload, a template of it, values of its parameters by name."""

    workload: str
    allows_tf32: bool
    template: str
    decisions: dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How much is tried: settings, seconds, settings of one workload, settings in the pool."""

    settings: int
    seconds: float
    per_workload: int
    in_flight: int


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of the settings.

    Attributes:
        counts: settings by "template operator dtype" and by outcome: "ok", "unchecked", an error
            class, or "build_timeout" for a timeout before the kernel ran.
        failures: settings that are not ok, with outcome and message.
        left_out: sentences why a drawn workload has no template, with how often.
    """

    counts: dict[str, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    failures: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    left_out: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    workloads: int = 0
    build_s: float = 0.0
    run_s: float = 0.0

    @property
    def totals(self) -> collections.Counter[str]:
        """Settings by outcome."""
        return sum(self.counts.values(), collections.Counter())

    @property
    def is_right(self) -> bool:
        """Whether something was checked, and no result is wrong, no kernel faulted or hung."""
        totals = self.totals
        return totals["ok"] > 0 and not totals[WRONG] + totals[FAULT] + totals[HANG]

    def note(self, setting: Setting, measured: protocol.Measurement) -> None:
        """Count a setting."""
        name = self._name(measured)
        dtype = setting.workload.partition(",dtype=")[2].partition(",")[0]
        group = f"{setting.template} {setting.workload.partition(':')[0]} {dtype}"
        self.counts.setdefault(group, collections.Counter())[name] += 1
        self.build_s += measured.build_s
        self.run_s += measured.run_s
        if name != "ok":
            row = dataclasses.asdict(setting) | {"outcome": name, "message": measured.message}
            self.failures.append(row)

    @staticmethod
    def _name(measured: protocol.Measurement) -> str:
        if measured.error is None:
            return "ok" if measured.checked else "unchecked"
        is_build = measured.error.value == HANG and measured.run_s == 0
        return "build_timeout" if is_build else measured.error.value


def fuzz(
    workloads: Iterator[random_workloads.Drawn],
    measurer_of: Callable[[Task], Measurer],
    target: str,
    limits: Limits,
    rng: random.Random,
) -> Outcome:
    """Measure settings of one workload after the other until a limit is reached.

    Args:
        measurer_of: what measures programs of a task.
        target: a target that all workloads are built for.
    """
    outcome = Outcome()
    pending: collections.deque[tuple[Setting, Future[protocol.Measurement]]] = collections.deque()
    end_s, submitted = time.monotonic() + limits.seconds, 0

    def settle(most: int) -> None:
        while len(pending) > most:
            setting, future = pending.popleft()
            outcome.note(setting, future.result())

    for drawn in workloads:
        if submitted >= limits.settings or time.monotonic() >= end_s:
            break
        task, programs = _settings(drawn, target, limits, rng, outcome)
        if task is None or not programs:
            continue
        outcome.workloads += 1
        measurer = measurer_of(task)
        for setting, program in programs[: limits.settings - submitted]:
            settle(limits.in_flight)
            if time.monotonic() >= end_s:
                break
            pending.append((setting, measurer.submit(program)))
            submitted += 1
    settle(0)
    return outcome


def _settings(
    drawn: random_workloads.Drawn,
    target: str,
    limits: Limits,
    rng: random.Random,
    outcome: Outcome,
) -> tuple[Task | None, list[tuple[Setting, GeneratedProgram]]]:
    """The task of a workload and settings with their programs, spread over its templates."""
    from felix import errors
    from felix import target as felix_target

    try:
        task = drawn.task(target)
    except errors.WorkloadError:  # parameters that do not go together
        return None, []
    templates, reasons = suited(task, felix_target.hardware(task.target))
    if not templates:
        outcome.left_out.update(set(reasons))
    made: list[tuple[Setting, GeneratedProgram]] = []
    for number, template in enumerate(templates):
        share = limits.per_workload // len(templates)
        share += number < limits.per_workload % len(templates)
        for decisions, program in legal(template, share, rng):
            setting = Setting(drawn.text, drawn.allows_tf32, template.name, decisions)
            made.append((setting, program))
    return task, made


def suited(task: Task, machine: Hardware) -> tuple[list[Template], list[str]]:
    """The templates of all generators for a task's program; why there are no others."""
    from felix.templates import registry
    from felix.templates.gemm import recognise

    arch = str(task.target.attrs["arch"])
    problem = recognise.recognise(task.mod)
    if isinstance(problem, recognise.NotRecognised):
        return [], [problem.reason]
    templates: list[Template] = []
    reasons: list[str] = []
    for generator in (*registry.GENERATORS, registry.BESIDE):
        if not generator.runs_on(arch):
            continue
        reason = generator.unsuited(problem)
        templates += [] if reason else generator.templates(problem, machine, arch)
        reasons += [reason] if reason else []
    return templates, reasons


def legal(
    template: Template, count: int, rng: random.Random
) -> list[tuple[dict[str, int], GeneratedProgram]]:
    """Distinct random legal values of the parameters and their programs, at most `count`."""
    from felix import errors

    made: dict[tuple[int, ...], tuple[dict[str, int], GeneratedProgram]] = {}
    for _ in range(MAX_DRAWS):
        if len(made) >= count:
            break
        decisions = {p.name: rng.choice(p.domain) for p in template.parameters}
        try:
            made[tuple(decisions.values())] = decisions, template.generate(decisions)
        except errors.DecisionError:
            continue
    return list(made.values())
