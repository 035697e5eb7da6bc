"""`felix known`: what is known of networks' tasks, as a MetaSchedule database."""

from __future__ import annotations

import argparse
import json

from felix import errors
from felix.known_results import databases, store


def run(arguments: argparse.Namespace) -> int:
    """Write the database; the exit code."""
    known = store.Store(arguments.known_results)
    if not known.path.exists():
        raise errors.RecordError(f"nothing is known: there is no file {known.path}")
    count = databases.export(known, arguments.out)
    if arguments.json:
        print(json.dumps({"schedules": count, "out": arguments.out}, indent=1))
    else:
        print(f"{count} schedules in {arguments.out}; generated kernels are not among them")
    return 0
