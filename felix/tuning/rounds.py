"""Rounds of a run's tasks: those that are searched or measured now, and how large first ones are.

Each task gets its first round as early as possible. Their searches need no result of another task,
so they do not wait for each other's: many candidates may be on their way. Where there are few
seconds for each task, first rounds are smaller. Where trials are limited, those of first rounds
are kept for them. When no further round begins, the first candidate of each task is still measured
until the run ends: what the model picks is mostly far faster than a default schedule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felix.search import interface
    from felix.tuning.task_run import Applied, TaskRun

#: Candidates that may be on their way while tasks wait for their first round.
IN_FLIGHT = 48
#: Seconds for each task for which first rounds have their whole size.
WHOLE_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """The candidates of a round, and the programs of those that have been made already."""

    candidates: Sequence[interface.Candidate]
    programs: Mapping[interface.Key, Applied]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A round that is being searched."""

    task_run: TaskRun
    #: candidates in all
    n: int
    #: `Chosen`, or what a process says
    answer: futures.Future[Any]
    is_answered_here: bool
    #: candidates that are measured before what the search chooses
    first: Sequence[interface.Candidate] = ()
    #: whether traces are searched, too
    has_rest: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class BeingMeasured:
    """A round that is being measured: its candidates, and how many of them may be left at its
    end; of those of all tasks where rounds follow each other."""

    n: int
    n_left: float


class Rounds:
    """The rounds of a run by the index of their task, which has one at a time."""

    def __init__(self) -> None:
        self.searching: dict[int, Asked] = {}
        self.measuring: dict[int, BeingMeasured] = {}

    @property
    def busy(self) -> set[int]:
        """Tasks that have a round."""
        return {*self.searching, *self.measuring}

    @property
    def n_reserved(self) -> int:
        """Trials that searches were asked for."""
        return sum(each.n for each in self.searching.values())


def first_size(whole: int, left_s: float | None, n_fresh: int) -> int:
    """Candidates of a first round.

    Args:
        whole: with time enough.
        left_s: seconds that are left; None: no limit.
        n_fresh: tasks without a first round, of several.
    """
    if left_s is None:
        return whole
    share = left_s / (n_fresh * WHOLE_S)
    return max(1, min(whole, round(whole * share)))


def first_size_of_trials(whole: int, trials: int, n_tasks: int) -> int:
    """Candidates of a first round of tasks that share so many trials: each task gets its round."""
    return max(1, min(whole, trials // n_tasks))
