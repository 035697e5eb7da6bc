"""What goes between a run and its search processes: one request, one answer.

Both ends are processes of one user and one version, so messages are pickled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from felix.features.kind import FeatureKind

if TYPE_CHECKING:
    from torch import nn

    from felix.search import GradientOptions, base, interface
    from felix.tuning import task_run


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Search one round of a task."""

    task_index: int
    #: its text (`Task.to_json`)
    task: str
    #: of the search
    sizes: GradientOptions
    has_templates: bool
    #: of the run
    seed: int
    #: whether the search has the sketches of traces, which may be left to the second round
    has_rest: bool
    #: copies that predict ln(latency_us) for the task
    models: Mapping[FeatureKind, nn.Module]
    #: of the search; None: it begins
    state: dict[str, Any] | None
    #: candidates
    n: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The round."""

    searched: base.Round
    #: (index, key) of the sketches that the search has, in its order
    sketches: tuple[tuple[int, str], ...]
    #: what is measured of each candidate, or why there is nothing
    programs: Mapping[interface.Key, task_run.Applied]
    #: why others have no legal schedule, by their index
    failures: Mapping[int, str]
    #: what opening sketches took for this request
    open_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """There is no round: the run searches itself, and finds out why."""

    message: str


Answer: TypeAlias = Searched | Failed
