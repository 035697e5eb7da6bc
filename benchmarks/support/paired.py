"""Ratios of two searches of the same tasks and seeds, with intervals.

An interval holds 95 % of the geometric means over tasks, and seeds of each, that are drawn anew
with replacement.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.support import efficiency

N_DRAWN, INTERVAL = 10_000, (2.5, 97.5)
#: What others are compared with: the first that was run.
REFERENCES = ("felix", "gradient")
#: Operators that are one group.
_ALIKE = dict.fromkeys(("reduce", "softmax", "layer_norm", "rms_norm"), "sums and norms")
Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean of ratios and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} (interval {self.low:.3f} to {self.high:.3f})"


def reference(runs: Sequence[Run]) -> str:
    """The strategy that the others are compared with: felix, or gradient without it."""
    known = {run["strategy"] for run in runs}
    return next((name for name in REFERENCES if name in known), REFERENCES[0])


def mean(logs_by_task: Sequence[Sequence[float]]) -> Mean:
    """Of the logarithms of ratios of each task, one a seed; each task counts once."""
    return _mean(tuple(map(tuple, logs_by_task)))


@functools.cache  # a page has each in a sentence and in a table
def _mean(logs_by_task: tuple[tuple[float, ...], ...]) -> Mean:
    low, high = np.percentile(_means(logs_by_task), INTERVAL)
    middle = statistics.fmean(statistics.fmean(task) for task in logs_by_task)
    return Mean(*(math.exp(value) for value in (middle, low, high)))


def _means(logs_by_task: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Means over tasks drawn with replacement, of means over as many seeds as each has."""
    counts = np.array([len(logs) for logs in logs_by_task])
    most = int(counts.max())
    logs = np.array([[*each, *[0.0] * (most - len(each))] for each in logs_by_task])
    rng = np.random.default_rng(0)
    tasks = rng.integers(len(counts), size=(N_DRAWN, len(counts), 1))
    seeds = (rng.random((N_DRAWN, len(counts), most)) * counts[tasks]).astype(np.intp)
    drawn = np.where(np.arange(most) < counts[tasks], logs[tasks, seeds], 0.0)
    means: NDArray[np.float64] = (drawn.sum(axis=2) / counts[tasks[..., 0]]).mean(axis=1)
    return means


def times(runs: Sequence[Run], strategy: str, share: float) -> tuple[Mean, int]:
    """A strategy's time to a share of the best that any search of a seed found, over the
    reference's; and of how many searches.

    A search that never got there counts with the time of all its trials where that is longer than
    what the other took, and both are left out where neither did.
    """
    by_task = _time_logs(runs, strategy, share)
    return mean(by_task), sum(map(len, by_task))


def _time_logs(runs: Sequence[Run], strategy: str, share: float) -> list[list[float]]:
    by_task = []
    for seeds in _shared(runs, strategy).values():
        logs = []
        for ours, theirs, everyone in seeds:
            best_us = min(run["curve"][-1][2] for run in everyone if run["curve"])
            our_s, other_s = (_time_to(run, best_us / share) for run in (ours, theirs))
            if our_s is None and other_s is None:
                continue
            our_s = our_s or max(efficiency.searched_s(dict(ours)), other_s or 0.0)
            other_s = other_s or max(efficiency.searched_s(dict(theirs)), our_s)
            logs.append(math.log(other_s / our_s))
        if logs:
            by_task.append(logs)
    return by_task


def times_by_operator(
    runs: Sequence[Run], workloads: Mapping[str, str], strategy: str, share: float
) -> dict[str, tuple[Mean, int]]:
    """`times` of the tasks of each operator; `workloads` are the tasks' text forms by name.

    An operator of which neither search got there is left out.
    """
    return {
        each: times(own, strategy, share)
        for each, own in _by_operator(runs, workloads).items()
        if _time_logs(own, strategy, share)
    }


def winners_by_operator(
    runs: Sequence[Run], workloads: Mapping[str, str], strategy: str
) -> dict[str, Mean]:
    """`of_winners` of the tasks of each operator that has any."""
    of = {each: of_winners(own, strategy) for each, own in _by_operator(runs, workloads).items()}
    return {each: mean for each, mean in of.items() if mean is not None}


def _by_operator(runs: Sequence[Run], workloads: Mapping[str, str]) -> dict[str, list[Run]]:
    """Runs of the tasks of each operator."""
    names: dict[str, list[str]] = {}
    for name, text in workloads.items():
        operator = text.partition(":")[0]
        names.setdefault(_ALIKE.get(operator, operator), []).append(name)
    return {each: [run for run in runs if run["name"] in own] for each, own in names.items()}


def _time_to(run: Run, latency_us: float) -> float | None:
    return efficiency.time_to(efficiency.dated(dict(run)), latency_us)[0]


def of_whole(runs: Sequence[Run], strategy: str) -> Mean:
    """What a whole search takes, over the reference's."""
    return _ratio(runs, strategy, lambda run: efficiency.searched_s(dict(run)))


def of_best(runs: Sequence[Run], strategy: str, n_trials: int) -> Mean | None:
    """The best latency after so many trials, over the reference's after as many.

    None: no search of a strategy or of the reference had so many.
    """
    by_task = {
        name: [
            math.log(_best_us(theirs, n_trials) / _best_us(ours, n_trials))
            for ours, theirs, _ in seeds
            if min(run["n_measured"] for run in (ours, theirs)) >= n_trials
            and all(run["curve"] and run["curve"][0][0] <= n_trials for run in (ours, theirs))
        ]
        for name, seeds in _shared(runs, strategy).items()
    }
    logs_by_task = [logs for logs in by_task.values() if logs]
    return mean(logs_by_task) if logs_by_task else None


def _best_us(run: Run, n_trials: int) -> float:
    return min(latency_us for trial, _, latency_us in run["curve"] if trial <= n_trials)


def of_winners(runs: Sequence[Run], strategy: str) -> Mean | None:
    """Latencies of a strategy's winners, timed in turns, over those of the reference.

    None: none were timed.
    """
    by_task: dict[str, list[float]] = {}
    both = (reference(runs), strategy)
    for run in runs:
        if run["strategy"] == "winners":
            our_us, other_us = (run["median_us"].get(each) for each in both)
            if our_us and other_us:
                by_task.setdefault(run["name"], []).append(math.log(other_us / our_us))
    return mean(list(by_task.values())) if by_task else None


def _ratio(runs: Sequence[Run], strategy: str, value: Callable[[Run], float]) -> Mean:
    return mean(
        [
            [math.log(value(theirs) / value(ours)) for ours, theirs, _ in seeds]
            for seeds in _shared(runs, strategy).values()
        ]
    )


def _shared(runs: Sequence[Run], strategy: str) -> dict[str, list[tuple[Run, Run, list[Run]]]]:
    """The reference's search, the strategy's and all of a task and seed, by task."""
    default = reference(runs)
    of = {(run["name"], run["seed"], run["strategy"]): run for run in runs}
    shared: dict[str, list[tuple[Run, Run, list[Run]]]] = {}
    for (name, seed, each), run in of.items():
        ours = of.get((name, seed, default))
        if each == strategy and ours is not None:
            everyone = [r for r in runs if (r["name"], r["seed"]) == (name, seed) and "curve" in r]
            shared.setdefault(name, []).append((ours, run, everyone))
    return shared
