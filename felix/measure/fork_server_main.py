"""The fork server of builders and of what runs on CPUs: imports TVM (`processes.fork_loop`).

TVM's and LLVM's thread pools come up in the workers, and the environment keeps BLAS to one thread.
What only costs time here is kept out: torch, which TVM imports when it can (two seconds), and
TVM's graph level, which comes when something asks for it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from felix.measure import worker_main
from felix.processes import fork_loop

#: How often TVM's worker threads look for more work before they sleep, 0.1 to 0.5 us each. Enough
#: for the time between two timed calls; with TVM's 300,000 they keep the cores from builds and
#: search for up to 0.17 s after every candidate, and from resting.
_SPINS = 5_000


def _import_tvm() -> None:
    from felix import without_torch  # noqa: F401  (before TVM)

    sys.meta_path.insert(0, _RelaxWhenUsed())
    import tvm
    import tvm.s_tir

    # The rest of what `tvm.relax` does for others when it is loaded.
    tvm.script.register_dialect("relax", "tvm.relax.script")

    # The first build sets up LLVM; workers inherit it.
    i = tvm.te.compute((1,), lambda i: i, name="warm")
    tvm.tirx.build(tvm.IRModule({"main": tvm.te.create_prim_func([i])}), "llvm")
    from felix.builder import build  # noqa: F401
    from felix.builder.cuda import build as cuda_build  # noqa: F401
    from felix.runner.cpu import runner as cpu_runner  # noqa: F401


class _RelaxWhenUsed(importlib.abc.MetaPathFinder):
    """Loads `tvm.relax` when an attribute of it is first asked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's spec with a lazy loader; None for others."""
        if name != "tvm.relax":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def _work(pipes: Sequence[Connection], settings: dict[str, Any]) -> None:
    """Become a builder, or a worker that runs programs on a CPU or a board, and serve."""
    (conn,) = pipes
    os.environ["TVM_NUM_THREADS"] = str(settings["threads"])
    os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = str(_SPINS)
    if not may_bind(os.sched_getaffinity(0)):
        os.environ["TVM_BIND_THREADS"] = "0"
    worker_main.become(conn, settings)
    worker_main.serve(conn, _verbs(conn, settings))


def _verbs(conn: Connection, settings: dict[str, Any]) -> worker_main.Verbs:
    from felix.builder import build
    from felix.builder.cuda import build as cuda_build
    from felix.runner import board_runner
    from felix.runner.cpu import openmp
    from felix.runner.cpu import runner as cpu_runner

    match settings["role"]:
        case "builder":
            return {
                "build": build.handle,
                "build_cuda": cuda_build.handle,
                "reference": build.handle_reference,
            }
        case "board":
            boards = board_runner.Runner()
            return {"lease": boards.lease, "run": boards.run}
    if openmp.use():
        openmp.set_threads(settings["threads"])
    runner = cpu_runner.Runner(
        "cpu",
        settings["threads"],
        quiet=lambda: worker_main.quiet(conn),
        rest=lambda seconds: worker_main.rest(conn, seconds),
    )
    return {"prepare": runner.prepare, "run": runner.run}


def may_bind(cores: set[int]) -> bool:
    """Whether TVM may pin its threads: it counts cores from 0, whatever a process may use."""
    return cores == set(range(len(cores)))


if __name__ == "__main__":
    fork_loop.serve(sys.argv[1:], _import_tvm, _work)
