"""`felix worker`: this machine builds and measures for a cluster, or is a board of a tracker."""

from __future__ import annotations

import argparse
import os
import sys
import time

from felix import errors
from felix.cli.measuring import boards, cluster
from felix.measure.cluster import worker_key

#: How often it looks whether it is still part of the cluster, in seconds.
_LOOK_S = 1.0


def run(arguments: argparse.Namespace) -> int:
    """Work until a signal ends it; a cluster that has lost this machine is joined again."""
    if (arguments.address is None) == (arguments.tracker is None):
        raise errors.MeasureError("give --address of a Ray cluster or --tracker of boards")
    if arguments.tracker is not None:
        if arguments.key is None:
            raise errors.MeasureError("a board needs a key of its own: --key KEY")
        boards.serve(arguments)
    key = worker_key.take(os.environ)
    cluster.require(arguments.address)
    from felix.measure.cluster import worker

    settings = worker.WorkerSettings(
        address=arguments.address, devices=arguments.devices, builders=arguments.builders, key=key
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
