"""`felix tuner`: work on jobs of the service."""

from __future__ import annotations

import argparse

from felix.cli.commands import service


def run(chosen: argparse.Namespace) -> int:
    """Tune until told to end; the exit code."""
    commands = service.load("commands")
    settings = service.settings()
    return int(commands.run_tuner(settings, chosen.name, chosen.jobs, chosen.with_parent))
