"""`felix keys`: list, make and revoke API keys.

Over the API with an admin key; with `--local` in this machine's database, for the first key and
for when all are lost. The text of a new key goes to stdout, alone, so that it can be piped into a
file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from felix import client, display, errors
from felix.cli.commands import service
from felix.cli.remote import connection


def run(arguments: argparse.Namespace) -> int:
    """List, create or revoke; the exit code."""
    if arguments.local:
        if arguments.action != "create":
            raise errors.FelixError("--local only makes keys: felix keys create NAME --local")
        _print_key(arguments, *_create_locally(arguments))
        return 0
    with connection.connect(arguments) as remote:
        match arguments.action:
            case "ls":
                _show(arguments, remote.keys())
            case "create":
                made = remote.create_key(
                    _name(arguments), arguments.scope or ["read"], **_limits(arguments)
                )
                _print_key(arguments, made.key.id, made.text)
            case "revoke":
                if not (arguments.subject or "").isdecimal():
                    raise errors.FelixError("which key? felix keys revoke ID")
                key = remote.revoke_key(int(arguments.subject))
                print(
                    json.dumps(dataclasses.asdict(key), default=str)
                    if arguments.json
                    else f"key {key.id} ({display.printable(key.name)}) is revoked"
                )
    return 0


def _name(arguments: argparse.Namespace) -> str:
    if not arguments.subject:
        raise errors.FelixError("the key needs a name: felix keys create NAME")
    return str(arguments.subject)


def _limits(arguments: argparse.Namespace) -> dict[str, Any]:
    names = (
        "project",
        "device_kinds",
        "max_running_jobs",
        "max_trials",
        "max_upload_bytes",
        "expires_s",
    )
    limits = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in limits.items() if value is not None}


def _create_locally(arguments: argparse.Namespace) -> tuple[int, str]:
    return service.commands().create_key(
        service.settings(), _name(arguments), arguments.scope or ["read"], _limits(arguments)
    )


def _print_key(arguments: argparse.Namespace, number: int, text: str) -> None:
    if arguments.json:
        print(json.dumps({"id": number, "key": text}))
        return
    print(f"key {number}, shown only now:", file=sys.stderr)
    print(text)


def _show(arguments: argparse.Namespace, keys: list[client.Key]) -> None:
    if arguments.json:
        print(json.dumps([dataclasses.asdict(key) for key in keys], default=str, indent=1))
        return
    from rich import box, console, table

    rows = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("key", "name", "project", "scopes", "public part", "last used", "state"):
        rows.add_column(name)
    for key in keys:
        used = "never" if key.last_used_at is None else f"{connection.age(key.last_used_at)} ago"
        state = "valid" if key.revoked_at is None else "revoked"
        kinds = f" for {' '.join(key.device_kinds)}" if key.device_kinds else ""
        name, scopes = display.printable(key.name), " ".join(key.scopes) + kinds
        rows.add_row(str(key.id), name, key.project, scopes, key.public, used, state)
    out = console.Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else 120, markup=False
    )
    out.print(rows)
