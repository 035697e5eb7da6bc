"""The loop of a fork server: it loads what its workers need, then forks them on request.

A module with a loop of its own is started as `python -m MODULE SOCKET FOLDER` (see `fork_server`)
and calls `serve`. What is loaded is loaded once; a worker is a fork of the process and is ready in
milliseconds. That is safe because the process never starts a thread.

Protocol with the parent, over one SEQPACKET socket, one JSON object a packet, in lock-step:
`{"fork": settings}` with the worker's pipes as file descriptors -> `{"pid": n}`;
`{"wait": pid}` -> `{"status": wait status}` (the worker must be dead or dying; null for a
worker of an earlier fork server).

Each worker leads a process group, which is what one kills. No orphans: what a dead worker has left
anywhere is killed; when the parent goes away this process reads end-of-file, kills its workers,
removes the work folder and exits; when this process is killed, the kernel kills the workers
(PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from typing import Any

import psutil

from felix.processes import child, syscalls

_PACKET_BYTES = 65536

#: How long it may take to kill what a worker has left, in seconds.
END_S = 5.0
#: Pipes of a worker at most.
_MAX_PIPES = 2
#: What a worker does with its pipes and its settings.
Work = Callable[[Sequence[Connection], dict[str, Any]], None]


def serve(argv: Sequence[str], load: Callable[[], None], work: Work) -> None:
    """Serve fork requests on the socket `argv[0]` until the parent goes away."""
    control = socket.socket(fileno=int(argv[0]))
    work_dir = argv[1]
    gc.disable()  # collections of garbage are a fifth of the time that libraries take to load
    load()
    gc.freeze()  # workers need not copy these pages to look through them
    gc.enable()
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGCONT)  # it may stand still by then
    workers: set[int] = set()
    try:
        control.send(b'{"ready": true}')
        while True:
            packet, fds, _, _ = socket.recv_fds(control, _PACKET_BYTES, _MAX_PIPES)
            if not packet:
                break
            request = json.loads(packet)
            if "fork" in request:
                pid = _fork(control, fds, request["fork"], work)
                workers.add(pid)
                control.send(json.dumps({"pid": pid}).encode())
            else:
                pid = request["wait"]
                status = os.waitpid(pid, 0)[1] if pid in workers else None
                workers.discard(pid)
                _end_orphans(workers)
                control.send(json.dumps({"status": status}).encode())
    except ConnectionError:
        pass  # the parent died in the middle of a request
    for pid in workers:
        child.end_group(pid, lambda pid: os.waitpid(pid, 0))
    _end_orphans(set())
    child.remove_tree(pathlib.Path(work_dir))


def _end_orphans(workers: Collection[int]) -> None:
    """Kill what dead workers have left, which are children of this process, until nothing is."""
    this, deadline_s = psutil.Process(), time.monotonic() + END_S
    while orphans := [each for each in this.children() if each.pid not in workers]:
        for orphan in orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in (*orphan.children(recursive=True), orphan):
                    each.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan.pid, os.WNOHANG)
        if time.monotonic() > deadline_s:
            print(f"what a worker has left does not end: {orphans}", file=sys.stderr)
            return
        time.sleep(0.002)


def _fork(control: socket.socket, fds: Sequence[int], settings: dict[str, Any], work: Work) -> int:
    server_pid = os.getpid()
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        os.setpgid(pid, pid)  # before anyone learns the pid
        return pid
    status = 1
    try:
        control.close()
        _leave_no_orphan(server_pid)
        work([Connection(fd) for fd in fds], settings)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _leave_no_orphan(server_pid: int) -> None:
    """Lead a group, end with the server, adopt orphans, and die first if memory is short."""
    os.setpgid(0, 0)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != server_pid:
        os._exit(1)  # the server died between fork and prctl
    score = pathlib.Path("/proc/self/oom_score_adj")
    if score.read_text().strip() != "1000":  # a confined parent may have set it, and forbids it
        score.write_text("1000")


def in_fork(action: Callable[[], None]) -> None:
    """Do something in a fork that ends then, and leave this process as it was."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def write_to(log: str) -> None:
    """Make a file this process's standard output and error."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
