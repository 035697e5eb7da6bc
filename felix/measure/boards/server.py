"""A board's side: TVM's RPC server, started again when a candidate has ended it.

TVM's own command stops to listen once a program crashes in a session. Whoever reaches a server
may run code on its machine: TVM's protocol knows neither tokens nor encryption.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from typing import NoReturn

from tvm.rpc import server as rpc_server

from felix import errors
from felix.measure.boards import tracker as trackers
from felix.processes import syscalls

_log = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1
#: Ports that a server may take, from the first one on.
_N_PORTS = 100


def serve(tracker: trackers.Tracker, key: str, host: str, port: int) -> NoReturn:
    """Serve sessions of a tracker's clients until a signal ends the process.

    Args:
        tracker: where the board is to be had.
        key: its own.
        host: the address of this machine under which clients reach it, and where it listens.
        port: the first one to try.

    Raises:
        MeasureError: the tracker does not answer or has such a key, or no port is free.
    """
    trackers.check_key(key)
    if key in tracker.keys():
        raise errors.MeasureError(
            f"the tracker at {tracker} has a board {key}: each needs a key of its own"
        )
    os.register_at_fork(after_in_child=_end_with_parent)
    folder = os.getcwd()
    while True:
        os.chdir(folder)  # a session that crashed leaves the process in a folder that is gone
        try:
            state = rpc_server.PopenRPCServerState(
                host,
                port,
                port + _N_PORTS,
                tracker_addr=(tracker.host, tracker.port),
                key=key,
                custom_addr=host,
            )
        except (OSError, ValueError) as error:
            raise errors.MeasureError(f"cannot listen on {host}:{port}: {error}") from error
        print(f"felix worker: board {key} listens on {host}:{state.port}", flush=True)
        state.thread.join()
        state.sock.close()
        _log.warning(
            "the server ended with a session, and starts again", extra={"action": "board_restart"}
        )


def own_address(tracker: trackers.Tracker) -> str:
    """The address of this machine on the way to the tracker.

    Raises:
        MeasureError: there is no way.
    """
    try:
        with socket.create_connection((tracker.host, tracker.port), 5.0) as connection:
            return str(connection.getsockname()[0])
    except OSError as error:
        raise errors.MeasureError(f"the tracker at {tracker} does not answer: {error}") from error


def _end_with_parent() -> None:
    """Sessions are forks of the server, and end with it."""
    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
