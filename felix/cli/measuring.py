"""Measuring elsewhere: `--cluster HOST:PORT` and `--tracker HOST:PORT --key KEY` of `felix tune`,
and `felix worker`, which is such a place."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from felix import errors
from felix.measure.cluster import tls

if TYPE_CHECKING:
    from felix.task import Task
    from felix.tuning import options


def pool_of_cluster(address: str | None) -> Callable[[Task], options.Pool] | None:
    """Makes the pool of a cluster from a run's first task; None: this machine measures.

    Raises:
        MeasureError: the cluster cannot be reached.
    """
    if address is None:
        return None
    from felix.measure.cluster import pool as cluster_pool
    from felix.measure.cluster import ray_cluster

    cluster = ray_cluster.connect(address)
    return lambda task: cluster_pool.ClusterPool(task, cluster)


def require_ray(address: str) -> None:
    """See early that Ray is installed, and that we and the cluster's head agree about TLS.

    Raises:
        MeasureError
    """
    if importlib.util.find_spec("ray") is None:
        raise errors.MeasureError(
            "a cluster needs Ray: pip install 'felix-tuner[cluster]', the same version everywhere"
        )
    tls.check(address)


def pool_of_boards(arguments: argparse.Namespace) -> Callable[[Task], options.Pool] | None:
    """Makes the pool of boards from a run's first task; None: no tracker is given.

    Raises:
        MeasureError: a tracker without a key, or the reverse, or what is given is none.
    """
    if (arguments.tracker is None) != (not arguments.key):
        raise errors.MeasureError("boards are named by --tracker HOST:PORT and --key KEY together")
    if arguments.tracker is None:
        return None
    from felix.measure.boards import pool, tracker

    where = tracker.Tracker.parse(arguments.tracker)
    boards = [
        pool.Board(tracker=where, key=key, priority=arguments.priority) for key in arguments.key
    ]
    return lambda task: pool.BoardPool(task, boards)


def serve_board(arguments: argparse.Namespace) -> NoReturn:
    """Serve as a board until a signal ends it."""
    from felix.measure.boards import tracker

    where = tracker.Tracker.parse(arguments.tracker)
    address = arguments.host or tracker.own_address(where)
    try:
        tracker.serve(where, arguments.key, address, arguments.port)
    except KeyboardInterrupt:
        sys.stdout.flush()
        os._exit(0)  # TVM's thread listens for ever, and sessions end with the process


#: How often it looks whether it is still part of the cluster, in seconds.
_LOOK_S = 1.0


def worker_command(arguments: argparse.Namespace) -> int:
    """`felix worker`: work until a signal ends it; a lost cluster is joined anew."""
    if (arguments.address is None) == (arguments.tracker is None):
        raise errors.MeasureError("give --address of a Ray cluster or --tracker of boards")
    if arguments.tracker is not None:
        if arguments.key is None:
            raise errors.MeasureError("a board needs a key of its own: --key KEY")
        serve_board(arguments)
    key = tls.take(os.environ)
    require_ray(arguments.address)
    from felix.measure.cluster import worker

    settings = worker.WorkerSettings(
        address=arguments.address, devices=arguments.devices, builders=arguments.builders, key=key
    )
    while True:
        with contextlib.closing(worker.Worker(settings)) as here:
            what = f"measures on {here.kind}" if here.kind else "builds programs"
            print(f"felix worker: {what} for {arguments.address}", flush=True)
            try:
                while here.is_member:
                    time.sleep(_LOOK_S)
            except KeyboardInterrupt:
                return 0
        print("felix worker: the cluster lost this machine, which joins again", file=sys.stderr)
