"""The process that alone talks to a cluster: `link` starts it.

    python -m server.tuner.cluster.relay_main FD HOST:PORT LOG_JSON NEEDS_KEYS

It has the cluster's token and no database. Its first packet on the socket FD is "ready"
once it is in the cluster, or says why it cannot be. Each packet that comes brings a pipe to serve
(`relay.Relay`) and says whose it is (`calls.Side`). It ends with its tuner.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from multiprocessing.connection import Connection

from felix import errors
from felix.measure.cluster import ray_cluster
from felix.processes import syscalls
from server import logs
from server.tuner.cluster import calls, relay

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Serve pipes until the tuner's process goes away."""
    control = socket.socket(fileno=int(argv[0]))
    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    logs.configure(argv[2] == "1")
    try:
        made = relay.Relay(ray_cluster.connect(argv[1]), needs_keys=argv[3] == "1")
    except errors.MeasureError as error:
        control.send(str(error).encode()[:2000])
        return
    control.send(b"ready")
    while (packet := socket.recv_fds(control, 1, 1))[1]:
        side, (fd,), *_ = packet
        threading.Thread(
            target=made.serve,
            args=(Connection(fd),),
            daemon=True,
            kwargs={"of_tuner": side == calls.Side.TUNER.value},
        ).start()
    os._exit(0)  # Ray's own end takes seconds, and nobody waits for anything here


if __name__ == "__main__":
    main(sys.argv[1:])
