"""`felix tune`: tune, export, report."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import TextIO

from felix import errors
from felix.artifact import convergence, export
from felix.cli import interrupts, measuring, progress, report
from felix.cli.commands import inputs
from felix.cli.commands import network as network_command
from felix.cli.comparison import libraries
from felix.task import Task
from felix.tuning import results

#: Trials a workload when neither trials nor seconds are given.
DEFAULT_TRIALS = 64


def run(arguments: argparse.Namespace) -> int:
    """Tune the workloads, the network or what is queued; the exit code."""
    is_network = network_command.is_network(arguments.workload)
    _check_elsewhere(arguments, is_network)
    if arguments.devices is None:
        arguments.devices = (0,)
    if arguments.queued:
        return network_command.run_queued(arguments)
    if is_network:
        return network_command.run(arguments)
    tasks = [inputs.task(text, arguments.target) for text in arguments.workload]
    if arguments.allow_tf32:
        tasks = [task.where_tf32_matters() for task in tasks]
    out = export.check_writable(arguments.out)
    network = _tune(tasks, arguments, out)
    artifacts = _export(network, out)
    compared = _compared(network, arguments)
    human = sys.stderr if arguments.json else sys.stdout
    if not arguments.quiet or not arguments.json:
        _show(human, network, compared, artifacts)
    if arguments.json:
        content = {**report.to_json(network, compared, artifacts), "out": str(out)}
        print(json.dumps(content, indent=1))
    if network.reason == "interrupted":
        return interrupts.EXIT_CODE
    if len(network.skipped) == len(network.results):
        raise errors.TuningError(network.results[0].failure())
    for result in network.results:
        if result.skipped is None:
            result.best  # noqa: B018  (no schedule: an error)
    return 0


def _check_elsewhere(arguments: argparse.Namespace, is_network: bool) -> None:
    """Refuse what cannot be measured on other machines."""
    given = [
        option
        for option, value in (("--cluster", arguments.cluster), ("--tracker", arguments.tracker))
        if value is not None
    ]
    if len(given) > 1:
        raise errors.TuningError("give --cluster or --tracker, not both")
    if arguments.cluster is not None and arguments.devices is not None:
        raise errors.TuningError("--devices is for this machine's GPUs: --cluster uses all it has")
    if given and arguments.queued:
        raise errors.TuningError(f"{given[0]} is not for --queued, which tunes on this machine")
    if arguments.database is not None and arguments.queued:
        raise errors.TuningError("--database is for workloads and networks, not for --queued")
    if arguments.tracker is not None and is_network:
        raise errors.TuningError("--tracker is for workloads: boards run one program at a time")
    if arguments.cluster is not None:
        measuring.require_ray(arguments.cluster)


def _tune(
    tasks: Sequence[Task], arguments: argparse.Namespace, out: pathlib.Path
) -> results.NetworkResult:
    from felix.tuning import tune

    trials = arguments.trials
    if trials is None and arguments.seconds is None:
        trials = DEFAULT_TRIALS * len(tasks)
    pool = measuring.pool_of_boards(arguments) or measuring.pool_of_cluster(arguments.cluster)
    first = None
    if arguments.database is not None:
        from felix.database import databases

        first = databases.Database(arguments.database).schedules
    with progress.tuning(arguments, pool=pool, first_schedules=first) as (chosen, on_event):
        return tune.tune(
            tasks,
            trials=trials,
            seconds=arguments.seconds,
            seed=arguments.seed,
            strategy=arguments.strategy,
            model=arguments.model,
            options=chosen,
            out=out,
            resume=arguments.resume,
            on_event=on_event,
        )


def _export(network: results.NetworkResult, out: pathlib.Path) -> list[pathlib.Path | None]:
    """Write the bundles; the folder of each task, None without a schedule."""
    one = len(network.results) == 1
    folders = [out] if one else results.folders(out, network.results)
    written: list[pathlib.Path | None] = []
    for result, folder in zip(network.results, folders, strict=True):
        written.append(None if result.best_or_none is None else result.export(folder))
    if not one and network.curve:
        title = f"{len(network.results)} tasks: {report.duration(network.latency_us)}"
        convergence.draw(convergence.of_trials(network.curve), title, out / convergence.FILE_NAME)
    return written


def _compared(
    network: results.NetworkResult, arguments: argparse.Namespace
) -> list[report.Compared]:
    """The times of the chosen libraries for each task that has a result."""
    is_elsewhere = arguments.cluster or arguments.tracker  # where candidates ran; they run here
    chosen = () if is_elsewhere else arguments.compare
    return [
        {}
        if result.best_or_none is None
        else libraries.measure(result.task, inputs.operator(text), chosen)
        for result, text in zip(network.results, arguments.workload, strict=True)
    ]


def _show(
    stream: TextIO,
    network: results.NetworkResult,
    compared: Sequence[report.Compared],
    artifacts: Sequence[pathlib.Path | None],
) -> None:
    from rich.console import Console

    console = Console(file=stream, width=None if stream.isatty() else 120)
    report.show(console, network.results, compared, network.breakdown)
    if len(network.results) > 1 and network.latency_us is not None:
        total = report.duration(network.latency_us)
        tasks = "all tasks" if not network.skipped else "all tasks but the skipped ones"
        console.print(f"{tasks}, weighted: {total}", highlight=False)
    for folder in artifacts:
        if folder is not None:
            picture = folder / convergence.FILE_NAME
            console.print(
                f"run it: python {folder / 'run.py'}   convergence: {picture}",
                soft_wrap=True,
                highlight=False,
            )
