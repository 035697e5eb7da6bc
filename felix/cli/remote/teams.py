"""Keys, projects and webhooks: `felix keys | projects | webhooks`.

Keys are made over the API with an admin key; with `--local` in this machine's database, for the
first key and for when all are lost. The text of a new key, and the secret of a new webhook, go to
stdout, alone, so that they can be piped into a file.
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


def keys_command(arguments: argparse.Namespace) -> int:
    """List, create or revoke; the exit code."""
    if arguments.local:
        if arguments.action != "create":
            raise errors.FelixError("--local only makes keys: felix keys create NAME --local")
        made_here = service.commands().create_key(service.settings(), *_new_key(arguments))
        _print_key(arguments, *made_here)
        return 0
    with connection.connect(arguments) as remote:
        match arguments.action:
            case "ls":
                connection.show(arguments, remote.keys(), _KEY, _key_row)
            case "create":
                name, scopes, limits = _new_key(arguments)
                made = remote.create_key(name, scopes, **limits)
                _print_key(arguments, made.key.id, made.text)
            case "revoke":
                if not (arguments.subject or "").isdecimal():
                    raise errors.FelixError("which key? felix keys revoke ID")
                key = remote.revoke_key(int(arguments.subject))
                said = f"key {key.id} ({display.printable(key.name)}) is revoked"
                print(json.dumps(dataclasses.asdict(key), default=str) if arguments.json else said)
    return 0


def _new_key(arguments: argparse.Namespace) -> tuple[str, list[str], dict[str, Any]]:
    """Name, scopes and limits of the key to make."""
    if not arguments.subject:
        raise errors.FelixError("the key needs a name: felix keys create NAME")
    names = ("max_running_jobs", "max_trials", "max_upload_bytes", "expires_s")
    limits = connection.given(arguments, ("project", "device_kinds", *names))
    return str(arguments.subject), arguments.scope or ["read"], limits


def _print_key(arguments: argparse.Namespace, number: int, text: str) -> None:
    if arguments.json:
        print(json.dumps({"id": number, "key": text}))
        return
    print(f"key {number}, shown only now:", file=sys.stderr)
    print(text)


_KEY = ("key", "name", "project", "scopes", "public part", "last used", "state")


def _key_row(key: client.Key) -> tuple[str, ...]:
    used = "never" if key.last_used_at is None else f"{connection.age(key.last_used_at)} ago"
    kinds = f" for {' '.join(key.device_kinds)}" if key.device_kinds else ""
    name, scopes = display.printable(key.name), " ".join(key.scopes) + kinds
    state = "valid" if key.revoked_at is None else "revoked"
    return str(key.id), name, key.project, scopes, key.public, used, state


LIMITS = ("max_running_jobs", "max_trials", "max_bytes", "retention_days")


def projects_command(arguments: argparse.Namespace) -> int:
    """List, create or limit; the exit code."""
    with connection.connect(arguments) as service:
        match arguments.action:
            case "ls":
                projects = service.projects()
            case verb:
                change = service.create_project if verb == "create" else service.limit_project
                projects = [
                    change(_project_name(arguments), **connection.given(arguments, LIMITS))
                ]
    numbers = ("jobs at once", "trials a job", "bytes", "days files stay")
    connection.show(
        arguments, projects, ("project", *numbers), _project_row, right=frozenset(numbers)
    )
    return 0


def _project_row(project: client.Project) -> tuple[str, ...]:
    limits = (getattr(project, name) for name in LIMITS)
    return (project.name, *("–" if limit is None else f"{limit}" for limit in limits))


def _project_name(arguments: argparse.Namespace) -> str:
    if not arguments.name:
        raise errors.FelixError(f"which project? felix projects {arguments.action} NAME")
    return str(arguments.name)


def webhooks_command(arguments: argparse.Namespace) -> int:
    """List, create, delete, test, or list deliveries; the exit code."""
    with connection.connect(arguments) as service:
        match arguments.action:
            case "ls":
                _show_fields(arguments, service.webhooks(), ("id", "url", "states"))
            case "create":
                made = service.create_webhook(_subject(arguments, "URL"), arguments.state)
                if arguments.json:
                    print(json.dumps({"id": made.webhook.id, "secret": made.secret}))
                else:
                    said = f"webhook {made.webhook.id}; its secret, shown only now:"
                    print(said, file=sys.stderr)
                    print(made.secret)
            case "delete":
                service.delete_webhook(_number(arguments))
            case "test":
                _show_fields(arguments, [service.test_webhook(_number(arguments))], _DELIVERY)
            case _:
                deliveries = service.deliveries(_number(arguments), limit=arguments.limit)
                _show_fields(arguments, list(deliveries), _DELIVERY)
    return 0


_DELIVERY = ("id", "event_id", "state", "attempts", "last_status", "last_error")


def _subject(arguments: argparse.Namespace, word: str) -> str:
    if not arguments.subject:
        raise errors.FelixError(f"which one? felix webhooks {arguments.action} {word}")
    return str(arguments.subject)


def _number(arguments: argparse.Namespace) -> int:
    text = _subject(arguments, "ID")
    if not text.isdecimal():
        raise errors.FelixError(f"which one? felix webhooks {arguments.action} ID")
    return int(text)


def _show_fields(arguments: argparse.Namespace, items: list[Any], fields: tuple[str, ...]) -> None:
    if arguments.json:
        connection.print_json(items)
        return
    for item in items:
        values = (getattr(item, name) for name in fields)
        words = (" ".join(value) if isinstance(value, list) else value for value in values)
        print("  ".join("–" if word is None else str(word) for word in words))
