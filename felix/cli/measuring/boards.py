"""`--tracker HOST:PORT --key KEY`: candidates are measured by boards of a tracker."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from felix import errors

if TYPE_CHECKING:
    from felix.task import Task
    from felix.tuning import options


def pool(arguments: argparse.Namespace) -> Callable[[Task], options.Pool] | None:
    """Makes the pool of a run from its first task; None: no tracker is given.

    Raises:
        MeasureError: a tracker without a key, or the reverse, or what is given is none.
    """
    if (arguments.tracker is None) != (not arguments.key):
        raise errors.MeasureError("boards are named by --tracker HOST:PORT and --key KEY together")
    if arguments.tracker is None:
        return None
    from felix.measure.boards import board_runs, tracker
    from felix.measure.boards import pool as board_pool

    where = tracker.Tracker.parse(arguments.tracker)
    boards = [
        board_runs.Board(tracker=where, key=key, priority=arguments.priority)
        for key in arguments.key
    ]
    return lambda task: board_pool.BoardPool(task, boards)


def serve(arguments: argparse.Namespace) -> NoReturn:
    """Serve as a board until a signal ends it."""
    from felix.measure.boards import server, tracker

    where = tracker.Tracker.parse(arguments.tracker)
    address = arguments.host or server.own_address(where)
    try:
        server.serve(where, arguments.key, address, arguments.port)
    except KeyboardInterrupt:
        sys.stdout.flush()
        os._exit(0)  # TVM's thread listens for ever, and sessions end with the process
