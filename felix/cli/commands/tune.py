"""`felix tune`: tune, export, report."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from felix.artifact import export
from felix.cli import main, numpy_baseline, progress, report
from felix.cli.commands import inputs
from felix.tuning import options, pacing, results

if TYPE_CHECKING:
    from rich.console import Console

#: Trials a workload when neither trials nor seconds are given.
DEFAULT_TRIALS = 64


def run(chosen: argparse.Namespace) -> int:
    """Tune the workloads; the exit code."""
    tasks = [inputs.task(text, chosen.target) for text in chosen.workload]
    out = export.check_writable(chosen.out)
    found = _tune(tasks, chosen, out)
    artifacts = _export(found, out)
    numpy = [_numpy(result, chosen.no_numpy) for result in found.results]
    human = sys.stderr if chosen.json else sys.stdout
    if not chosen.quiet or not chosen.json:
        _show(_console(human), found, numpy, artifacts)
    if chosen.json:
        content = {**report.to_json(found, numpy, artifacts), "out": str(out)}
        print(json.dumps(content, indent=1))
    if found.reason == "interrupted":
        return main.INTERRUPTED
    for result in found.results:
        result.best  # noqa: B018  (no schedule: an error)
    return 0


def _tune(tasks: Sequence[Any], chosen: argparse.Namespace, out: pathlib.Path) -> Any:
    tune = importlib.import_module("felix.tuning.tune").tune
    trials = chosen.trials
    if trials is None and chosen.seconds is None:
        trials = DEFAULT_TRIALS * len(tasks)
    knobs = options.TuneOptions(round_size=chosen.round, patience_rounds=chosen.patience)
    with progress.reporter(quiet=chosen.quiet) as on_event, _Interrupts() as interrupts:
        return tune(
            tasks,
            trials=trials,
            seconds=chosen.seconds,
            seed=chosen.seed,
            strategy=chosen.strategy,
            model=chosen.model,
            options=dataclasses.replace(knobs, should_stop=interrupts.seen),
            out=out,
            resume=chosen.resume,
            on_event=on_event,
        )


class _Interrupts:
    """Notes SIGINT and SIGTERM while tuning, so that the run ends even if the KeyboardInterrupt is
    caught on its way, in a callback of a library for instance."""

    def __init__(self) -> None:
        self._noted = False
        self._before: dict[signal.Signals, Any] = {}

    def seen(self) -> bool:
        """Whether the run is to stop."""
        return self._noted

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, *_: Any) -> None:
        self._noted = True
        raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is pacing.Stopped:  # before there was anything to report
            raise KeyboardInterrupt


def _export(found: results.NetworkResult, out: pathlib.Path) -> list[pathlib.Path | None]:
    """Write the bundles; the folder of each task, None without a schedule."""
    one = len(found.results) == 1
    where = [out] if one else results.folders(out, found.results)
    written: list[pathlib.Path | None] = []
    for result, folder in zip(found.results, where, strict=True):
        written.append(None if result.best_or_none is None else result.export(folder))
    if not one and found.curve:
        title = f"{len(found.results)} tasks: {report.duration(found.latency_us)}"
        report.picture(found.curve, title, out / "convergence.svg")
    return written


def _numpy(result: results.TuneResult, skip: bool) -> numpy_baseline.NumpyTime:
    if skip or result.best_or_none is None:
        return numpy_baseline.NumpyTime(None, "not timed")
    return numpy_baseline.measure(result.task)


def _show(
    console: Console,
    found: results.NetworkResult,
    numpy: Sequence[numpy_baseline.NumpyTime],
    artifacts: Sequence[pathlib.Path | None],
) -> None:
    report.show(console, found.results, numpy, found.breakdown)
    if len(found.results) > 1 and found.latency_us is not None:
        console.print(f"all tasks, weighted: {report.duration(found.latency_us)}", highlight=False)
    for folder in artifacts:
        if folder is not None:
            console.print(
                f"run it: python {folder / 'run.py'}   convergence: {folder / 'convergence.svg'}",
                soft_wrap=True, highlight=False,
            )  # fmt: skip


def _console(stream: Any) -> Console:
    from rich.console import Console

    return Console(file=stream, width=None if stream.isatty() else 120)
