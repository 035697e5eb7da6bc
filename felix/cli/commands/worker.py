"""`felix worker`: this machine builds and measures for a cluster."""

from __future__ import annotations

import argparse
import sys
import time

from felix.cli.commands import cluster

#: How often it looks whether it is still part of the cluster, in seconds.
_LOOK_S = 1.0


def run(arguments: argparse.Namespace) -> int:
    """Work until a signal ends it; a cluster that has lost this machine is joined again."""
    cluster.require_ray()
    from felix.measure.cluster import worker

    settings = worker.WorkerSettings(
        address=arguments.address, devices=arguments.devices, builders=arguments.builders
    )
    while True:
        with worker.Worker(settings) as here:
            what = f"measures on {here.kind}" if here.kind else "builds programs"
            print(f"felix worker: {what} for {arguments.address}", flush=True)
            try:
                while here.is_member:
                    time.sleep(_LOOK_S)
            except KeyboardInterrupt:
                return 0
        print("felix worker: the cluster lost this machine, which joins again", file=sys.stderr)
