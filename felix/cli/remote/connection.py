"""How commands reach the service: its address and a key, from options or the environment.

`--url`, else `FELIX_URL`, else where `felix serve` listens on this machine: `FELIX_HOST` and
`FELIX_PORT`, as it reads them. The key is in `FELIX_API_KEY`, or in a file (`--key-file`); for the
service of this machine the first admin key is read from its file in `FELIX_DATA_DIR`. Keys are no
option: other users could see it in the process list.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeVar

from felix import client, errors

T = TypeVar("T")

#: Of `server.settings`.
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000

#: Where a service that listens on all addresses is reached from its own machine.
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_LOOPBACK = frozenset({"127.0.0.1", "::1"})

#: `felix serve` leaves the first key in this file of its data folder.
KEY_FILE = "admin-key"


def connect(arguments: argparse.Namespace) -> client.Client:
    """A client for the service that the options or the environment name.

    Raises:
        FelixError: there is no key, or a variable makes no sense.
    """
    environment = os.environ
    host, port = _listening(environment)
    here = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    url = arguments.url or environment.get("FELIX_URL") or here
    key = environment.get("FELIX_API_KEY", "")
    if arguments.key_file is not None:
        key = _read(pathlib.Path(arguments.key_file))
    elif not key and _is_reached_at(url, host, port):  # a key of this machine goes nowhere else
        path = pathlib.Path(environment.get("FELIX_DATA_DIR") or "felix-data", KEY_FILE)
        key = _read(path) if path.is_file() else ""
    if not key:
        raise errors.FelixError(
            "an API key is needed: set FELIX_API_KEY, or name a file with --key-file"
        )
    return client.Client(url, key.strip())


def given(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The options of these names that were given."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def age(at: datetime.datetime) -> str:
    """How long ago, in the largest unit."""
    passed_s = max(0.0, (datetime.datetime.now(datetime.UTC) - at).total_seconds())
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{passed_s // unit_s:.0f} {unit}"
    return f"{passed_s:.0f} s"


def print_json(values: Sequence[Any]) -> None:
    """Rows of the service as a list in JSON."""
    print(json.dumps([dataclasses.asdict(each) for each in values], default=str, indent=1))


def show(
    arguments: argparse.Namespace,
    values: Sequence[T],
    columns: Sequence[str],
    cells: Callable[[T], Sequence[str]],
    right: Set[str] = frozenset(),
) -> None:
    """Rows of the service on stdout, as JSON or as a table; `right` are columns of numbers."""
    from rich import box, console, table

    if arguments.json:
        print_json(values)
        return
    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        shown.add_column(name, justify="right" if name in right else "left")
    for value in values:
        shown.add_row(*cells(value))
    width = None if sys.stdout.isatty() else 140
    console.Console(file=sys.stdout, width=width, markup=False).print(shown)


def _listening(environment: Mapping[str, str]) -> tuple[str, int]:
    """Host and port at which this machine's service is reached."""
    host = environment.get("FELIX_HOST") or DEFAULT_HOST
    text = environment.get("FELIX_PORT") or str(DEFAULT_PORT)
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise errors.FelixError(f"FELIX_PORT is {text!r}: a port is a number from 1 to 65535")
    return _REACHED_AT.get(host, host), int(text)


def _is_reached_at(url: str, host: str, port: int) -> bool:
    """Whether a URL is the address of this machine's service, however it is written."""
    try:
        parts = urllib.parse.urlsplit(url)
        url_port = parts.port or 80
    except ValueError:
        return False
    hosts = {host, "localhost"} if host in _LOOPBACK else {host}
    return parts.scheme == "http" and parts.hostname in hosts and url_port == port


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.FelixError(f"cannot read the key in {path}: {error}") from error
