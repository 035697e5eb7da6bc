"""`felix get`: download what a job made."""

from __future__ import annotations

import argparse
import dataclasses
import json

from felix.cli.remote import connection


def run(chosen: argparse.Namespace) -> int:
    """Download an artifact, or list them; the exit code."""
    with connection.connect(chosen) as service:
        if chosen.list:
            found = service.artifacts(chosen.job)
            if chosen.json:
                print(json.dumps([dataclasses.asdict(a) for a in found], default=str, indent=1))
            for each in [] if chosen.json else found:
                print(f"{each.name}  {each.size_bytes} bytes  sha256 {each.sha256}")
            return 0
        path = service.download(chosen.job, chosen.out, chosen.name)
    print(json.dumps({"path": str(path)}) if chosen.json else str(path))
    return 0
