"""What a tuning run reports while it works: one small frozen record per thing that happened.

`felix.tune(..., on_event=f)` calls `f(event)` in the tuner's thread, in the order of happening;
`f` should be quick. Latencies are in microseconds, durations in seconds; `elapsed_s` is since
the start of tuning, earlier sessions that were resumed included. `task` is a task's name and
`task_index` its place in the run (names may repeat), `trial` counts measured candidates from 1
over all tasks, `round` the rounds of a task from 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DescentStep:
    """The seeds of a round at one recorded step; losses are predicted ln(latency in us)."""

    step: int
    temperature: float
    #: of the best seed, and the mean over all seeds
    loss: float
    mean_loss: float
    #: mean excess of the constraints, before its weight
    penalty: float
    #: share of the seeds inside all constraints
    legal_share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Tuning begins (or goes on, with `resumed_trials` measured before)."""

    tasks: tuple[str, ...]
    strategy: str
    trials: int | None
    seconds: float | None
    resumed_trials: int
    #: where the cost model came from, in words
    model: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _OfTask:
    """Something that happened to one task."""

    task: str
    task_index: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opening(_OfTask):
    """The sketches of a task and their formulas are being made: seconds, or more."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opened(_OfTask):
    """The sketches of a task are ready."""

    n_sketches: int
    extract_s: float
    #: by number of a sketch what its decisions are: labels, and how many belong to each; those of
    #: a template begin with "generated kernel NAME", to which none belongs
    decisions: Mapping[int, tuple[tuple[str, int], ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(_OfTask):
    """A task of several cannot be tuned; the others go on without it."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Baseline(_OfTask):
    """The unscheduled program was timed; None where it failed or took too long.

    `program` is what that is on the target: on a GPU the default schedule.
    """

    latency_us: float | None
    message: str
    program: str = "unscheduled program"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted(_OfTask):
    """Candidates of a round were chosen and are being built."""

    round: int
    n_candidates: int
    #: rejected by TVM although chosen as legal
    n_invalid: int
    predicted_us: float | None
    elapsed_s: float
    #: how the search of the round went down; empty where nothing descends
    steps: tuple[DescentStep, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial(_OfTask):
    """A candidate was measured: a latency, or an error class with a message."""

    trial: int
    round: int
    latency_us: float | None
    error: str | None
    message: str
    #: the task's best so far, this candidate included
    best_us: float | None
    is_best: bool
    elapsed_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLatency:
    """What the groups of a network take together by now, with cold caches, whoever runs them;
    `elapsed_s` is since the call that optimizes it."""

    latency_us: float
    elapsed_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The cost model was fine-tuned; losses are those of `costmodel.FineTuner`."""

    n_records: int
    loss_before: float
    loss_after: float
    accepted: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something a person should know; tuning goes on."""

    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen(_OfTask):
    """At the end, what ships of a task: the fastest schedule or the unscheduled program."""

    #: None if no schedule ran correctly
    tuned_us: float | None
    unscheduled_us: float
    ships_unscheduled: bool
    #: as `Baseline.program`
    program: str = "unscheduled program"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Remeasuring:
    """The budget is spent; the fastest candidates are measured again, longer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Tuning ended: why, and the weighted latency of all tasks (None if one has no result).

    Tasks that were skipped do not count.
    """

    reason: str
    trials: int
    latency_us: float | None
    elapsed_s: float


Event: TypeAlias = (
    Started
    | Opening
    | Opened
    | Skipped
    | Baseline
    | RoundStarted
    | Trial
    | NetworkLatency
    | Trained
    | Warned
    | Remeasuring
    | Chosen
    | Finished
)


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain values, with its kind under `event`."""
    return {"event": type(event).__name__, **dataclasses.asdict(event)}
