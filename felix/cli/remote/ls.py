"""`felix ls`: jobs of the service."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from felix import client
from felix.cli import report
from felix.cli.remote import connection


def run(chosen: argparse.Namespace) -> int:
    """List jobs; the exit code."""
    filters = {"state": chosen.state, "tag": chosen.tag, "q": chosen.q}
    given = {name: value for name, value in filters.items() if value}
    with connection.connect(chosen) as service:
        found = list(service.jobs(limit=chosen.limit, mine=chosen.mine, **given))
    if chosen.json:
        print(json.dumps([dataclasses.asdict(job) for job in found], default=str, indent=1))
    else:
        _show(found)
    return 0


def _show(found: list[client.Job]) -> None:
    from rich import box, console, table

    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    left = ("name", "state", "target", "tags")
    for name in ("job", "name", "state", "target", "trials", "best", "speed-up", "age", "tags"):
        shown.add_column(name, justify="left" if name in left else "right")
    for job in found:
        budget = "" if job.trials is None else f"/{job.trials}"
        shown.add_row(
            str(job.id), job.name, job.state, job.target, f"{job.n_trials}{budget}",
            report.duration(job.best_us), report.ratio(job.speedup),
            connection.age(job.created_at), " ".join(job.tags),
        )  # fmt: skip
    out = console.Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else 140, markup=False
    )
    out.print(shown)
