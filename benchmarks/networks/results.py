"""What results files of networks say: of `compare`, `repeated` and `branches`; a picture.

The best peer is the fastest of PyTorch eager, eager in a CUDA graph, inductor in its modes and
ONNX Runtime. Ratios are another's latency over Felix's at the last number of seconds. When Felix
was ahead of the best peer counts everything since its first call: import, tuning, comparing,
building.
"""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.support import common, ratios

_PEERS = ("eager", "eager-graph", "inductor", "reduce-overhead", "max-autotune", "onnxruntime")
Run = Mapping[str, Any]


def label(case: Run) -> str:
    """A case in words: its network, batch and element type."""
    small = "-small" if case["small"] else ""
    batch = f"-b{case['batch']}" if "batch" in case and not isinstance(case["batch"], dict) else ""
    way = f"-{case['fusion']}" if case.get("fusion") else ""
    return f"{case['name']}{small}{batch}-{case['dtype']}{way}"


def point(tool: str, seconds: float) -> str:
    """A tool after so many seconds, as a contender."""
    return f"{tool} {seconds:g} s"


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row for each case of which Felix and a peer were timed."""
    made = []
    for run in runs:
        us, seconds = run["times"]["latency_us"], run["seconds"]
        felix, stock = curve(run, "felix"), curve(run, "stock")
        peers = {name: us[name] for name in _PEERS if name in us}
        if point("felix", seconds[-1]) not in us or not peers:
            continue
        felix_us, best = us[point("felix", seconds[-1])], min(peers, key=lambda each: peers[each])
        stock_us = dict(stock).get(seconds[-1])
        took = {each["seconds"]: each["elapsed_s"] for each in run["felix"]["points"]}
        ahead = [took[moment] for moment, latency_us in felix if latency_us < peers[best]]
        made.append(
            {
                "case": label(run),
                "dtype": run["dtype"],
                "seconds": seconds[-1],
                "felix": felix_us,
                "best": best,
                "best_us": peers[best],
                "best_ratio": peers[best] / felix_us,
                "eager_ratio": us["eager"] / felix_us if "eager" in us else None,
                "stock_ratio": stock_us / felix_us if stock_us else None,
                "ahead_s": ahead[0] if ahead else None,
            }
        )
    return made


def curve(run: Run, tool: str) -> list[tuple[float, float]]:
    """(seconds, latency in us) of a tool's points that were timed."""
    us = run["times"]["latency_us"]
    return [(moment, us[name]) for moment in run["seconds"] if (name := point(tool, moment)) in us]


def render(*results: Run) -> str:
    """Every case, and geometric means by element type."""
    every = rows([run for data in results for run in data["runs"]])
    keys = "case seconds felix best best_us best_ratio eager_ratio stock_ratio ahead_s".split()
    head = ["network", "tuning s", "Felix us", "best peer", "its us", "peer / Felix"]
    head += ["eager / Felix", "stock / Felix", "ahead after s"]
    means = []
    for dtype in dict.fromkeys(row["dtype"] for row in every):
        best = {row["case"]: row["best_ratio"] for row in every if row["dtype"] == dtype}
        ends = ratios.ends({name: [ratio] for name, ratio in best.items()})
        means.append([dtype, len(best), str(ratios.single(best)), *ends])
    tables = [
        common.table(["type", "networks", "best peer / Felix", "least", "most"], means),
        common.table(head, [[row[key] for key in keys] for row in every]),
    ]
    return "\n\n".join(tables) if every else ""


def table_of_peers(runs: Sequence[Run]) -> str:
    """The latencies of all contenders, and what could not run, for who ran it."""
    body = [
        [label(run), name, us, run["times"]["failures"].get(name, "")]
        for run in runs
        for name, us in [
            *run["times"]["latency_us"].items(),
            *dict.fromkeys(run["times"]["failures"]).items(),
        ]
    ]
    return common.table(["network", "contender", "us", "why it did not run"], body)


def render_repeated(data: Run) -> str:
    """What `felix.optimize` reuses: one row a network."""
    head = ["network", "trials", "first s", "again s", "again trials", "other batch", "tasks"]
    head += ["known", "similar", "its trials", "its s", "max error", "peak GiB"]
    body = []
    for run in data["runs"]:
        first, again, batch = run["first"], run["again"], run["batch"]
        reused = [batch[key] for key in ("batch", "tasks", "known", "similar", "trials", "wall_s")]
        called = [first["trials"], first["wall_s"], again["wall_s"], again["trials"]]
        error = max(first["max_error"], batch["max_error"])
        body.append([label(run), *called, *reused, error, run["peak_gib"]])
    return common.table(head, body)


def render_branches(data: Run) -> str:
    """Graphs with and without branches: one row a network."""
    head = ["network", "calls", "branches", "in order us", "with branches us"]
    head += ["in order / with branches", "least", "largest"]
    body: list[list[Any]] = []
    for run in data["runs"]:
        captures = run["captured"]
        if not captures:
            body.append([label(run), run["calls"], 1, *[None] * 5])
            continue
        in_order, branched = (
            statistics.median(each[key] for each in captures)
            for key in ("in_order_us", "branched_us")
        )
        each = [capture["in_order_us"] / capture["branched_us"] for capture in captures]
        times = [in_order, branched, statistics.median(each), min(each), max(each)]
        body.append([label(run), run["calls"], captures[0]["branches"], *times])
    return common.table(head, body)


def picture(data: Run, path: pathlib.Path) -> None:
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


def _panel(axis: Any, run: Run) -> None:
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
