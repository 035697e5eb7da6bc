"""`felix serve | tuner | db`: the one place where `felix` reaches the service.

The package `server` is optional and imports `felix`, not the reverse. So it is loaded by its name,
when one of its commands runs, and known here by a protocol.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Collection
from typing import Any, Protocol, cast

from felix import errors


class Commands(Protocol):
    """What `server.commands` does for the command line; the type of settings is the service's."""

    def upgrade(self, settings: object) -> tuple[str | None, str]:
        """Bring the database to this version's schema; the revisions before and after."""
        ...

    def serve(self, settings: object, with_tuner: bool) -> int:
        """API, dashboard and tuner; the exit code."""
        ...

    def run_tuner(
        self, settings: object, name: str | None, jobs: int | None, with_parent: bool
    ) -> int:
        """Tune until a signal ends it; the exit code."""
        ...

    def create_key(
        self, settings: object, name: str, scopes: Collection[str], limits: dict[str, Any]
    ) -> tuple[int, str]:
        """An API key, made in the database; its number and text."""
        ...


def commands() -> Commands:
    """The commands of the service.

    Raises:
        FelixError: it, or a package it needs, is not installed.
    """
    return cast(Commands, _load("commands"))


def settings() -> object:
    """The service's settings, from the environment; raises as `commands` does."""
    return _load("settings").Settings.from_environment()


def _load(name: str) -> Any:
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
    return loaded.serve(configured, not arguments.no_tuner)


def run_tuner(arguments: argparse.Namespace) -> int:
    """`felix tuner`: work on jobs until a signal ends it; the exit code."""
    loaded, configured = commands(), settings()
    return loaded.run_tuner(configured, arguments.name, arguments.jobs, arguments.with_parent)


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
