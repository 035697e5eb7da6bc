"""`felix pause | resume | cancel | stop | retry`: one verb for one or several jobs.

All jobs are tried; the first refusal is raised at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from felix import client, errors
from felix.cli.remote import connection


def run(arguments: argparse.Namespace) -> int:
    """Apply the verb to the jobs; the exit code."""
    refused: list[errors.RemoteError] = []
    done: list[client.Job] = []
    with connection.connect(arguments) as service:
        verb = getattr(service, arguments.command)
        for number in arguments.job:
            try:
                done.append(verb(number))
            except errors.RemoteError as error:
                refused.append(error)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(job) for job in done], default=str, indent=1))
    else:
        for job in done:
            print(f"job {job.id}: {job.state}")
    if refused:
        raise refused[0]
    return 0
