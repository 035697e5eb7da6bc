"""How commands reach the service, which is optional and imports `felix`, not the reverse."""

from __future__ import annotations

import importlib
from typing import Any

from felix import errors


def load(name: str) -> Any:
    """A module of `server`.

    Raises:
        FelixError: it, or a package it needs, is not installed.
    """
    try:
        return importlib.import_module(f"server.{name}")
    except ModuleNotFoundError as error:
        raise errors.FelixError(
            f"this command needs the service ({error.name} is missing): "
            "pip install 'felix-tuner[server]'"
        ) from error


def settings() -> Any:
    """The service's settings, from the environment."""
    return load("settings").Settings.from_environment()
