"""`felix serve | tuner | db`: the one place where `felix` reaches the service.

The package `server` is optional and imports `felix`, not the reverse. So it is loaded by its name,
when one of its commands runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
from types import ModuleType
from typing import Any

from felix import errors


def commands() -> Any:
    """The module of the service's commands, `server.commands`.

    Raises:
        FelixError: it, or a package it needs, is not installed.
    """
    return _load("commands")


def settings() -> Any:
    """The service's settings, from the environment; raises as `commands` does."""
    return _load("settings").Settings.from_environment()


def _load(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"server.{name}")
    except ModuleNotFoundError as error:
        raise errors.FelixError(
            f"this command needs the service ({error.name} is missing): "
            "pip install 'felix-tuner[server]'"
        ) from error


def run_serve(arguments: argparse.Namespace) -> int:
    """`felix serve`: API, dashboard and a tuner until a signal ends it; the exit code."""
    loaded, configured = commands(), settings()
    if arguments.upgrade:
        loaded.upgrade(configured)
    return int(loaded.serve(configured, not arguments.no_tuner))


def run_tuner(arguments: argparse.Namespace) -> int:
    """`felix tuner`: work on jobs until a signal ends it; the exit code."""
    loaded, configured = commands(), settings()
    ended = loaded.run_tuner(configured, arguments.name, arguments.jobs, arguments.with_parent)
    return int(ended)


def run_db(arguments: argparse.Namespace) -> int:
    """`felix db upgrade`: upgrade the database, or say what schema it has; the exit code."""
    before, after = commands().upgrade(settings())
    if arguments.json:
        print(json.dumps({"before": before, "after": after}))
    elif before == after:
        print(f"the database has schema {after} already")
    else:
        print(f"the database has schema {after} now (before: {before or 'none'})")
    return 0
