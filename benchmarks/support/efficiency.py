"""Summaries of the pieces of `search_efficiency`: how near the best each search got, and when.

A piece is one search of one subgraph under one seed: its curve of (trial, elapsed_s, best_us),
`n_measured`, `wall_s`. The best latency of a subgraph is the lowest that any search ended with.
A candidate that is measured again at the end counts from its first measurement on (`dated`): the
time that measuring again takes is not part of the search.
Durations in seconds, latencies in microseconds.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.support import common

SHARES = (0.90, 0.95, 0.99)
#: Strategies whose times are compared with Felix's.
COMPARED = ("lower-bound", "drawn-start", "near-parents", "each-kind", "resample-all",
            "less-polish", "more-polish", "more-structures", "mean", "thompson", "evolution",
            "evolution-24", "descent", "gradient", "gradient-drawn", "gradient-before",
            "gradient-thompson", "exact-evolution", "evolution-mean", "random",
            "stock")  # fmt: skip
SEARCHES = ("felix", *COMPARED)
#: What stock chose with a warm L2 (by its runner) and with a cold one; warm by Felix's pool.
WARM = ("own_best_us", "own_best_cold_us", "best_warm_us")


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per subgraph and strategy: medians over seeds of the best and of the times to shares.

    The best that shares are of is the lowest of all seeds.
    """
    entries = []
    for name in dict.fromkeys(run["name"] for run in runs):
        of_name = [run for run in runs if run["name"] == name]
        last_us = [run["curve"][-1][2] for run in of_name if run.get("curve")]
        if not last_us:
            continue
        best_us = min(last_us)
        equal = min(run["n_measured"] for run in of_name if run.get("curve"))
        vendor = [run["latency_us"] for run in of_name if run["strategy"] == "vendor"]
        turns = [run["median_us"] for run in of_name if run["strategy"] == "winners"]
        for strategy in SEARCHES:
            mine = [run for run in of_name if run["strategy"] == strategy]
            if not mine:
                continue
            ends = [run["curve"][-1][2] if run["curve"] else math.inf for run in mine]
            curves = [dated(run) for run in mine]
            entry: dict[str, Any] = {"name": name, "strategy": strategy, "seeds": len(curves)}
            median_us = statistics.median(ends)
            entry |= {"best_us": median_us, "of_best": best_us / median_us}
            entry |= {key: _median([run.get(key) for run in mine]) for key in WARM}
            entry["searched_s"] = statistics.median(searched_s(run) for run in mine)
            entry["pool_s"] = statistics.median(run.get("pool_s", 0.0) for run in mine)
            entry |= {
                key: statistics.median(run[key] for run in mine)
                for key in ("wall_s", "n_measured")
            }
            entry["equal_us"] = _median([best_after(curve, equal) for curve in curves])
            for share in SHARES:
                times = [time_to(curve, best_us / share) for curve in curves]
                entry[f"to_{share:.0%}_s"] = _median([t[0] for t in times])
                entry[f"to_{share:.0%}_trials"] = _median([t[1] for t in times])
            if turns:
                entry["turns_us"] = _median([medians.get(strategy) for medians in turns])
            entry |= {f"vendor_{kind}_us": value for one in vendor for kind, value in one.items()}
            entries.append(entry)
    return entries


def dated(run: dict[str, Any]) -> list[Sequence[float]]:
    """The curve of a piece, with re-measured latencies at the candidates' first measurements.

    A curve ends with the best of the re-measured if its last two points are after the same trial.
    Pieces without `finals` do not say whose it is; it is taken for that of the best until then.
    """
    if not _has_remeasured(run):
        return list(run["curve"])
    *before, (_, _, remeasured_us) = run["curve"]
    trial, elapsed_s, _ = min(before, key=lambda point: point[2])
    points = [*before, *run.get("finals", [(trial, elapsed_s, remeasured_us)])]
    return sorted(points, key=lambda point: (point[0], point[1]))


def searched_s(run: dict[str, Any]) -> float:
    """Seconds that all trials took, without re-measuring."""
    return float(run["curve"][-2][1] if _has_remeasured(run) else run["wall_s"])


def _has_remeasured(run: dict[str, Any]) -> bool:
    curve = run["curve"]
    return len(curve) > 1 and curve[-1][0] == curve[-2][0]


def time_to(
    curve: Sequence[Sequence[float]], latency_us: float
) -> tuple[float | None, float | None]:
    """Seconds and trials until a point (trial, elapsed_s, latency_us) is at or under a latency."""
    for trial, elapsed_s, best_us in curve:
        if best_us <= latency_us:
            return elapsed_s, trial
    return None, None


def best_after(curve: Sequence[Sequence[float]], trials: float) -> float | None:
    """The best latency after so many trials; None if none ran by then."""
    return min((latency_us for trial, _, latency_us in curve if trial <= trials), default=None)


@dataclasses.dataclass(frozen=True, slots=True)
class Ratios:
    """A strategy's times to a share of the best over Felix's.

    Attributes:
        both: of the subgraphs where both got there.
        bounds: where only Felix did: the time of the other's trials over Felix's, a lower bound.
        lost: subgraphs where Felix did not get there and the other did.
    """

    both: tuple[float, ...]
    bounds: tuple[float, ...]
    lost: tuple[str, ...]


def ratios(
    entries: Sequence[dict[str, Any]], strategy: str, share: float, with_start: bool = False
) -> Ratios:
    """How much longer a strategy took than Felix, over all subgraphs that both tuned.

    With `with_start` each time has the start of its measuring workers on top (`pool_s`; stock's is
    in its times anyway), as in a run that does not find them running.
    """

    def took_s(entry: dict[str, Any], what: str) -> float:
        return float(entry[what] + (entry["pool_s"] if with_start else 0.0))

    key = f"to_{share:.0%}_s"
    of = {(e["name"], e["strategy"]): e for e in entries}
    pairs = [
        (e, of[e["name"], "felix"])
        for e in entries
        if e["strategy"] == strategy and (e["name"], "felix") in of
    ]
    return Ratios(
        tuple(took_s(e, key) / took_s(felix, key) for e, felix in pairs if e[key] and felix[key]),
        tuple(
            took_s(e, "searched_s") / took_s(felix, key)
            for e, felix in pairs
            if not e[key] and felix[key]
        ),
        tuple(e["name"] for e, felix in pairs if e[key] and not felix[key]),
    )


def render(data: dict[str, Any]) -> str:
    """Tables in Markdown."""
    entries = summary(data["runs"])
    keys = [
        "name",
        "strategy",
        "seeds",
        "n_measured",
        "wall_s",
        "best_us",
        "of_best",
        "equal_us",
        "to_90%_s",
        "to_95%_s",
        "to_99%_s",
        "to_95%_trials",
    ]
    if not entries:
        return ""
    head = [key.replace("_", " ") for key in keys]
    parts = [common.table(head, [[entry[key] for key in keys] for entry in entries])]
    every = [_ratio_row(entries, strategy, share) for strategy in COMPARED for share in SHARES]
    rows = [row for row in every if row is not None]
    if rows:
        head = [
            "against Felix",
            "share",
            "both got there",
            "geometric mean",
            "only Felix did",
            "with its bounds at least",
            "only the other did",
            "mean with pool's start",
            "with bounds and start",
        ]
        parts.append(common.table(head, rows))
    turns = _turns_table(entries, data["runs"])
    if turns is not None:
        parts.append(turns)
    warm = _warm_rows(entries)
    if warm:
        head = [
            "warm and cold L2",
            "stock's choice warm us",
            "by Felix's pool us",
            "cold us",
            "stock's best cold us",
            "Felix warm us",
            "Felix cold us",
        ]
        parts.append(common.table(head, warm))
    vendor = _vendor_rows(entries)
    if vendor:
        head = [
            "name",
            "Felix us",
            "best found us",
            "eager us",
            "inductor us",
            "vendor's best / Felix",
        ]
        parts.append(common.table(head, vendor))
    return "\n\n".join(parts)


def _ratio_row(entries: Sequence[dict[str, Any]], strategy: str, share: float) -> list[Any] | None:
    searched, started = (
        ratios(entries, strategy, share, with_start) for with_start in (False, True)
    )
    if not searched.both and not searched.bounds:
        return None
    means = [
        statistics.geometric_mean(some) if some else None
        for one in (searched, started)
        for some in (one.both, one.both + one.bounds)
    ]
    return [
        strategy,
        f"{share:.0%}",
        len(searched.both),
        means[0],
        len(searched.bounds),
        means[1],
        len(searched.lost),
        means[2],
        means[3],
    ]


def _turns_table(entries: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> str | None:
    """Winners of the searches that have one in most seeds, and each seed's ratio to Felix's."""
    of = {(e["name"], e["strategy"]): e.get("turns_us") for e in entries}
    timed = [name for name in SEARCHES if any(us and key[1] == name for key, us in of.items())]
    rows = []
    for name in dict.fromkeys(entry["name"] for entry in entries):
        medians = {strategy: of.get((name, strategy)) for strategy in timed}
        pieces = [r for r in runs if r["name"] == name and r["strategy"] == "winners"]
        each = [behind_felix(r["median_us"]) for r in sorted(pieces, key=lambda r: int(r["seed"]))]
        whole = behind_felix(medians)
        if whole is not None:
            cells = ["-" if ratio is None else f"{ratio:.3f}" for ratio in (whole, *each)]
            rows.append([name, *medians.values(), cells[0], " ".join(cells[1:])])
    head = ["winners in turns", *(f"{name} us" for name in timed), "best other / Felix"]
    return common.table([*head, "each seed"], rows) if rows else None


def behind_felix(medians_us: Mapping[str, float | None]) -> float | None:
    """The fastest other winner's latency over Felix's; None: either has none."""
    felix_us = medians_us.get("felix")
    others = [us for name, us in medians_us.items() if name != "felix" and us is not None]
    return min(others) / felix_us if felix_us is not None and others else None


def _warm_rows(entries: Sequence[dict[str, Any]]) -> list[list[Any]]:
    of = {(e["name"], e["strategy"]): e for e in entries}
    pairs = [
        (stock, of[name, "felix"])
        for (name, strategy), stock in of.items()
        if strategy == "stock" and stock["own_best_us"] and (name, "felix") in of
    ]
    return [
        [
            stock["name"],
            stock["own_best_us"],
            stock["best_warm_us"],
            stock["own_best_cold_us"],
            stock["best_us"],
            felix["best_warm_us"],
            felix["best_us"],
        ]
        for stock, felix in pairs
    ]


def _vendor_rows(entries: Sequence[dict[str, Any]]) -> list[list[Any]]:
    ratios = ratios_to_libraries(entries)
    return [
        [
            entry["name"],
            felix_us(entry),
            min(e["best_us"] for e in entries if e["name"] == entry["name"]),
            entry["vendor_eager_us"],
            entry["vendor_inductor_us"],
            ratios[entry["name"]],
        ]
        for entry in entries
        if entry["strategy"] == "felix" and entry["name"] in ratios
    ]


def ratios_to_libraries(entries: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The latency of the fastest library over that of Felix's schedule, by subgraph."""
    return {
        entry["name"]: min(entry["vendor_eager_us"], entry["vendor_inductor_us"]) / felix_us(entry)
        for entry in entries
        if entry["strategy"] == "felix" and "vendor_eager_us" in entry
    }


def felix_us(entry: Mapping[str, Any]) -> float:
    """Felix's latency beside the libraries': in turns with them, else as its search timed it."""
    return float(entry.get("vendor_felix_us", entry["best_us"]))


def picture(data: dict[str, Any], path: pathlib.Path) -> None:
    """Best latency over time, one panel a subgraph, up to five times the best found."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    names = list(dict.fromkeys(run["name"] for run in data["runs"]))
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(rows, columns, squeeze=False, figsize=(4 * columns, 3 * rows))
    for axis, name in zip(axes.flat, names, strict=False):
        for index, strategy in enumerate(SEARCHES):
            every = [r for r in data["runs"] if r["name"] == name and r["strategy"] == strategy]
            runs = [run for run in every if run["curve"]]
            for run in runs:
                _, seconds, latencies = zip(*run["curve"], strict=True)
                label = strategy if run is runs[0] else None
                axis.step(seconds, latencies, where="post", color=f"C{index}", label=label)
        best_us = min(
            r["curve"][-1][2] for r in data["runs"] if r["name"] == name and r.get("curve")
        )
        axis.set(title=name, xlabel="s", ylabel="us", xscale="log", yscale="log")
        axis.set_ylim(0.95 * best_us, 5 * best_us)
        axis.yaxis.set_major_locator(ticker.MaxNLocator(5))
        axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
            scale.set_minor_formatter(ticker.NullFormatter())
        axis.legend(fontsize=7)
    for axis in axes.flat[len(names) :]:
        axis.remove()
    figure.tight_layout()
    figure.savefig(path)


def _median(values: Sequence[float | None]) -> float | None:
    """Median that counts a missing value as infinite; None if that is the median."""
    middle = statistics.median_high([math.inf if v is None else v for v in values])
    return middle if math.isfinite(middle) else None
