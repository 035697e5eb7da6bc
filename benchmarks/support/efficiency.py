"""What the pieces of `search_efficiency` say: how soon a search is near the best, over Felix's.

A piece is one search of one subgraph under one seed: its `curve` of (trial, elapsed_s, best_us),
`n_measured`, `wall_s`. A candidate that is measured again at the end counts from its first
measurement on (`dated`): the time that measuring again takes is not part of the search. Durations
in seconds, latencies in microseconds.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.support import common, ratios

FELIX = "felix"
#: A search is near the best within this share.
SHARE = 0.95
#: What a results file keeps of a piece.
KEPT = """
    name workload seed strategy trials wall_s curve remeasured finals n_measured build_s breakdown
    variant flops median_us latency_us us
""".split()

Run = Mapping[str, Any]
Ratios = dict[str, list[float]]


def kept(run: Run) -> dict[str, Any]:
    """What a results file keeps of a piece."""
    return {key: run[key] for key in KEPT if run.get(key) is not None}


def remeasured(run: Run) -> Sequence[Any] | None:
    """Latencies measured again at the end of a search, which older results files call finals."""
    found: Sequence[Any] | None = run.get("remeasured", run.get("finals"))
    return found


def dated(run: Run) -> list[Sequence[float]]:
    """The curve of a piece, with re-measured latencies at the candidates' first measurements.

    A curve ends with the best of the re-measured if its last two points are after the same trial.
    """
    if not _has_remeasured(run):
        return list(run["curve"])
    return sorted(
        [*run["curve"][:-1], *(remeasured(run) or [])], key=lambda point: (point[0], point[1])
    )


def searched_s(run: Run) -> float:
    """Seconds that all trials took, without re-measuring."""
    return float(run["curve"][-2][1] if _has_remeasured(run) else run["wall_s"])


def _has_remeasured(run: Run) -> bool:
    curve = run["curve"]
    return len(curve) > 1 and curve[-1][0] == curve[-2][0] and remeasured(run) is not None


def time_to(run: Run, latency_us: float) -> float | None:
    """Seconds until a candidate is at or under a latency; None: none is."""
    return next((s for _, s, best_us in dated(run) if best_us <= latency_us), None)


def best_us(run: Run, n_trials: int) -> float | None:
    """The best latency after so many trials; None if none ran by then."""
    return min((us for trial, _, us in run["curve"] if trial <= n_trials), default=None)


def _pairs(runs: Sequence[Run], strategy: str) -> Iterable[tuple[str, Run, Run, list[Run]]]:
    """Task; Felix's search, the strategy's and all of the task and a seed."""
    of = {(run["name"], run["seed"], run["strategy"]): run for run in runs if "curve" in run}
    for (name, seed, each), run in of.items():
        ours = of.get((name, seed, FELIX))
        if each == strategy and ours is not None:
            yield name, ours, run, [r for k, r in of.items() if k[:2] == (name, seed)]


def times(runs: Sequence[Run], strategy: str) -> Ratios:
    """Times to within SHARE of the best that any search of a task and seed found, over Felix's.

    A search that never got there counts with the time of all its trials where that is longer than
    what the other took, and both are left out where neither did.
    """
    found: Ratios = {}
    for name, ours, theirs, everyone in _pairs(runs, strategy):
        near_us = min(run["curve"][-1][2] for run in everyone if run["curve"]) / SHARE
        our_s, other_s = time_to(ours, near_us), time_to(theirs, near_us)
        if our_s is not None or other_s is not None:
            our_s = our_s or max(searched_s(ours), other_s or 0.0)
            other_s = other_s or max(searched_s(theirs), our_s)
            found.setdefault(name, []).append(other_s / our_s)
    return found


def whole(runs: Sequence[Run], strategy: str) -> Ratios:
    """What whole searches take, over Felix's."""
    found: Ratios = {}
    for name, ours, theirs, _ in _pairs(runs, strategy):
        found.setdefault(name, []).append(searched_s(theirs) / searched_s(ours))
    return found


def after_equal_trials(runs: Sequence[Run], strategy: str) -> Ratios:
    """Best latencies after as many trials as the one that had fewer, over Felix's."""
    found: Ratios = {}
    for name, ours, theirs, _ in _pairs(runs, strategy):
        n_trials = min(ours["n_measured"], theirs["n_measured"])
        our_us, other_us = best_us(ours, n_trials), best_us(theirs, n_trials)
        if our_us and other_us:
            found.setdefault(name, []).append(other_us / our_us)
    return found


def winners(runs: Sequence[Run], strategy: str) -> Ratios:
    """Latencies of winners, timed in turns, over those of Felix's."""
    found: Ratios = {}
    for run in runs:
        if run["strategy"] == "winners":
            our_us, other_us = (run["median_us"].get(each) for each in (FELIX, strategy))
            if our_us and other_us:
                found.setdefault(run["name"], []).append(other_us / our_us)
    return found


def to_libraries(runs: Sequence[Run]) -> dict[str, float]:
    """The latency of the fastest library over that of Felix's schedule, in turns with it."""
    timed = {run["name"]: run["latency_us"] for run in runs if run["strategy"] == "vendor"}
    return {
        name: min(us["eager"], us["inductor"]) / us[FELIX]
        for name, us in timed.items()
        if FELIX in us
    }


def render(*results: Mapping[str, Any]) -> str:
    """Tables in Markdown: each search over Felix's; the libraries over Felix's schedules."""
    rows = [
        _row(data["runs"], each)
        for data in results
        for each in dict.fromkeys(run["strategy"] for run in data["runs"] if "curve" in run)
    ]
    head = ["over felix", "subgraphs", "searches", "to within 5 %", "least", "most"]
    more = ["whole search", "latency, equal trials", "winners in turns"]
    searches = [row for row in rows if row]
    tables = [common.table([*head, *more], searches)] if searches else []
    if libraries := to_libraries([run for data in results for run in data["runs"]]):
        ends = ratios.ends({name: [ratio] for name, ratio in libraries.items()})
        row = [len(libraries), str(ratios.single(libraries)), *ends]
        tables.append(common.table(["subgraphs", "library / Felix", "least", "most"], [row]))
    return "\n\n".join(tables)


def _row(runs: Sequence[Run], strategy: str) -> list[Any]:
    """A search over Felix's; nothing where both have no task in common."""
    compared = whole(runs, strategy)
    if strategy == FELIX or not compared:
        return []
    near = times(runs, strategy)
    means = [
        str(ratios.mean(found)) if found else "-"
        for found in (compared, after_equal_trials(runs, strategy), winners(runs, strategy))
    ]
    return [
        strategy,
        len(near),
        sum(map(len, near.values())),
        *([str(ratios.mean(near)), *ratios.ends(near)] if near else ["-"] * 3),
        *means,
    ]


def table_of_pieces(data: Mapping[str, Any]) -> str:
    """The best and the seconds of every search, for who ran it."""
    rows = [
        [run["name"], run["seed"], run["strategy"], run["n_measured"], run["wall_s"], end]
        for run in data["runs"]
        if "curve" in run
        for end in [run["curve"][-1][2] if run["curve"] else None]
    ]
    return common.table(["name", "seed", "strategy", "trials", "wall s", "best us"], rows)


def picture(data: Mapping[str, Any], path: pathlib.Path) -> None:
    """Best latency over time, one panel a subgraph, up to five times the best found."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    searches = [run for run in data["runs"] if run.get("curve")]
    names, strategies = (list(dict.fromkeys(r[k] for r in searches)) for k in ("name", "strategy"))
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(rows, columns, squeeze=False, figsize=(4 * columns, 3 * rows))
    for axis, name in zip(axes.flat, names, strict=False):
        of_name = [run for run in searches if run["name"] == name]
        for index, strategy in enumerate(strategies):
            runs = [run for run in of_name if run["strategy"] == strategy]
            for run in runs:
                _, seconds, latencies = zip(*run["curve"], strict=True)
                label = strategy if run is runs[0] else None
                axis.step(seconds, latencies, where="post", color=f"C{index}", label=label)
        least_us = min(run["curve"][-1][2] for run in of_name)
        axis.set(title=name, xlabel="s", ylabel="us", xscale="log", yscale="log")
        axis.set_ylim(0.95 * least_us, 5 * least_us)
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
