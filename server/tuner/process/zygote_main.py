"""A process that has the engine's libraries loaded and forks engines: `zygote` starts it.

Loading TVM and torch takes seconds; an engine that is a fork of this process has them at once, so
one that was killed is soon replaced. This process starts no thread and holds no secret: its
environment has none, and it never sees a database.

    python -m server.tuner.process.zygote_main FD MODULE:FACTORY LOG_JSON

Each packet on the socket FD brings the pipe of one engine. No orphans: at the end of the socket
this process ends, and when it ends the kernel kills its engines (PR_SET_PDEATHSIG), whose
measuring processes end with them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from typing import Any

from server import logs
from server.tuner.process import engine_main

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Fork an engine for every packet until the tuner's process goes away."""
    control = socket.socket(fileno=int(argv[0]))
    logs.configure(argv[2] == "1")
    module, _, name = argv[1].partition(":")
    make_engine = getattr(importlib.import_module(module), name)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal's are the tuner's to handle
        signal.signal(number, _ignore)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for an engine
    gc.freeze()
    while True:
        packet, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not packet:
            return
        _fork(control, fds[0], make_engine)


def _fork(control: socket.socket, fd: int, make_engine: Any) -> None:
    zygote_pid = os.getpid()
    if os.fork():
        os.close(fd)
        return
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != zygote_pid:
            os._exit(1)  # it ended between fork and prctl
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        engine_main.serve(Connection(fd), make_engine)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _ignore(*_: object) -> None:
    """Unlike SIG_IGN, this is not inherited by what an engine starts."""


if __name__ == "__main__":
    main(sys.argv[1:])
