"""`felix db upgrade`: the service's schema."""

from __future__ import annotations

import argparse
import json

from felix.cli.commands import service


def run(arguments: argparse.Namespace) -> int:
    """Upgrade the database, or say what schema it has; the exit code."""
    before, after = service.commands().upgrade(service.settings())
    if arguments.json:
        print(json.dumps({"before": before, "after": after}))
    elif before == after:
        print(f"the database has schema {after} already")
    else:
        print(f"the database has schema {after} now (before: {before or 'none'})")
    return 0
