"""`felix get`: download what a job made."""

from __future__ import annotations

import argparse
import dataclasses
import json

from felix import display
from felix.cli.remote import connection


def run(arguments: argparse.Namespace) -> int:
    """Download an artifact, or list them; the exit code."""
    with connection.connect(arguments) as service:
        if arguments.list:
            artifacts = service.artifacts(arguments.job)
            if arguments.json:
                print(
                    json.dumps([dataclasses.asdict(a) for a in artifacts], default=str, indent=1)
                )
            for artifact in [] if arguments.json else artifacts:
                name = display.printable(artifact.name)
                print(f"{name}  {artifact.size_bytes} bytes  sha256 {artifact.sha256}")
            return 0
        path = service.download(
            arguments.job, arguments.out, arguments.name, network=arguments.network
        )
    print(json.dumps({"path": str(path)}) if arguments.json else str(path))
    return 0
