"""Stock MetaSchedule as a peer: `tune_relax` on a network for some seconds, as TVM builds it.

TVM's pipeline "zero" (legalise, fuse) groups the operators of Felix's import. Stock tells nothing
of the time and searches for minutes before it looks at any result, so it tunes in a process that
is ended when the time is up. What its database has by then is applied, and the rest has TVM's
default schedules. On a GPU calls are one CUDA graph, as Felix's are.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pathlib
import signal
import time
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

import felix
from benchmarks.networks import peers
from benchmarks.support import common
from felix.frontend.programs import operators
from felix.network import executable, imported, optimized

if TYPE_CHECKING:
    from benchmarks.networks import case as cases

#: Trials that no run reaches: seconds end it.
_ENDLESS = 1 << 20
_POLL_S = 0.1
#: Appears when tuning begins.
_STARTED = "started"
_DATABASE = ("database_workload.json", "database_tuning_record.json")


def make(case: cases.Case, folder: pathlib.Path) -> peers.Call:
    """The network after as many seconds of tuning as the case has.

    Args:
        case: the network.
        folder: for the database; it is made.

    Raises:
        RuntimeError: tuning ended by itself.
    """
    folder.mkdir()
    process = multiprocessing.get_context("spawn").Process(target=_tune, args=(case, str(folder)))
    process.start()
    try:
        while process.is_alive() and not (folder / _STARTED).exists():
            time.sleep(_POLL_S)
        process.join(case.seconds)
        if not process.is_alive():
            raise RuntimeError(f"stock ended by itself, exit code {process.exitcode}")
    finally:
        _end(process)
    for name in _DATABASE:
        drop_partial_line(folder / name)
    return build(case, folder)


def _tune(case: cases.Case, folder: str) -> None:
    os.setsid()  # its workers end with it
    importlib.import_module(peers.INTRINSICS)
    from felix.target import cpu

    network = _read(case)
    mod = _grouped(network)
    builder = ms.builder.LocalBuilder(
        max_workers=cpu.available_cores(), timeout_sec=common.STOCK_BUILD_S
    )
    pathlib.Path(folder, _STARTED).touch()
    ms.relax_integration.tune_relax(
        mod, {}, network.target, folder, max_trials_global=_ENDLESS, builder=builder, seed=1
    )


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """End a process and what it started."""
    if process.pid is not None and process.is_alive():
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.join()


def drop_partial_line(path: pathlib.Path) -> None:
    """Leave the whole lines of a file that was being written, if there is one."""
    if path.exists():
        content = path.read_bytes()
        path.write_bytes(content[: content.rfind(b"\n") + 1])


def build(case: cases.Case, database: pathlib.Path) -> peers.Call:
    """The network with the best records of a database; the rest as TVM schedules it."""
    network = _read(case)
    mod = _grouped(network)
    paths = [str(database / name) for name in _DATABASE]
    opened = ms.database.JSONDatabase(*paths, allow_missing=True)
    with network.target, opened, tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.MetaScheduleApplyDatabase()(mod)
    built = executable.build(mod, network.target, network.imported.parameters)
    runs, _ = optimized.runner(built, network.examples)
    return lambda: network.imported.calling.rebuild(runs(network.examples))


def _read(case: cases.Case) -> imported.Network:
    """The network, imported and not lowered."""
    full = felix.target.parse(case.target)
    return imported.read(*case.make(), {}, full, can_lower=lambda: False)


def _grouped(network: imported.Network) -> tvm.IRModule:
    """The import as TVM's own pipeline groups it."""
    with network.target, tvm.transform.PassContext(opt_level=3):
        return relax.get_pipeline("zero")(operators.expand_attention(network.imported.mod))
