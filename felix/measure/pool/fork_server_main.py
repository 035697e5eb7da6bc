"""The fork server: a process that imports TVM and forks measuring workers.

It is started as `python -m felix.measure.pool.fork_server_main` (see `fork_server`).

TVM is imported once, here; a worker is a fork of this process and is ready in milliseconds,
so replacing one that crashed costs about as much as building nothing. That is safe because
this process never starts a thread: TVM's and LLVM's pools come up in the workers, and the
environment keeps BLAS to one thread. What only costs time here is kept out: torch, which TVM
imports when it can (two seconds), TVM's graph level, which comes when something asks for it, and
collections of garbage meanwhile. The last two are half of the rest.

Protocol with the parent, over one SEQPACKET socket, one JSON object a packet, in lock-step:
`{"fork": settings}` with the worker's pipe as a file descriptor -> `{"pid": n}`;
`{"wait": pid}` -> `{"status": wait status}` (the worker must be dead or dying; null for a
worker of an earlier fork server).

No orphans: when the parent goes away this process reads end-of-file, kills its workers,
removes the work folder and exits; when this process is killed, the kernel kills the workers
(PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import shutil
import signal
import socket
import sys
import types
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1
_PACKET_BYTES = 65536


def main(argv: list[str]) -> None:
    """Serve fork requests on the socket `argv[0]` until the parent goes away."""
    control = socket.socket(fileno=int(argv[0]))
    work_dir = argv[1]
    _import_tvm()
    children: set[int] = set()
    try:
        control.send(b'{"ready": true}')
        while True:
            packet, fds, _, _ = socket.recv_fds(control, _PACKET_BYTES, 1)
            if not packet:
                break
            request = json.loads(packet)
            if "fork" in request:
                pid = _fork(control, fds[0], request["fork"])
                children.add(pid)
                control.send(json.dumps({"pid": pid}).encode())
            else:
                pid = request["wait"]
                status = os.waitpid(pid, 0)[1] if pid in children else None
                children.discard(pid)
                control.send(json.dumps({"status": status}).encode())
    except ConnectionError:
        pass  # the parent died in the middle of a request
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    shutil.rmtree(work_dir, ignore_errors=True)


def _import_tvm() -> None:
    from felix import without_torch  # noqa: F401  (before TVM)

    sys.meta_path.insert(0, _WhenUsed("tvm.relax"))
    gc.disable()
    import tvm
    import tvm.s_tir

    # The rest of what `tvm.relax` does for others when it is loaded.
    tvm.script.register_dialect("relax", "tvm.relax.script")

    # The first build sets up LLVM; workers inherit it.
    i = tvm.te.compute((1,), lambda i: i, name="warm")
    tvm.tirx.build(tvm.IRModule({"main": tvm.te.create_prim_func([i])}), "llvm")
    from felix.measure import build  # noqa: F401
    from felix.measure.cpu import runner as cpu_runner  # noqa: F401
    from felix.measure.cuda import build as cuda_build  # noqa: F401
    from felix.measure.cuda import runner as cuda_runner  # noqa: F401

    gc.freeze()  # workers need not copy these pages to look through them
    gc.enable()


class _WhenUsed(importlib.abc.MetaPathFinder):
    """Loads one module when an attribute of it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec with a lazy loader; None for others."""
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def _fork(control: socket.socket, fd: int, settings: dict[str, Any]) -> int:
    server_pid = os.getpid()
    pid = os.fork()
    if pid:
        os.close(fd)
        return pid
    status = 1
    try:
        control.close()
        _become_worker(server_pid, settings)
        from felix.measure.pool import worker_main

        worker_main.serve(Connection(fd), settings)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _become_worker(server_pid: int, settings: dict[str, Any]) -> None:
    """Limits, priority and log of a fresh fork."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:
        os._exit(1)  # the server died between fork and prctl
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if settings["memory_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (settings["memory_bytes"],) * 2)
    os.nice(settings["nice"])
    os.environ["TVM_NUM_THREADS"] = str(settings["threads"])
    if not may_bind(os.sched_getaffinity(0)):
        os.environ["TVM_BIND_THREADS"] = "0"
    os.environ.update(settings["environment"])
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # short of memory, the kernel takes a candidate, not the tuner
    log = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def may_bind(cores: set[int]) -> bool:
    """Whether TVM may pin its threads: it counts cores from 0, whatever a process may use."""
    return cores == set(range(len(cores)))


if __name__ == "__main__":
    main(sys.argv[1:])
