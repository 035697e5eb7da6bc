"""Sentences that state figures, and small tables, of results files: all numbers are computed here.

A statement is of one results file; `benchmarks/report.py` puts it into a page.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import (
    fusion,
    search_cost,
    structure,
)
from benchmarks.networks import results as networks
from benchmarks.support import common, corpus_table

Data = Mapping[str, Any]


def features(data: Data) -> str:
    """How much cheaper formulas are than TVM's extraction."""
    entries = data["entries"]
    formulas_us = [entry["large_batch_us"] for entry in entries]
    ratios = [entry["large_batch_ratio"] for entry in entries]
    return (
        f"In batches of {data['batch']:,} the formulas take {_range(formulas_us)} us a candidate "
        f"where TVM's extraction takes {_range([entry['tvm_us'] for entry in entries])} us: "
        f"{_range(ratios)} times as long."
    )


def structure_check(data: Data) -> str:
    """How many schedules were compared with TVM's, and what differed."""
    instances = data["found"]
    total = {
        key: sum(instance[key] for instance in instances)
        for key in ("sketches", "checked", "mismatched", "rejected")
    }
    return (
        f"{len(instances)} instances, {total['sketches']:,} sketches, {total['checked']:,} "
        f"schedules compared: {total['mismatched']} differ, TVM rejects {total['rejected']}."
    )


def search_costs(data: Data) -> str:
    """How long opening and proposing takes, cold and warm."""
    rows = data["summary"]
    colds, warms = ([row[f"{cache}_s"] for row in rows] for cache in search_cost.CACHES)
    opened = [row["cold_open_s"] / row["cold_s"] for row in rows]
    return (
        f"A search of {data['candidates']} candidates takes {_range(colds)} CPU seconds with an "
        f"empty formula cache, {_range(warms)} with a filled one. Opening the sketches is "
        f"{min(opened):.0%} to {max(opened):.0%} of the former."
    )


def fusion_ratios(data: Data) -> str:
    """How much faster planned groups are, over the networks."""
    means = {way: fusion.geometric_mean(data, way) for way in ("fuseops", "rules")}
    ratios = [fusion.ratio(entry, "fuseops") for entry in data["entries"]]
    return (
        f"{data['trials']} trials a task. What is compared takes {_range(ratios)} times as long "
        f"with FuseOps' groups as with planned ones, {means['fuseops']:.2f} times on geometric "
        f"mean; with the fixed rules' groups {means['rules']:.2f} times."
    )


def cpu_tuning(data: Data) -> str:
    """Felix against stock MetaSchedule, wall time and latency; and against PyTorch."""
    rows = [row for row in data["summary"] if row["tool"] == "stock"]
    lines = [_against_torch(row for row in data["summary"] if row["tool"] == "torch")]
    if rows:
        lines.insert(0, _against_stock(rows, data["settings"]["trials"]))
    return " ".join(filter(None, lines))


def _against_stock(rows: Sequence[Data], trials: int) -> str:
    seeds = sorted({row["n_seeds"] for row in rows})
    medians = f"medians of {' or '.join(map(str, seeds))} seeds"
    faster = [row["workload"] for row in rows if row["cold_ratio"] >= 1]
    slower = [row["workload"] for row in rows if row["cold_ratio"] < 1]
    behind = f" Felix's winner is slower on {_listed(slower)}." if slower else ""
    return (
        f"{trials} trials of {len(rows)} workloads, "
        f"{'one seed' if seeds == [1] else medians}: "
        f"stock takes {_range([row['wall_ratio'] for row in rows])} times Felix's wall time. The "
        f"cold latency of its winner is {_range([row['cold_ratio'] for row in rows])} times that "
        f"of Felix's, which is faster on {_listed(faster)}.{behind}"
    )


def _against_torch(torch: Iterable[Data]) -> str:
    """PyTorch's latencies over Felix's, if it was timed."""
    rows = list(torch)
    if not rows:
        return ""
    cold, warm = ([row[f"{name}_ratio"] for row in rows] for name in ("cold", "warm"))
    return (
        f"The latency of PyTorch is {statistics.geometric_mean(cold):.2f} times Felix's in the "
        f"geometric mean of {len(rows)} workloads ({_range(cold)}), with warm caches "
        f"{statistics.geometric_mean(warm):.2f} times ({_range(warm)})."
    )


def measure_throughput(data: Data) -> str:
    """Candidates a second over those of MetaSchedule's builder and runner."""
    ratios = [f"{row['ratio']:.3g} on {name}" for name, row in data["summary"].items()]
    return (
        f"{data['candidates']} random schedules of each workload. Candidates a second of Felix's "
        f"pool over those of MetaSchedule's builder and runner: {_listed(ratios)}."
    )


def cluster_scaling(data: Data) -> str:
    """What Ray adds to a candidate, and how far throughput grows with devices."""
    added = [row["added"] for row in data["overhead"]["transport"]]
    linear = [row for row in data["throughput"] if row["devices"] <= 4]
    most = max(data["throughput"], key=lambda row: row["rate"])
    return (
        f"A node behind Ray adds {_range(added)} ms to a candidate, by the size of its binary. "
        f"With 1, 2 and 4 devices the rate is {min(row['linear'] for row in linear):.2f} of "
        f"linear or more. One tuner's pool measures at most {_number(most['rate'])} candidates a "
        f"second, with {most['devices']} devices."
    )


def multi_gpu(data: Data) -> str:
    """How much faster a job is on several devices."""
    *_, several = (row for row in data["summary"] if not row.get("cluster"))
    line = (
        f"On {several['devices']} devices ({data['device']}) a job of {len(data['workloads'])} "
        f"tasks is {several['speed_up']:.2f} times as fast as on one."
    )
    for row in data["summary"]:
        if row.get("cluster"):
            line += f" Over Ray on the same machine it is {row['speed_up']:.2f} times as fast."
    return line


def template_fuzz(data: Data) -> str:
    """What random settings of generated kernels came to."""
    totals = dict(data["totals"])
    right = totals.pop("ok", 0)
    others = ", ".join(f"{count} {name}" for name, count in sorted(totals.items()))
    rest = f"of the others: {others}" if others else "none does not"
    return (
        f"{right:,} of {data['settings']:,} settings of {data['workloads']} workloads compute "
        f"what the reference does; {rest}."
    )


def service_polling(data: Data) -> str:
    """What polling clients cost a tuner on the same machine."""
    alone, watched = (
        statistics.median(run["s_per_trial"] for run in data["runs"][kind])
        for kind in ("alone", "watched")
    )
    return (
        f"{data['clients']} clients ask for a running job and its new events every "
        f"{data['every_s']:.0f} s, on the machine that tunes it ({data['workload']}, "
        f"{data['trials']} trials, {len(data['runs']['alone'])} pairs of jobs with and without "
        f"clients). A trial takes {alone:.3f} s alone and {watched:.3f} s watched in the medians; "
        f"over pairs, watched jobs are slower by {data['slower']:.1%} ± "
        f"{data['standard_error']:.1%} (standard error). API and clients use "
        f"{data['cpu_share']:.1%} of the cores."
    )


def service_hostile(data: Data) -> str:
    """What hostile jobs cost a normal key's job."""
    alone, among = data["alone"], data["among"]
    return (
        f"{data['hostile']} hostile jobs of {data['keys']} keys wait for one tuner. A normal "
        f"key's job ({data['workload']}, {data['trials']} trials) starts after "
        f"{among['start_s']:.1f} s and has the tuner for {among['own_s']:.1f} s, alone for "
        f"{alone['own_s']:.1f} s: {data['slower']:.2f} times. A cancelled job frees its tuner "
        f"after {statistics.median(data['freed_s']):.1f} s in the median and "
        f"{max(data['freed_s']):.1f} s at most, of {len(data['freed_s'])}."
    )


def service_start(data: Data) -> str:
    """How soon the first job of a service has a point."""
    return (
        f"`felix serve` answers {data['ready_s']:.1f} s after its start. The first job "
        f"({data['workload']}), submitted then, has its first point "
        f"{data['first_point_s']:.1f} s later."
    )


def service_answers(data: Data) -> str:
    """Response times of the API and the dashboard."""
    rows = [
        [name, row["median_ms"], row["p95_ms"], row["server_cpu_ms"], row["bytes"]]
        for name, row in data["answers"].items()
    ]
    return (
        f"{data['database']}, {data['jobs']} jobs with {data['trials']:,} trials, "
        "one request at a time:\n\n"
        + common.table(["response", "median ms", "95 % ms", "server CPU ms", "bytes"], rows)
    )


def structure_table(data: Data) -> str:
    """Counts by operator and target."""
    head = ["operator", "target", "instances", "sketches", "compared", "rejected by TVM"]
    return common.table([*head, "differ", "loose"], structure.summarize(data["found"]))


#: A results file's field `benchmark` -> its statement.
STATEMENTS: Mapping[str, Callable[[Data], str]] = {
    "cluster_scaling": cluster_scaling,
    "corpus": corpus_table.statement,
    "corpus_tuned": corpus_table.tuned_statement,
    "formula_time": corpus_table.time_statement,
    "cpu_tuning": cpu_tuning,
    "features": features,
    "fusion": fusion_ratios,
    "measure_throughput": measure_throughput,
    "multi_gpu": multi_gpu,
    "networks": networks.statement,
    "search_cost": search_costs,
    "service-hostile": service_hostile,
    "service-polling": service_polling,
    "service-start": service_start,
    "structure": structure_check,
    "template_fuzz": template_fuzz,
}


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{_number(low)} to {_number(high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
