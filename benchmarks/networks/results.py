"""What results files of networks say: of `compare`, `repeated` and `branches`.

Ratios of `compare` are another's latency over Felix's: the median of turns, and the interval that
has it in 95 of 100 cases. The best peer is the one with the least ratio. PyTorch as it is ready at
once is the *reference*: eager in a CUDA graph, or eager on a CPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.networks import peers
from benchmarks.support import common, ratios

Run = Mapping[str, Any]
#: The reference by the kind of target.
REFERENCES = {"cuda": peers.GRAPH, "llvm": peers.EAGER}
#: A network is slower than PyTorch below this ratio to its graph, ...
_LEAST = 0.98
#: ... or if all of the interval says that it takes more than this many times as long as eager.
_MOST = 1.02


def label(case: Run) -> str:
    """A case in words: its network, batch and element type."""
    small = "-small" if case["small"] else ""
    batch = f"-b{case['batch']}" if isinstance(case.get("batch"), int) else ""
    return f"{case['name']}{small}{batch}-{case['dtype']}"


def sentence(run: Run) -> str:
    """What a case gave, for who runs it."""
    if "failure" in run:
        return f"failed: {run['failure']}"
    felix, us = run["felix"], run["latency_us"]
    said = [f"felix {us['felix']:.1f} us ({felix['runs']} runs it, after {felix['took_s']:.1f} s)"]
    for name, peer in run["peers"].items():
        known = f"{us[name]:.1f} us" if name in us else f"failed: {peer['failure']}"
        said.append(f"{name} {known}")
    return ", ".join(said)


def kind_of(run: Run) -> str:
    """The kind of a case's target."""
    return str(run["target"]).partition(" ")[0]


def best_peer(run: Run) -> str | None:
    """The fastest of what PyTorch and ONNX Runtime can do; None if none was timed."""
    own = {name: ratio["median"] for name, ratio in run["ratios"].items() if name != peers.STOCK}
    return min(own, key=lambda name: own[name], default=None)


def is_slower(run: Run) -> bool:
    """Whether Felix's side is slower than PyTorch as it is ready at once."""
    graph, eager = (run["ratios"].get(name) for name in (peers.GRAPH, peers.EAGER))
    is_below = graph is not None and graph["median"] < _LEAST
    return is_below or (eager is not None and 1.0 / eager["high"] > _MOST)


def render(*files: Run) -> str:
    """Of each kind of target: geometric means, every case, and when Felix was ahead."""
    runs = [run for data in files for run in data["runs"]]
    done = [run for run in runs if "failure" not in run and best_peer(run) is not None]
    tables = []
    for kind in dict.fromkeys(map(kind_of, done)):
        of_kind = [run for run in done if kind_of(run) == kind]
        reference = REFERENCES[kind]
        tables += [_means(of_kind, reference), _every(of_kind, reference)]
        if len({run["seconds"] for run in of_kind}) > 1:
            tables.append(_ahead(of_kind))
    failed = [
        f"- {label(run)}, {run['way']}, {run['seconds']:g} s: {run['failure']}"
        for run in runs
        if "failure" in run
    ]
    return "\n\n".join([*tables, "\n".join(failed)] if failed else tables)


def _means(runs: Sequence[Run], reference: str) -> str:
    """A row for each element type, way and number of seconds."""
    head = ["type", "way", "s", "networks", "best peer / Felix", "least", "most"]
    head += [f"{reference} / Felix", "slower", "longest took s"]
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault((run["dtype"], run["way"], run["seconds"]), []).append(run)
    body = []
    for group, of_it in groups.items():
        best = {label(run): run["ratios"][best_peer(run)]["median"] for run in of_it}
        of_reference = {
            label(run): run["ratios"][reference]["median"]
            for run in of_it
            if reference in run["ratios"]
        }
        body.append(
            [
                *group,
                len(of_it),
                str(ratios.single(best)),
                *ratios.ends({name: [ratio] for name, ratio in best.items()}),
                str(ratios.single(of_reference)) if of_reference else None,
                sum(map(is_slower, of_it)),
                max(run["felix"]["took_s"] for run in of_it),
            ]
        )
    return common.table(head, body)


def _every(runs: Sequence[Run], reference: str) -> str:
    """A row for each case; columns that would be empty, or the same for all, are left out."""
    head = ["network", "way", "s", "took s", "runs", "Felix us", "best peer", "its us"]
    head += ["peer / Felix", f"{reference} / Felix", "peer ready s", "again s", "stock / Felix"]
    body = []
    for run in runs:
        best, felix = str(best_peer(run)), run["felix"]
        row = [label(run), run["way"], run["seconds"], felix["took_s"], felix["runs"]]
        row += [run["latency_us"]["felix"], best, run["latency_us"][best]]
        row += [_with_interval(run, best), _median(run, reference)]
        row += [run["peers"][best]["ready_s"], felix["again_s"], _median(run, peers.STOCK)]
        body.append(row)
    is_best = {str(best_peer(run)) for run in runs} == {reference}
    said_already = {f"{reference} / Felix"} if is_best else set()
    kept = [
        number
        for number, name in enumerate(head)
        if name not in said_already and any(row[number] is not None for row in body)
    ]
    return common.table(
        [head[number] for number in kept], [[row[number] for number in kept] for row in body]
    )


def _ahead(runs: Sequence[Run]) -> str:
    """After how many seconds since a call each network was clearly faster than the best peer."""
    least_s: dict[str, float | None] = {}
    for run in runs:
        known_s = least_s.setdefault(label(run), None)
        took_s = run["felix"]["took_s"]
        if run["ratios"][best_peer(run)]["low"] > 1.0:
            least_s[label(run)] = took_s if known_s is None else min(known_s, took_s)
    return common.table(["network", "ahead after s"], list(least_s.items()))


def _with_interval(run: Run, name: str) -> str:
    ratio = run["ratios"][name]
    return str(ratios.Mean(ratio["median"], ratio["low"], ratio["high"]))


def _median(run: Run, name: str) -> float | None:
    return run["ratios"][name]["median"] if name in run["ratios"] else None


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
