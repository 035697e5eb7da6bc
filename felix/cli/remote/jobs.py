"""Jobs of the service: `felix submit`, `ls`, `get`, `pause | resume | cancel | stop | retry`, and
`watch`: a job's progress in the terminal until it has ended.

A watching terminal gets a bar, the curve of the best so far and a line for each notable event;
anything else gets the lines only. Ending the watch does nothing to the job.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from felix import client, display, errors
from felix.cli import report, values
from felix.cli.remote import connection

if TYPE_CHECKING:
    from rich import progress


def submit(arguments: argparse.Namespace) -> int:
    """Submit, and watch with `--watch`; the exit code."""
    with connection.connect(arguments) as service:
        job = _submit(service, arguments)
        if arguments.json and not arguments.watch:
            print(json.dumps(dataclasses.asdict(job), default=str, indent=1))
        else:
            print(_line(job), flush=True)
        return follow(service, job.id, arguments.json) if arguments.watch else 0


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
        return service.submit_file(
            path,
            shapes=values.shapes(arguments.shape),
            values=values.values(arguments.value),
            network=None if arguments.network else False,
            pytorch=arguments.pytorch,
            **settings,
        )
    if arguments.pytorch:
        raise errors.WorkloadError("--pytorch is for the network of an ONNX file; leave it out")
    from felix.workloads import catalogue  # loads TVM

    name, params = catalogue.parse_params(text)
    return service.submit(name, params, **settings)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    as_named = ("target", "trials", "seconds", "seed", "strategy", "name", "priority")
    settings = connection.given(arguments, (*as_named, "idempotency_key"))
    sizes = {"round_size": arguments.round, "patience_rounds": arguments.patience}
    others = {
        "tags": arguments.tag,
        "reuse": None if arguments.reuse else False,
        "allow_tf32": True if arguments.allow_tf32 else None,
        "options": {name: value for name, value in sizes.items() if value is not None} or None,
    }
    return settings | {name: value for name, value in others.items() if value is not None}


def ls(arguments: argparse.Namespace) -> int:
    """List jobs; the exit code."""
    filters = {"state": arguments.state, "tag": arguments.tag, "q": arguments.q}
    set_filters = {name: value for name, value in filters.items() if value}
    with connection.connect(arguments) as service:
        jobs = list(service.jobs(limit=arguments.limit, mine=arguments.mine, **set_filters))
    columns = ("job", "name", "state", "target", "trials", "best", "speed-up", "age", "tags")
    numbers = frozenset({"job", "trials", "best", "speed-up", "age"})
    connection.show(arguments, jobs, columns, _cells, numbers)
    return 0


def _cells(job: client.Job) -> tuple[str, ...]:
    return (
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


_BLOCKS = "▁▂▃▄▅▆▇█"

#: Columns of the curve that is drawn.
WIDTH = 32

Show = Callable[[client.Event], None]


def watch(arguments: argparse.Namespace) -> int:
    """Watch; the exit code."""
    with connection.connect(arguments) as service:
        return follow(service, arguments.job, arguments.json)


def follow(service: client.Client, job_id: int, as_json: bool) -> int:
    """Show events until the job has ended: 0 if it succeeded, else 1."""
    job = service.job(job_id)
    if (job.estimate or {}).get("waits_for"):
        waits_for = display.printable((job.estimate or {})["waits_for"])
        print(f"job {job_id} waits for {waits_for}", file=sys.stderr)
    seq = job.last_seq
    with _display(service, job) as show:
        for event in service.events(job_id, seq):
            show(event)
            seq = event.seq
    job = service.job(job_id, seq)
    if as_json:
        print(json.dumps(dataclasses.asdict(job), default=str, indent=1))
    else:
        print(summary(job))
    return 0 if job.state == "succeeded" else 1


def summary(job: client.Job) -> str:
    """The job in one line."""
    trials = f"{job.n_trials} trials in {job.elapsed_s:.0f} s"
    if job.best_us is None:
        result = "no latency"
    else:
        result = f"best {report.duration(job.best_us)} ({job.gflops:.1f} GFLOP/s)"
        if job.speedup is not None:
            result += f", {report.ratio(job.speedup)} of unscheduled"
    if job.n_unscheduled:
        n, of = job.n_unscheduled, job.n_tasks
        which = "the unscheduled program was" if of == 1 else f"{n} of {of} tasks' were"
        result += f" ({which} faster: it is what ships)"
    if job.reused_from is not None:
        trials = f"answered by job {job.reused_from}"
    why = "" if job.message is None else f": {display.printable(job.message)}"
    then = f"; get it: felix get {job.id}" if job.state == "succeeded" else ""
    return f"job {job.id} {job.state}, {trials}, {result}{why}{then}"


def line(event: client.Event) -> str | None:
    """An event in words; None for those that need none."""
    payload, time = event.payload, event.at.astimezone().strftime("%H:%M:%S")
    text: str | None = None
    match event.type:
        case "state":
            text = f"{event.to_state}"
            reason = payload.get("message") or payload.get("reason")
            text += f" ({reason})" if reason else ""
        case "started":
            text = f"tuning begins: {payload.get('model')}"
        case "baseline" if payload.get("latency_us") is not None:
            text = f"task {payload['task']}: unscheduled {report.duration(payload['latency_us'])}"
        case "trial" if payload.get("is_best"):
            best = report.duration(payload.get("best_us"))
            text = f"task {payload['task']}: {best} in trial {payload['trial']}"
        case "chosen" if payload.get("ships_unscheduled"):
            fast = report.duration(payload.get("unscheduled_us"))
            why = "was faster" if payload.get("tuned_us") is not None else "alone ran correctly"
            text = f"task {payload['task']}: the unscheduled program {why} ({fast}): it ships"
        case "reused":
            jobs = ", ".join(str(number) for number in payload.get("jobs", ()))
            text = f"takes what was measured by job {jobs}"
        case "network" if payload.get("failure"):
            text = f"the network could not be built: {payload['failure']}"
        case "network" if payload.get("call_us") is None:
            text = "the network is built; its run.py checks and times it where the device is"
        case "network":
            text = f"a call of the network: {report.duration(payload.get('call_us'))}"
        case "artifact":
            text = f"artifact {payload.get('name')}"
        case "warning":
            text = f"warning: {payload.get('message')}"
    return None if text is None else f"{time} {display.printable(text)}"


def sparkline(values: Sequence[float]) -> str:
    """Values as blocks, the largest highest; at most `WIDTH`, evenly chosen, the last included."""
    if not values:
        return ""
    n = min(WIDTH, len(values))
    step = (len(values) - 1) / max(1, n - 1)
    picked = [values[round(index * step)] for index in range(n)]
    low, high = min(picked), max(picked)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in picked)


@contextlib.contextmanager
def _display(service: client.Client, job: client.Job) -> Iterator[Show]:
    if not sys.stderr.isatty():
        yield _print
        return
    from rich import console, progress

    bar = progress.Progress(
        progress.TextColumn("job {task.fields[job]} {task.description}", markup=False),
        progress.BarColumn(),
        progress.TextColumn("{task.completed:.0f}{task.fields[of]}", markup=False),
        progress.TextColumn("{task.fields[best]} {task.fields[curve]}", markup=False),
        progress.TimeElapsedColumn(),
        console=console.Console(file=sys.stderr),
        refresh_per_second=2,
    )
    curve = [point.best_us for point in service.curve(job.id).points]
    with bar:
        number = bar.add_task(
            job.state,
            total=job.trials,
            completed=job.n_trials,
            job=str(job.id),
            of="" if job.trials is None else f"/{job.trials}",
            best=report.duration(job.best_us),
            curve=sparkline(curve),
        )
        yield lambda event: _advance(bar, number, curve, event)


def _print(event: client.Event) -> None:
    text = line(event)
    if text is not None:
        print(f"felix: {text}", file=sys.stderr, flush=True)


def _advance(
    bar: progress.Progress, number: progress.TaskID, curve: list[float], event: client.Event
) -> None:
    payload: dict[str, Any] = event.payload
    if event.type == "state":
        bar.update(number, description=str(event.to_state))
    elif event.type == "trial":
        if payload.get("curve_us") is not None:
            curve.append(payload["curve_us"])
            best = report.duration(payload["curve_us"])
            bar.update(number, best=best, curve=sparkline(curve))
        bar.update(number, completed=payload["trial"])
    text = line(event)
    if text is not None:
        bar.print(text, highlight=False, markup=False)
