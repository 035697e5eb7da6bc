"""`felix serve`: API, dashboard and a tuner."""

from __future__ import annotations

import argparse

from felix.cli.commands import service


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal ends it; the exit code."""
    commands = service.commands()
    settings = service.settings()
    if arguments.upgrade:
        commands.upgrade(settings)
    return commands.serve(settings, not arguments.no_tuner)
