"""`felix submit`: a job for the service."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import Any

from felix import client, display, errors
from felix.cli.remote import connection, watch


def run(arguments: argparse.Namespace) -> int:
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
        shapes = dict(_shape(each) for each in arguments.shape or ()) or None
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


def _shape(text: str) -> tuple[str, list[int]]:
    name, separator, extents = text.rpartition("=")
    try:
        shape = [int(extent) for extent in extents.split("x")]
    except ValueError:
        shape = []
    if not separator or not name or not shape:
        raise errors.WorkloadError(f"--shape is NAME=1x3x224x224, got {text!r}")
    return name, shape
