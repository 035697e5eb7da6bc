"""`felix serve`: API, dashboard and a tuner."""

from __future__ import annotations

import argparse

from felix.cli.commands import service


def run(chosen: argparse.Namespace) -> int:
    """Serve until a signal ends it; the exit code."""
    commands = service.commands()
    settings = service.settings()
    if chosen.upgrade:
        commands.upgrade(settings)
    return commands.serve(settings, not chosen.no_tuner)
