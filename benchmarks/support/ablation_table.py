"""Figures of `search_ablation`: at equal CPU seconds, after as many rounds; tables, a picture."""

from __future__ import annotations

import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.support import common, paired

#: The product's default on a GPU, others without gradients, and those with gradients.
FELIX, WITHOUT_GRADIENTS = "felix", ("more-polish", "each-kind", "exact-evolution", "rank")
WITH_GRADIENTS = (
    "gradient",
    "descent",
    "descent-only",
    "first-order",
    "langevin",
    "preconditioned",
    "steepest",
)
#: With felix after as many rounds.
COMPARED = (*WITHOUT_GRADIENTS, *WITH_GRADIENTS)
BUDGETS_S = (1.0, 2.0, 4.0, 8.0)
#: At which searches are compared whatever they cost.
ROUNDS = (2, 3, 4)
#: Of a curve of the picture.
N_POINTS = 80


def best_by(piece: dict[str, Any], cpu_s: float) -> float:
    """The lowest prediction, in us, of the rounds that ended within so many CPU seconds."""
    ended = sum(after_s <= cpu_s for after_s in piece["after_s"])
    return float(piece["best_us"][max(0, ended - 1)])


def summary(pieces: Sequence[dict[str, Any]], cpu_s: float) -> list[dict[str, Any]]:
    """For each set and budget the share of each strategy, and how far felix is ahead of it."""
    rows = []
    for name in dict.fromkeys(piece["set"] for piece in pieces):
        of_set = [piece for piece in pieces if piece["set"] == name]
        lowest = {
            task: min(piece["best_us"][-1] for piece in of_set if piece["name"] == task)
            for task in {piece["name"] for piece in of_set}
        }
        for budget_s in [each for each in BUDGETS_S if each <= cpu_s]:
            for strategy in dict.fromkeys(piece["strategy"] for piece in of_set):
                own = [piece for piece in of_set if piece["strategy"] == strategy]
                logs = [math.log(lowest[p["name"]] / best_by(p, budget_s)) for p in own]
                rows.append(
                    {
                        "set": name,
                        "budget_s": budget_s,
                        "strategy": strategy,
                        "share": math.exp(statistics.fmean(logs)),
                        "rounds": statistics.fmean(
                            sum(s <= budget_s for s in piece["after_s"]) for piece in own
                        ),
                        **_ahead(of_set, strategy, budget_s),
                    }
                )
    return rows


def _ahead(
    pieces: Sequence[dict[str, Any]], strategy: str, budget_s: float
) -> dict[str, float | list[float]]:
    """Geometric mean of a strategy's lowest predictions over felix's, and its interval."""
    best = {(p["strategy"], p["name"], p["seed"]): best_by(p, budget_s) for p in pieces}
    by_task = [
        [math.log(best[strategy, task, seed] / best[FELIX, task, seed]) for seed in seeds]
        for task, seeds in _tasks(pieces)
    ]
    ratio = paired.mean(by_task)
    return {"ahead": ratio.mean, "interval": [ratio.low, ratio.high]}


def _tasks(pieces: Sequence[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    names = dict.fromkeys(piece["name"] for piece in pieces)
    return [(name, sorted({p["seed"] for p in pieces if p["name"] == name})) for name in names]


def at_equal_rounds(pieces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How far felix is ahead of the others after as many rounds, whatever these cost.

    It says what a search would be worth if its rounds cost no more than felix's. Tasks and seeds
    of which either had no time for so many rounds are left out.
    """
    rows = []
    for name in dict.fromkeys(piece["set"] for piece in pieces):
        of_set = [piece for piece in pieces if piece["set"] == name]
        ends = {(p["strategy"], p["name"], p["seed"]): p["best_us"] for p in of_set}
        for strategy in [each for each in COMPARED if any(each == key[0] for key in ends)]:
            for n in ROUNDS:
                by_task = [
                    [
                        math.log(theirs[n - 1] / ours[n - 1])
                        for seed in seeds
                        if min(
                            len(theirs := ends.get((strategy, task, seed), ())),
                            len(ours := ends[FELIX, task, seed]),
                        )
                        >= n
                    ]
                    for task, seeds in _tasks(of_set)
                ]
                both = [logs for logs in by_task if logs]
                if both:
                    n_searches, ahead = sum(map(len, both)), paired.mean(both)
                    rows.append(
                        {
                            "set": name,
                            "strategy": strategy,
                            "rounds": n,
                            "searches": n_searches,
                            "ahead": ahead,
                        }
                    )
    return rows


def render(data: dict[str, Any]) -> str:
    """The tables of a results file, one a set, then that at equal rounds."""
    tables = []
    for name in dict.fromkeys(row["set"] for row in data["summary"]):
        rows = [
            [
                row["strategy"],
                row["budget_s"],
                row["rounds"],
                row["share"],
                None if row["strategy"] == FELIX else row["ahead"],
                "" if row["strategy"] == FELIX else "{:.3f} to {:.3f}".format(*row["interval"]),
            ]
            for row in data["summary"]
            if row["set"] == name
        ]
        n_tasks = len({piece["name"] for piece in data["pieces"] if piece["set"] == name})
        head = ["strategy", "CPU s", "rounds", "share", "felix / other", "95 %"]
        tables.append(f"{name}, {n_tasks} tasks:\n\n{common.table(head, rows)}")
    equal = [
        [
            row["set"],
            row["strategy"],
            row["rounds"],
            row["searches"],
            row["ahead"].mean,
            f"{row['ahead'].low:.3f} to {row['ahead'].high:.3f}",
        ]
        for row in at_equal_rounds(data["pieces"])
    ]
    if equal:
        head = ["set", "strategy", "rounds", "searches", "felix / other", "95 %"]
        tables.append(f"After as many rounds, whatever they cost:\n\n{common.table(head, equal)}")
    return "\n\n".join(tables)


def says(data: Mapping[str, Any]) -> str:
    """How far felix is ahead, at the end, of the best others with and without gradients."""
    sentences = []
    for name in dict.fromkeys(row["set"] for row in data["summary"]):
        rows = [row for row in data["summary"] if row["set"] == name]
        last_s = max(row["budget_s"] for row in rows)
        for what, strategies in (("with", WITH_GRADIENTS), ("else without", WITHOUT_GRADIENTS)):
            rivals = [r for r in rows if r["budget_s"] == last_s and r["strategy"] in strategies]
            if rivals:
                rival = max(rivals, key=lambda row: row["share"])
                low, high = rival["interval"]
                sentences.append(
                    f"On {name}, after {last_s:g} CPU seconds, the lowest prediction of the best "
                    f"search {what} gradients (`{rival['strategy']}`) is {rival['ahead']:.3f} "
                    f"times felix's ({low:.3f} to {high:.3f})."
                )
    return " ".join(sentences)


def picture(data: Mapping[str, Any], path: pathlib.Path) -> None:
    """Shares over CPU seconds, one panel a set."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(piece["set"] for piece in data["pieces"]))
    figure, axes = pyplot.subplots(1, len(names), squeeze=False, figsize=(6 * len(names), 4))
    for axis, name in zip(axes.flat, names, strict=True):
        of_set = [piece for piece in data["pieces"] if piece["set"] == name]
        for number, strategy in enumerate(dict.fromkeys(piece["strategy"] for piece in of_set)):
            seconds, shares = _curve(of_set, strategy, data["cpu_s"])
            axis.plot(
                seconds,
                shares,
                color=f"C{number}",
                label=strategy,
                linewidth=2.5 if strategy == FELIX else 1.2,
            )
        axis.set(title=name, xlabel="CPU s", ylabel="lowest prediction of any search / own")
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def _curve(
    of_set: Sequence[dict[str, Any]], strategy: str, cpu_s: float
) -> tuple[list[float], list[float]]:
    """Geometric means over tasks and seeds, at N_POINTS moments."""
    lowest = {
        task: min(piece["best_us"][-1] for piece in of_set if piece["name"] == task)
        for task in {piece["name"] for piece in of_set}
    }
    own = [piece for piece in of_set if piece["strategy"] == strategy]
    seconds = [cpu_s * number / N_POINTS for number in range(1, N_POINTS + 1)]
    shares = [
        math.exp(statistics.fmean(math.log(lowest[p["name"]] / best_by(p, at)) for p in own))
        for at in seconds
    ]
    return seconds, shares
