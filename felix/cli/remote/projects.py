"""`felix projects`: list projects; make and limit them, with a key of the scope admin."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from felix import client, errors
from felix.cli.remote import connection

LIMITS = ("max_running_jobs", "max_trials", "max_bytes", "retention_days")


def run(arguments: argparse.Namespace) -> int:
    """List, create or limit; the exit code."""
    with connection.connect(arguments) as service:
        match arguments.action:
            case "ls":
                projects = service.projects()
            case "create":
                projects = [service.create_project(_name(arguments), **_limits(arguments))]
            case _:
                projects = [service.limit_project(_name(arguments), **_limits(arguments))]
    if arguments.json:
        print(json.dumps([dataclasses.asdict(each) for each in projects], default=str, indent=1))
    else:
        _show(projects)
    return 0


def _name(arguments: argparse.Namespace) -> str:
    if not arguments.name:
        raise errors.FelixError(f"which project? felix projects {arguments.action} NAME")
    return str(arguments.name)


def _limits(arguments: argparse.Namespace) -> dict[str, Any]:
    limits = {name: getattr(arguments, name) for name in LIMITS}
    return {name: value for name, value in limits.items() if value is not None}


def _show(projects: list[client.Project]) -> None:
    from rich import box, console, table

    rows = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("project", "jobs at once", "trials a job", "bytes", "days files stay"):
        rows.add_column(name, justify="left" if name == "project" else "right")
    for project in projects:
        limits = (getattr(project, name) for name in LIMITS)
        rows.add_row(project.name, *("–" if limit is None else f"{limit}" for limit in limits))
    out = console.Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else 120, markup=False
    )
    out.print(rows)
