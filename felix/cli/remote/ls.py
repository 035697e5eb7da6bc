"""`felix ls`: jobs of the service."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from felix import client, display
from felix.cli import report
from felix.cli.remote import connection


def run(arguments: argparse.Namespace) -> int:
    """List jobs; the exit code."""
    filters = {"state": arguments.state, "tag": arguments.tag, "q": arguments.q}
    set_filters = {name: value for name, value in filters.items() if value}
    with connection.connect(arguments) as service:
        jobs = list(service.jobs(limit=arguments.limit, mine=arguments.mine, **set_filters))
    if arguments.json:
        print(json.dumps([dataclasses.asdict(job) for job in jobs], default=str, indent=1))
    else:
        _show(jobs)
    return 0


def _show(jobs: list[client.Job]) -> None:
    from rich import box, console, table

    rows = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    left = ("name", "state", "target", "tags")
    for name in ("job", "name", "state", "target", "trials", "best", "speed-up", "age", "tags"):
        rows.add_column(name, justify="left" if name in left else "right")
    for job in jobs:
        budget = "" if job.trials is None else f"/{job.trials}"
        rows.add_row(
            str(job.id),
            display.printable(job.name),
            job.state,
            display.printable(job.target),
            f"{job.n_trials}{budget}",
            report.duration(job.best_us),
            report.ratio(job.speedup),
            connection.age(job.created_at),
            " ".join(map(display.printable, job.tags)),
        )
    out = console.Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else 140, markup=False
    )
    out.print(rows)
