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

from felix import client, errors
from felix.cli.commands import service
from felix.cli.remote import connection


def run(chosen: argparse.Namespace) -> int:
    """List, create or revoke; the exit code."""
    if chosen.local:
        if chosen.action != "create":
            raise errors.FelixError("--local only makes keys: felix keys create NAME --local")
        _print_key(chosen, *_create_locally(chosen))
        return 0
    with connection.connect(chosen) as remote:
        match chosen.action:
            case "ls":
                _show(chosen, remote.keys())
            case "create":
                made = remote.create_key(
                    _name(chosen), chosen.scope or ["read"], **_limits(chosen)
                )
                _print_key(chosen, made.key.id, made.text)
            case "revoke":
                if not (chosen.subject or "").isdecimal():
                    raise errors.FelixError("which key? felix keys revoke ID")
                key = remote.revoke_key(int(chosen.subject))
                print(json.dumps(dataclasses.asdict(key), default=str) if chosen.json
                      else f"key {key.id} ({key.name}) is revoked")  # fmt: skip
    return 0


def _name(chosen: argparse.Namespace) -> str:
    if not chosen.subject:
        raise errors.FelixError("the key needs a name: felix keys create NAME")
    return str(chosen.subject)


def _limits(chosen: argparse.Namespace) -> dict[str, Any]:
    names = ("max_running_jobs", "max_trials", "max_upload_bytes", "expires_s")
    limits = {name: getattr(chosen, name) for name in names}
    return {name: value for name, value in limits.items() if value is not None}


def _create_locally(chosen: argparse.Namespace) -> tuple[int, str]:
    return service.commands().create_key(
        service.settings(), _name(chosen), chosen.scope or ["read"], _limits(chosen)
    )


def _print_key(chosen: argparse.Namespace, number: int, text: str) -> None:
    if chosen.json:
        print(json.dumps({"id": number, "key": text}))
        return
    print(f"key {number}, shown only now:", file=sys.stderr)
    print(text)


def _show(chosen: argparse.Namespace, keys: list[client.Key]) -> None:
    if chosen.json:
        print(json.dumps([dataclasses.asdict(key) for key in keys], default=str, indent=1))
        return
    from rich import box, console, table

    rows = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("key", "name", "scopes", "public part", "last used", "state"):
        rows.add_column(name)
    for key in keys:
        used = "never" if key.last_used_at is None else f"{connection.age(key.last_used_at)} ago"
        state = "valid" if key.revoked_at is None else "revoked"
        rows.add_row(str(key.id), key.name, " ".join(key.scopes), key.public, used, state)
    out = console.Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else 120, markup=False
    )
    out.print(rows)
