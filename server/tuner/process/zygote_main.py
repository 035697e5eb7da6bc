"""A process that has the engine's libraries loaded and forks engines: `zygote` starts it.

Loading TVM and torch takes seconds; an engine that is a fork of this process has them at once, so
one that was killed is soon replaced. This process runs nothing for clients and holds no secret:
its environment has none, and it never sees a database. An engine is confined (`rights`) before it
does anything.

    python -m server.tuner.process.zygote_main FD MODULE:FACTORY LOG_JSON

Each packet on the socket FD brings the pipe of one engine, a second one to a cluster's link if
it measures there, its folder and how it starts (`confinement.packed`). There is one engine at a
time: before the next, and at the end of the socket, all that the last one started is killed,
wherever it hides, and its folder removed. When this process is killed, the kernel kills its engine
(PR_SET_PDEATHSIG), whose measuring processes end with it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import psutil

from felix.processes import child as processes
from felix.processes import confine, syscalls
from server import logs
from server.tuner.process import engine_main, rights

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MAX_PACKET_BYTES = 8192
#: How long it may take to kill what an engine has left, in seconds.
END_S = 5.0
#: Of an engine, and so of its workers: if memory is short, the largest of them ends first.
OOM_SCORE = 1000


def main(argv: list[str]) -> None:
    """Fork an engine for every packet until the tuner's process goes away."""
    control = socket.socket(fileno=int(argv[0]))
    logs.configure(argv[2] == "1")
    module, _, name = argv[1].partition(":")
    gc.disable()  # collections of garbage are a fifth of the time that libraries take to load
    make_engine = getattr(importlib.import_module(module), name)
    rights.prepare()
    confine.warn_of_missing()
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal's are the tuner's to handle
        signal.signal(number, _ignore)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for an engine
    syscalls.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.freeze()
    gc.enable()
    folder: pathlib.Path | None = None
    while True:
        packet, fds, _, _ = socket.recv_fds(control, _MAX_PACKET_BYTES, 2)
        end_children()
        if folder is not None:
            processes.remove_tree(folder)
        if not packet:
            return
        folder, start = rights.unpacked(packet)
        _fork(control, fds, folder, start, make_engine)


def end_children(limit_s: float = END_S) -> None:
    """Kill what this process has started, and what that has left to it, until nothing is there."""
    this = psutil.Process()
    deadline_s = time.monotonic() + limit_s
    while children := this.children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if time.monotonic() > deadline_s:
            _log.error(
                "processes of an engine do not end: %s",
                [child.pid for child in children],
                extra={"action": "engine_died"},
            )
            return
        time.sleep(0.002)


def _fork(
    control: socket.socket,
    fds: list[int],
    folder: pathlib.Path,
    start: rights.Start,
    make_engine: Callable[..., engine_main.RemoteEngine],
) -> None:
    zygote_pid = os.getpid()
    if os.fork():
        for fd in fds:
            os.close(fd)
        return
    status = 1
    try:
        syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != zygote_pid:
            os._exit(1)  # it ended between fork and prctl
        os.setpgid(0, 0)
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pathlib.Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
        if start.is_confined:
            confine.confine(rights.engine(folder), fds)
        pipes = [Connection(fd) for fd in fds]
        make = functools.partial(make_engine, start.run_workers, *pipes[1:])
        engine_main.serve(pipes[0], make)
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
