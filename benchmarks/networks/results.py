"""What `compare` makes of its cases: tables, the sentence of the page, the picture.

The best peer is the fastest of PyTorch eager, eager in a CUDA graph, inductor in its modes and
ONNX Runtime. Stock MetaSchedule is compared at each number of seconds on its own. Ratios are
another's latency over Felix's at the last number of seconds. When Felix was ahead of the best peer
counts everything since its first call: import, tuning, comparing, building.
"""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.support import common

_PEERS = ("eager", "eager-graph", "inductor", "reduce-overhead", "max-autotune", "onnxruntime")


def label(case: Mapping[str, Any]) -> str:
    """A case as its folder and --restore name it."""
    small = "-small" if case["small"] else ""
    way = f"-{case['fusion']}" if case.get("fusion") else ""
    return f"{case['name']}{small}-b{case['batch']}-{case['dtype']}{way}"


def point(tool: str, seconds: float) -> str:
    """A tool after so many seconds, as a contender."""
    return f"{tool} {seconds:g} s"


def rows(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each case of which Felix and a peer were timed."""
    made = []
    for run in runs:
        us, seconds = run["times"]["latency_us"], run["seconds"]
        felix, stock = curve(run, "felix"), curve(run, "stock")
        peers = {name: us[name] for name in _PEERS if name in us}
        if point("felix", seconds[-1]) not in us or not peers:
            continue
        felix_us, best = us[point("felix", seconds[-1])], min(peers, key=lambda each: peers[each])
        took = {each["seconds"]: each["elapsed_s"] for each in run["felix"]["points"]}
        ahead = [took[moment] for moment, latency_us in felix if latency_us < peers[best]]
        made.append(
            {
                "case": label(run),
                "dtype": run["dtype"],
                "batch": run["batch"],
                **peers,
                "stock": dict(stock).get(seconds[-1]),
                "felix": felix_us,
                "best": best,
                "best_ratio": peers[best] / felix_us,
                "eager_ratio": us["eager"] / felix_us if "eager" in us else None,
                "ahead_s": ahead[0] if ahead else None,
                "stock_ratios": [
                    dict(stock)[moment] / latency_us
                    for moment, latency_us in felix
                    if moment in dict(stock)
                ],
            }
        )
    return made


def curve(run: Mapping[str, Any], tool: str) -> list[tuple[float, float]]:
    """(seconds, latency in us) of a tool's points that were timed."""
    us = run["times"]["latency_us"]
    return [(moment, us[name]) for moment in run["seconds"] if (name := point(tool, moment)) in us]


def render(data: Mapping[str, Any]) -> str:
    """Tables in Markdown: geometric means, every case, the curves, what could not run."""
    every = rows(data["runs"])
    if not every:
        return ""
    parts = [_means(every), _cases(every), _curves(data["runs"]), _failures(data["runs"])]
    return "\n\n".join(part for part in parts if part)


def _means(every: Sequence[Mapping[str, Any]]) -> str:
    table = []
    for dtype, batch in dict.fromkeys((row["dtype"], row["batch"]) for row in every):
        of_kind = [row for row in every if (row["dtype"], row["batch"]) == (dtype, batch)]
        best = [row["best_ratio"] for row in of_kind]
        eager = [row["eager_ratio"] for row in of_kind if row["eager_ratio"] is not None]
        stock = [ratio for row in of_kind for ratio in row["stock_ratios"]]
        table.append(
            [
                dtype,
                batch,
                len(of_kind),
                statistics.geometric_mean(best),
                min(best),
                statistics.geometric_mean(eager) if eager else None,
                statistics.geometric_mean(stock) if stock else None,
                min(stock, default=None),
            ]
        )
    head = [
        "element type",
        "batch",
        "networks",
        "geometric mean of best peer / Felix",
        "least",
        "of eager / Felix",
        "of stock / Felix, all points",
        "least of them",
    ]
    return common.table(head, table)


def _cases(every: Sequence[Mapping[str, Any]]) -> str:
    head = [
        "network",
        *_PEERS,
        "stock",
        "Felix",
        "best peer / Felix",
        "eager / Felix",
        "ahead after wall s",
    ]
    keys = [*_PEERS, "stock", "felix", "best_ratio", "eager_ratio", "ahead_s"]
    body = [[row["case"], *(row.get(key) for key in keys)] for row in every]
    return "Latencies of one call in us.\n\n" + common.table(head, body)


def _curves(runs: Sequence[Mapping[str, Any]]) -> str:
    body = []
    for run in runs:
        felix, stock = dict(curve(run, "felix")), dict(curve(run, "stock"))
        took = {each["seconds"]: each for each in run.get("felix", {}).get("points", [])}
        for moment in run["seconds"]:
            if moment in felix or moment in stock:
                details = took.get(moment, {})
                body.append(
                    [
                        label(run),
                        moment,
                        felix.get(moment),
                        stock.get(moment),
                        details.get("elapsed_s"),
                        *_ships(details),
                    ]
                )
    head = [
        "network",
        "seconds",
        "Felix us",
        "stock us",
        "Felix, wall s",
        "calls by Felix",
        "by TVM",
        "by PyTorch",
    ]
    return common.table(head, body) if body else ""


def _ships(details: Mapping[str, Any]) -> list[int | None]:
    """Calls of groups that each contender runs."""
    groups = details.get("report", {}).get("groups")
    if groups is None:
        return [None, None, None]
    return [
        sum(group["calls"] for group in groups if group["ships"] == name)
        for name in ("felix", "tvm", "pytorch")
    ]


def _failures(runs: Sequence[Mapping[str, Any]]) -> str:
    body = [
        [label(run), name, reason.replace("|", "\\|")]
        for run in runs
        for name, reason in run["times"]["failures"].items()
    ]
    return common.table(["network", "contender", "why it did not run"], body) if body else ""


def statement(data: Mapping[str, Any]) -> str:
    """The ratios in a sentence for each element type."""
    every, sentences = rows(data["runs"]), []
    for dtype in dict.fromkeys(row["dtype"] for row in every):
        of_kind = [row for row in every if row["dtype"] == dtype]
        best = [row["best_ratio"] for row in of_kind]
        behind = [row["case"] for row in of_kind if row["best_ratio"] < 1]
        sentences.append(
            f"In {dtype} the best peer takes {statistics.geometric_mean(best):.2f} times Felix's "
            f"latency (geometric mean of {len(of_kind)}; {min(best):.2f} to {max(best):.2f}); "
            + (f"Felix is behind on {', '.join(behind)}." if behind else "Felix is never behind.")
        )
    return " ".join(sentences)


def picture(data: Mapping[str, Any], path: pathlib.Path) -> None:
    """For each case the latencies of Felix and stock by seconds, and lines for the peers."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    labels = {row["case"] for row in rows(data["runs"])}
    runs = [run for run in data["runs"] if label(run) in labels]
    columns = min(4, len(runs))
    lines = -(-len(runs) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(3.2 * columns, 2.6 * lines), squeeze=False
    )
    for axis, run in zip(axes.flat, runs, strict=False):
        _panel(axis, run)
    for axis in list(axes.flat)[len(runs) :]:
        axis.axis("off")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(handles.values(), handles, loc="lower center", ncols=4, fontsize=7)
    figure.tight_layout(rect=(0, 0.25 / lines, 1, 1))
    figure.savefig(path)
    pyplot.close(figure)


def _panel(axis: Any, run: Mapping[str, Any]) -> None:
    us = run["times"]["latency_us"]
    for number, name in enumerate(_PEERS):
        if name in us:
            axis.axhline(
                us[name], color=f"C{number + 2}", linewidth=0.9, linestyle="--", label=name
            )
    for number, tool in enumerate(("felix", "stock")):
        points = curve(run, tool)
        if points:
            axis.plot(*zip(*points, strict=True), marker="o", color=f"C{number}", label=tool)
    axis.set(title=label(run), xlabel="seconds of tuning", ylabel="us", yscale="log")
    axis.title.set_fontsize(8)
