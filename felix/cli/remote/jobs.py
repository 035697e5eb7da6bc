"""Jobs of the service: `felix submit`, `ls`, `get`, and `pause | resume | cancel | stop |
retry`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from felix import client, display, errors
from felix.cli import report, values
from felix.cli.remote import connection, watch


def submit(arguments: argparse.Namespace) -> int:
    """Submit, and watch with `--watch`; the exit code."""
    with connection.connect(arguments) as service:
        job = _submit(service, arguments)
        if arguments.json and not arguments.watch:
            print(json.dumps(dataclasses.asdict(job), default=str, indent=1))
        else:
            print(_line(job), flush=True)
        return watch.follow(service, job.id, arguments.json) if arguments.watch else 0


def _line(job: client.Job) -> str:
    """The job, what it reuses or when it begins."""
    line = f"job {job.id}: {job.name} for {job.target}, {job.state}"
    if job.reused_from is not None:
        return f"{line}: job {job.reused_from} has tuned it; get it: felix get {job.id}"
    if job.n_trials:
        line += f", begins with {job.n_trials} trials of earlier jobs"
    estimate = job.estimate or {}
    if estimate.get("waits_for"):
        line += f", waits for {display.printable(estimate['waits_for'])}"
    elif estimate.get("begins_in_s") is not None:
        line += f", number {estimate['position']} in the queue"
        line += f", begins in about {estimate['begins_in_s']:.0f} s"
    if estimate.get("duration_s") is not None:
        line += f", takes about {estimate['duration_s']:.0f} s"
    return line


def _submit(service: client.Client, arguments: argparse.Namespace) -> client.Job:
    text, settings = arguments.workload, _settings(arguments)
    path = pathlib.Path(text)
    is_file = path.suffix in (".onnx", ".pt2", ".json") or ("/" in text and ":" not in text)
    if is_file:
        shapes = values.shapes(arguments.shape)
        network = None if arguments.network else False
        return service.submit_file(
            path, shapes=shapes, network=network, pytorch=arguments.pytorch, **settings
        )
    if arguments.pytorch:
        raise errors.WorkloadError("--pytorch is for the network of an ONNX file; leave it out")
    from felix.workloads import catalogue  # loads TVM

    name, params = catalogue.parse_params(text)
    return service.submit(name, params, **settings)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    options = {"round_size": arguments.round, "patience_rounds": arguments.patience}
    settings: dict[str, Any] = {
        "target": arguments.target,
        "trials": arguments.trials,
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "strategy": arguments.strategy,
        "name": arguments.name,
        "tags": arguments.tag,
        "priority": arguments.priority,
        "idempotency_key": arguments.idempotency_key,
        "reuse": None if arguments.reuse else False,
        "allow_tf32": True if arguments.allow_tf32 else None,
        "options": {name: value for name, value in options.items() if value is not None} or None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def ls(arguments: argparse.Namespace) -> int:
    """List jobs; the exit code."""
    filters = {"state": arguments.state, "tag": arguments.tag, "q": arguments.q}
    set_filters = {name: value for name, value in filters.items() if value}
    with connection.connect(arguments) as service:
        jobs = list(service.jobs(limit=arguments.limit, mine=arguments.mine, **set_filters))
    if arguments.json:
        connection.print_json(jobs)
    else:
        _show_jobs(jobs)
    return 0


def _show_jobs(jobs: Sequence[client.Job]) -> None:
    numbers = ("job", "trials", "best", "speed-up", "age")
    columns = ("job", "name", "state", "target", "trials", "best", "speed-up", "age", "tags")
    rows = [
        (
            str(job.id),
            display.printable(job.name),
            job.state,
            display.printable(job.target),
            f"{job.n_trials}{'' if job.trials is None else f'/{job.trials}'}",
            report.duration(job.best_us),
            report.ratio(job.speedup),
            connection.age(job.created_at),
            " ".join(map(display.printable, job.tags)),
        )
        for job in jobs
    ]
    connection.print_table(columns, rows, right=frozenset(numbers))


def get(arguments: argparse.Namespace) -> int:
    """Download an artifact, or list them; the exit code."""
    with connection.connect(arguments) as service:
        if arguments.list:
            artifacts = service.artifacts(arguments.job)
            if arguments.json:
                connection.print_json(artifacts)
            for artifact in [] if arguments.json else artifacts:
                name = display.printable(artifact.name)
                print(f"{name}  {artifact.size_bytes} bytes  sha256 {artifact.sha256}")
            return 0
        path = service.download(
            arguments.job, arguments.out, arguments.name, network=arguments.network
        )
    print(json.dumps({"path": str(path)}) if arguments.json else str(path))
    return 0


def control(arguments: argparse.Namespace) -> int:
    """Apply the verb to all jobs, then raise the first refusal; the exit code."""
    refused: list[errors.RemoteError] = []
    done: list[client.Job] = []
    with connection.connect(arguments) as service:
        verb = getattr(service, arguments.command)
        for number in arguments.job:
            try:
                done.append(verb(number))
            except errors.RemoteError as error:
                refused.append(error)
    if arguments.json:
        connection.print_json(done)
    else:
        for job in done:
            print(f"job {job.id}: {job.state}")
    if refused:
        raise refused[0]
    return 0
