"""`felix webhooks`: who is told of changes of the project's jobs; what came of it.

The secret of a new webhook goes to stdout, alone, so that it can be piped into a file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from felix import errors
from felix.cli.remote import connection


def run(arguments: argparse.Namespace) -> int:
    """List, create, delete, test, or list deliveries; the exit code."""
    with connection.connect(arguments) as service:
        match arguments.action:
            case "ls":
                _show(arguments, service.webhooks(), ("id", "url", "states"))
            case "create":
                made = service.create_webhook(_subject(arguments, "URL"), arguments.state)
                if arguments.json:
                    print(json.dumps({"id": made.webhook.id, "secret": made.secret}))
                else:
                    print(
                        f"webhook {made.webhook.id}; its secret, shown only now:", file=sys.stderr
                    )
                    print(made.secret)
            case "delete":
                service.delete_webhook(_number(arguments))
            case "test":
                _show(arguments, [service.test_webhook(_number(arguments))], _DELIVERY)
            case _:
                deliveries = service.deliveries(_number(arguments), limit=arguments.limit)
                _show(arguments, list(deliveries), _DELIVERY)
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


def _show(arguments: argparse.Namespace, items: list[Any], fields: tuple[str, ...]) -> None:
    if arguments.json:
        print(json.dumps([dataclasses.asdict(item) for item in items], default=str, indent=1))
        return
    for item in items:
        values = (getattr(item, name) for name in fields)
        words = (" ".join(value) if isinstance(value, list) else value for value in values)
        print("  ".join("–" if word is None else str(word) for word in words))
