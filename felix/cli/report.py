"""The end of a run in words and as JSON.

    task               trials   best       GFLOP/s   vs unscheduled   vs PyTorch
    gemm_512x512x512       64   1.44 ms      187.4           216.4x        0.97x

Units: latencies in microseconds in JSON, scaled in tables.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from felix import version
from felix.artifact import export
from felix.cli.comparison import libraries
from felix.database import records
from felix.tuning import pacing, results

if TYPE_CHECKING:
    from rich.console import Console

#: Library -> its time, of those that a task is compared with.
Compared = Mapping[str, libraries.LibraryTime]

#: Parts of the time a person waits, in words, in order.
PARTS = {
    "start": "start-up and cost model",
    "extract": "sketches and formulas",
    "search": "search",
    "schedule": "schedules by TVM",
    "train": "fine-tuning",
    "build_wait": "waiting for builds",
    "measure": "checking and timing",
    "save": "checkpoints",
    "other": "other",
}


def duration(latency_us: float | None) -> str:
    """A latency with a unit that suits it."""
    if latency_us is None:
        return "-"
    for limit, scale, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms")):
        if latency_us < limit:
            return f"{latency_us / scale:.2f} {unit}"
    return f"{latency_us / 1e6:.2f} s"


def ratio(value: float | None) -> str:
    """A speed-up."""
    return "-" if value is None else f"{value:.2f}x"


def show(
    console: Console,
    tasks: Sequence[results.TuneResult],
    compared: Sequence[Compared],
    breakdown: pacing.Breakdown,
) -> None:
    """Print the table of tasks and where the time went."""
    from rich import box, table

    rows = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rows.add_column("task", overflow="fold")
    columns = [name for name in libraries.NAMES if any(name in times for times in compared)]
    baseline = results.baseline_name(tasks[0].task).removesuffix(" program")  # of one target
    for name in ("trials", "failed", "best", "GFLOP/s", f"vs {baseline}"):
        rows.add_column(name, justify="right")
    for name in columns:
        rows.add_column(f"vs {libraries.NAMES[name]}", justify="right")
    for result, times in zip(tasks, compared, strict=True):
        rows.add_row(*_cells(result, times, columns))
    console.print(rows)
    console.print(_time_line(breakdown), soft_wrap=True, highlight=False)
    for result in tasks:
        if result.best_or_none is None:
            console.print(result.failure(), soft_wrap=True, highlight=False)
        for note in result.notes():
            console.print(note, soft_wrap=True, highlight=False)
    for line in dict.fromkeys(_notes(tasks, compared)):
        console.print(line, soft_wrap=True, highlight=False)


def _notes(tasks: Sequence[results.TuneResult], compared: Sequence[Compared]) -> Iterator[str]:
    """How each library was timed, or why not."""
    for library, label in libraries.NAMES.items():
        for result, times in zip(tasks, compared, strict=True):
            if library in times and result.best_or_none is not None:
                yield f"{label}: {times[library].note}"


def _cells(result: results.TuneResult, times: Compared, columns: Sequence[str]) -> list[str]:
    failed = str(sum(trial.state is records.State.FAILED for trial in result.records))
    head = [result.task.name, str(len(result.records)), failed]
    if result.best_or_none is None:
        return [*head, "none", "-", "-", *("-" for _ in columns)]
    rate = f"{result.gflops:.1f}"
    best = duration(result.best.latency_us)
    speedups = [ratio(_speedup(result, times.get(library))) for library in columns]
    return [*head, best, rate, ratio(result.speedup), *speedups]


def _speedup(result: results.TuneResult, library: libraries.LibraryTime | None) -> float | None:
    """The library's over the best latency."""
    if library is None or library.latency_us is None or result.best_or_none is None:
        return None
    return library.latency_us / result.best.latency_us


def _time_line(spent: pacing.Breakdown) -> str:
    parts = {label: getattr(spent, f"{part}_s") for part, label in PARTS.items()}
    spans = [f"{label} {seconds:.1f} s" for label, seconds in parts.items() if seconds >= 0.05]
    work = f"workers built for {spent.build_work_s:.1f} s and ran for {spent.run_work_s:.1f} s"
    return f"time {spent.total_s:.1f} s: {', '.join(spans)} ({work})"


def to_json(
    network: results.NetworkResult,
    compared: Sequence[Compared],
    artifacts: Sequence[pathlib.Path | None],
) -> dict[str, Any]:
    """The result for programs; see `docs` for the fields."""
    spent = network.breakdown
    return {
        "felix": version.__version__,
        "command": "tune",
        "reason": network.reason,
        "trials": sum(len(result.records) for result in network.results),
        "latency_us": network.latency_us,
        "elapsed_s": spent.total_s,
        "time": {**dataclasses.asdict(spent), "other_s": spent.other_s},
        "curve": [list(point) for point in network.curve],
        "tasks": [
            _task_json(*parts) for parts in zip(network.results, compared, artifacts, strict=True)
        ],
    }


def _task_json(
    result: results.TuneResult, times: Compared, folder: pathlib.Path | None
) -> dict[str, Any]:
    task, best = result.task, result.best_or_none
    return {
        "name": task.name,
        "key": task.key,
        "target": str(task.target.kind.name),
        "weight": task.weight,
        "flops": task.flops,
        "min_bytes": task.min_bytes,
        "trials": len(result.records),
        "failed": sum(trial.state is records.State.FAILED for trial in result.records),
        "best": None
        if best is None
        else {"spread": best.measurement.spread, **export.candidate(task, best)},
        "ships": "unscheduled" if result.ships_unscheduled else "tuned",
        "tuned_us": None if result.tuned_or_none is None else result.tuned_or_none.latency_us,
        "unscheduled_us": result.unscheduled_us,
        "speedup": None if best is None else result.speedup,
        **_compared_json(result, times),
        "curve": [list(point) for point in result.curve],
        "artifact": None if folder is None else str(folder),
        "error": result.failure() if best is None else None,
        "skipped": result.skipped,
    }


def _compared_json(result: results.TuneResult, times: Compared) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for library in libraries.NAMES:
        time = times.get(library)
        fields[f"{library}_us"] = None if time is None else time.latency_us
        fields[f"{library}_speedup"] = _speedup(result, time)
        fields[f"{library}_note"] = "not timed" if time is None else time.note
    return fields
