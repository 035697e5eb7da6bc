"""What the results files of `benchmarks/service.py` say."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.support import common

Data = Mapping[str, Any]


def answers(*results: Data) -> str:
    """Response times of the API and the dashboard, by database."""
    names = results[0]["answers"]
    keys = ("median_ms", "p95_ms")
    rows = [
        [name, *(data["answers"][name][key] for data in results for key in keys)] for name in names
    ]
    heads = [f"{data['database']}{what} ms" for data in results for what in ("", ", 95 %")]
    said = f"{results[0]['jobs']} jobs with {results[0]['trials']:,} trials, one request at a time"
    return f"{said}:\n\n{common.table(['response', *heads], rows)}"


def polling(data: Data) -> str:
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


def hostile(data: Data) -> str:
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


def start(data: Data) -> str:
    """How soon the first job of a service has a point."""
    return (
        f"`felix serve` answers {data['ready_s']:.1f} s after its start. The first job "
        f"({data['workload']}), submitted then, has its first point "
        f"{data['first_point_s']:.1f} s later."
    )
