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
            artifacts = service.artifacts(chosen.job)
            if chosen.json:
                print(
                    json.dumps([dataclasses.asdict(a) for a in artifacts], default=str, indent=1)
                )
            for artifact in [] if chosen.json else artifacts:
                print(f"{artifact.name}  {artifact.size_bytes} bytes  sha256 {artifact.sha256}")
            return 0
        path = service.download(chosen.job, chosen.out, chosen.name)
    print(json.dumps({"path": str(path)}) if chosen.json else str(path))
    return 0
