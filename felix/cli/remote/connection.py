"""How commands reach the service: its address and a key, from options or the environment.

`--url`, else `FELIX_URL`, else the address where `felix serve` listens by default. The key is in
`FELIX_API_KEY`, or in a file (`--key-file`); on the machine of `felix serve`, in its folder, the
first admin key is read from its file. Keys are no option: other users could see it in the process
list.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
from collections.abc import Mapping

from felix import client, errors

DEFAULT_URL = "http://127.0.0.1:8000"

#: `felix serve` leaves the first key in this file of its data folder.
KEY_FILE = "admin-key"


def connect(
    arguments: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> client.Client:
    """A client for the service that the options or the environment name.

    Raises:
        FelixError: there is no key.
    """
    environment = os.environ if environment is None else environment
    url = arguments.url or environment.get("FELIX_URL") or DEFAULT_URL
    key = environment.get("FELIX_API_KEY", "")
    if arguments.key_file is not None:
        key = _read(pathlib.Path(arguments.key_file))
    elif not key and url == DEFAULT_URL:  # a key of this machine goes nowhere else
        path = pathlib.Path(environment.get("FELIX_DATA_DIR") or "felix-data", KEY_FILE)
        key = _read(path) if path.is_file() else ""
    if not key:
        raise errors.FelixError(
            "an API key is needed: set FELIX_API_KEY, or name a file with --key-file"
        )
    return client.Client(url, key.strip())


def age(at: datetime.datetime) -> str:
    """How long ago, in the largest unit."""
    passed_s = max(0.0, (datetime.datetime.now(datetime.UTC) - at).total_seconds())
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= unit_s:
            return f"{passed_s // unit_s:.0f} {unit}"
    return f"{passed_s:.0f} s"


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.FelixError(f"cannot read the key in {path}: {error}") from error
