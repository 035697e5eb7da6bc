"""`felix keys`: list, make and revoke API keys.

Over the API with an admin key; with `--local` in the database itself, for the first key and for
when all are lost. The text of a new key goes to stdout, alone, so that it can be piped into a
file.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from typing import Any

from felix import client, errors
from felix.cli.commands import service
from felix.cli.remote import connection


def run(chosen: argparse.Namespace) -> int:
    """Do what was asked; the exit code."""
    if chosen.local:
        if chosen.action != "create":
            raise errors.FelixError("--local only makes keys: felix keys create NAME --local")
        _tell(chosen, *_create_locally(chosen))
        return 0
    with connection.connect(chosen) as reached:
        match chosen.action:
            case "ls":
                _show(chosen, reached.keys())
            case "create":
                made = reached.create_key(
                    _name(chosen), chosen.scope or ["read"], **_limits(chosen)
                )
                _tell(chosen, made.key.id, made.text)
            case "revoke":
                if not (chosen.subject or "").isdecimal():
                    raise errors.FelixError("which key? felix keys revoke ID")
                key = reached.revoke_key(int(chosen.subject))
                print(json.dumps(dataclasses.asdict(key), default=str) if chosen.json
                      else f"key {key.id} ({key.name}) is revoked")  # fmt: skip
    return 0


def _name(chosen: argparse.Namespace) -> str:
    if not chosen.subject:
        raise errors.FelixError("the key needs a name: felix keys create NAME")
    return str(chosen.subject)


def _limits(chosen: argparse.Namespace) -> dict[str, Any]:
    names = ("max_running_jobs", "max_trials", "max_upload_bytes", "expires_s")
    given = {name: getattr(chosen, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _create_locally(chosen: argparse.Namespace) -> tuple[int, str]:
    store = service.load("store.keys")
    database, schema = service.load("database.database"), service.load("database.schema")
    scopes = {f"can_{scope}": scope in (chosen.scope or ["read"])
              for scope in ("read", "submit", "admin")}  # fmt: skip
    with contextlib.closing(database.Database(service.settings().database)) as db:
        schema.check(db)
        with db.write() as tx:
            new = store.NewKey(name=_name(chosen), **scopes, **_limits(chosen))
            made = store.create(tx, new)
            store.audit(tx, None, "key.create", f"key {made.key.id}", {"local": True})
    return int(made.key.id), str(made.text)


def _tell(chosen: argparse.Namespace, number: int, text: str) -> None:
    if chosen.json:
        print(json.dumps({"id": number, "key": text}))
        return
    print(f"key {number}, shown only now:", file=sys.stderr)
    print(text)


def _show(chosen: argparse.Namespace, found: list[client.Key]) -> None:
    if chosen.json:
        print(json.dumps([dataclasses.asdict(key) for key in found], default=str, indent=1))
        return
    from rich import box, console, table

    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("key", "name", "scopes", "public part", "last used", "state"):
        shown.add_column(name)
    for key in found:
        used = "never" if key.last_used_at is None else f"{connection.age(key.last_used_at)} ago"
        state = "valid" if key.revoked_at is None else "revoked"
        shown.add_row(str(key.id), key.name, " ".join(key.scopes), key.public, used, state)
    out = console.Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else 120, markup=False
    )
    out.print(shown)
