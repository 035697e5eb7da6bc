"""TVM's RPC tracker: which servers it knows under which keys, and a board as one of them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import re
import signal
import socket
import struct
from typing import NoReturn

from tvm.rpc import base
from tvm.rpc import server as rpc_server

from felix import errors
from felix.processes import syscalls

#: Seconds to reach a tracker, and for its reply.
_ANSWER_S = 5.0
#: TVM's protocol separates what follows a key by blanks, and its kind by a colon.
_KEY = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Tracker:
    """The address of a tracker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Tracker:
        """Read "HOST:PORT"; raises `MeasureError` if it is none."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise errors.MeasureError(f"a tracker is HOST:PORT, got {text[:100]!r}")
        return cls(host.strip("[]"), int(port))

    def keys(self) -> list[str]:
        """The key of each server that is there, free or not.

        Raises:
            MeasureError: the tracker cannot be reached, or is none.
        """
        try:
            with socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
                magic = struct.pack("<i", base.RPC_TRACKER_MAGIC)
                connection.sendall(magic)
                if base.recvall(connection, len(magic)) != magic:
                    raise ValueError
                base.sendjson(connection, [base.TrackerCode.SUMMARY])
                reply = base.recvjson(connection)
                if reply[0] != base.TrackerCode.SUCCESS:
                    raise ValueError
                servers = reply[1]["server_info"]
                return [str(server["key"]).removeprefix("server:") for server in servers]
        except OSError as error:
            raise errors.MeasureError(
                f"the tracker at {self} does not answer ({error}): start it by "
                f"python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {self.port}"
            ) from error
        except (ValueError, KeyError, TypeError, IndexError, struct.error):
            raise errors.MeasureError(f"what answers at {self} is no tracker of TVM") from None


def check_key(key: str) -> str:
    """A key that boards may have; raises `MeasureError` for others."""
    if not _KEY.fullmatch(key):
        raise errors.MeasureError(
            f"a board's key has letters, digits, '.', '_' and '-', at most 64, got {key[:80]!r}"
        )
    return key


# A board's side: TVM's RPC server, started again when a candidate has ended it.
#
# TVM's own command stops to listen once a program crashes in a session. Whoever reaches a server
# may run code on its machine: TVM's protocol knows neither tokens nor encryption.

_log = logging.getLogger(__name__)
#: Ports that a server may take, from the first one on.
_N_PORTS = 100


def serve(tracker: Tracker, key: str, host: str, port: int) -> NoReturn:
    """Serve sessions of a tracker's clients until a signal ends the process.

    Args:
        tracker: where the board is to be had.
        key: its own.
        host: the address of this machine under which clients reach it, and where it listens.
        port: the first one to try.

    Raises:
        MeasureError: the tracker does not answer or has such a key, or no port is free.
    """
    check_key(key)
    if key in tracker.keys():
        raise errors.MeasureError(
            f"the tracker at {tracker} has a board {key}: each needs a key of its own"
        )
    # Sessions are forks of the server, and end with it.
    end = functools.partial(syscalls.prctl, syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.register_at_fork(after_in_child=end)
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


def own_address(tracker: Tracker) -> str:
    """The address of this machine on the way to the tracker.

    Raises:
        MeasureError: there is no way.
    """
    try:
        with socket.create_connection((tracker.host, tracker.port), 5.0) as connection:
            return str(connection.getsockname()[0])
    except OSError as error:
        raise errors.MeasureError(f"the tracker at {tracker} does not answer: {error}") from error
