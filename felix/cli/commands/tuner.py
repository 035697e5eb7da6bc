"""`felix tuner`: work on jobs of the service."""

from __future__ import annotations

import argparse

from felix.cli.commands import service


def run(arguments: argparse.Namespace) -> int:
    """Tune until a signal ends it; the exit code."""
    commands = service.commands()
    settings = service.settings()
    return commands.run_tuner(settings, arguments.name, arguments.jobs, arguments.with_parent)
