"""Felix and stock MetaSchedule on a network, by seconds of tuning, and what each of them built.

Tuning writes snapshots into a folder, one for each point of the curve; a later process builds the
network from each, so that all of them can be timed in turns.

Felix: `felix.optimize` with the first number of seconds, then the same session with more. The
snapshot is the file of known results. Stock: TVM's pipeline "zero" (legalise, fuse) on the same
import, `tune_relax` until the last number of seconds has passed, and the records that were in its
database by then. Both run as one CUDA graph on a GPU.
"""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import os
import pathlib
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import torch
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

import felix
from benchmarks.networks import catalogue
from benchmarks.support import common
from felix.database import store
from felix.frontend.programs import operators
from felix.network import executable, group_costs, groups, imported, optimize, optimized, outcomes
from felix.network.contenders import contest

Call = Callable[[], Any]
#: Trials that no run of stock's reaches: seconds end it.
_ENDLESS = 1 << 20
_POLL_S = 0.1
#: Files of stock's database; the first one appears when tuning begins.
_STARTED, _WORKLOADS, _RECORDS = "started", "database_workload.json", "database_tuning_record.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network to tune: its name in the catalogue, and how it is made and tuned.

    `seconds` are the points of the curve, in growing order. `fusion` is how Felix groups
    operators; None as it does by itself.
    """

    name: str
    batch: int
    dtype: str
    small: bool
    target: str
    seconds: tuple[float, ...]
    fusion: str | None = None
    seed: int = 0

    def make(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """The model and its inputs on the target's device."""
        model, inputs = catalogue.make(
            self.name, batch=self.batch, dtype=getattr(torch, self.dtype), small=self.small
        )
        place = imported.device_of(felix.target.parse(self.target))
        return model.to(place), tuple(each.to(place) for each in inputs)

    def read(self, known: pathlib.Path | None = None) -> imported.Network:
        """The imported network, grouped as `felix.optimize` does with these known results."""
        model, inputs = self.make()
        full = felix.target.parse(self.target)
        results = None if known is None else store.Store(known)
        grouping = group_costs.grouping(self.fusion, full, results)
        return imported.read(model, inputs, {}, full, grouping=grouping)


# ---------------------------------------------------------------- Felix


def tune_felix(case: Case, folder: pathlib.Path) -> dict[str, Any]:
    """Tune, and snapshot the known results at each point; what each point took."""
    known, points, elapsed_s = folder / "known.sqlite", [], 0.0
    model, inputs = case.make()
    for seconds in case.seconds:
        begin = time.perf_counter()
        felix.optimize(
            model,
            inputs,
            seconds=seconds,
            target=case.target,
            seed=case.seed,
            improve=True,
            known_results=known,
            fusion=case.fusion,
            out=folder / "session",
        )
        elapsed_s += time.perf_counter() - begin
        copy_database(known, snapshot(folder, "felix", seconds))
        points.append({"seconds": seconds, "elapsed_s": elapsed_s})
        common.write(folder / "felix-points.json", points)
    return {"points": points}


def build_felix(case: Case, known: pathlib.Path, before: pathlib.Path | None) -> Call:
    """The network from what was known at a point, grouped by what was known before it."""
    network = case.read(before)
    results = store.Store(known)
    every = groups.of(network.lowered, network.target)
    by_key = {
        task.key: outcome
        for task in groups.tasks(every)
        if (outcome := results.find(task)) is not None
    }
    gathered = outcomes.Outcomes(by_key, frozenset(by_key), None, 0.0)
    contenders = contest.Contest(network, results)
    fast = optimize.from_outcomes(network, every, gathered, contenders)
    inputs = network.examples
    return lambda: fast(*inputs)


def snapshot(folder: pathlib.Path, tool: str, seconds: float) -> pathlib.Path:
    """Where a tool's snapshot of a point lies."""
    return folder / f"{tool}-{seconds:g}s"


def copy_database(source: pathlib.Path, target: pathlib.Path) -> None:
    target.unlink(missing_ok=True)
    with sqlite3.connect(source) as opened, sqlite3.connect(target) as copy:
        opened.backup(copy)


# ---------------------------------------------------------------- stock


def tune_stock(case: Case, folder: pathlib.Path) -> dict[str, Any]:
    """Tune for the last number of seconds; what was in the database at each point.

    Stock tells nothing of the time and searches for minutes before it looks at any result, so it
    works in a process that is ended when the time is up.
    """
    work = folder / "stock"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    process = multiprocessing.get_context("spawn").Process(
        target=_stock_process, args=(case, str(work))
    )
    process.start()
    try:
        moments = _watched(process, work, case.seconds[-1])
    finally:
        _end(process)
    points = []
    for seconds in case.seconds:
        count = max((count for at, count in moments if at <= seconds), default=0)
        _truncated(work, snapshot(folder, "stock", seconds), count)
        points.append({"seconds": seconds, "trials": count})
    return {"points": points}


def _stock_process(case: Case, work: str) -> None:
    os.setsid()  # its workers end with it
    importlib.import_module("tvm.s_tir.tensor_intrin")
    from felix.target import cpu

    network = case.read()
    mod = _stock_module(network)
    builder = ms.builder.LocalBuilder(
        max_workers=cpu.available_cores(), timeout_sec=common.STOCK_BUILD_S
    )
    pathlib.Path(work, _STARTED).touch()
    ms.relax_integration.tune_relax(
        mod,
        {},
        network.target,
        work,
        max_trials_global=_ENDLESS,
        builder=builder,
        seed=case.seed + 1,
    )


def _watched(
    process: multiprocessing.process.BaseProcess, work: pathlib.Path, seconds: float
) -> list[tuple[float, int]]:
    """(seconds since tuning began, records in the database), until the time is up.

    Raises:
        RuntimeError: the process ended before.
    """
    while not (work / _STARTED).exists():
        _check(process)
        time.sleep(_POLL_S)
    begin, moments = time.perf_counter(), [(0.0, 0)]
    while moments[-1][0] < seconds:
        _check(process)
        time.sleep(_POLL_S)
        moments.append((time.perf_counter() - begin, _lines(work / _RECORDS)))
    return moments


def _check(process: multiprocessing.process.BaseProcess) -> None:
    if not process.is_alive():
        raise RuntimeError(f"stock ended by itself, exit code {process.exitcode}")


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """End a process and what it started."""
    if process.pid is not None and process.is_alive():
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.join()


def _lines(path: pathlib.Path) -> int:
    """Whole lines of a file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _truncated(source: pathlib.Path, target: pathlib.Path, count: int) -> None:
    """A copy of a database with its first records."""
    target.mkdir(parents=True, exist_ok=True)
    (target / _WORKLOADS).write_bytes((source / _WORKLOADS).read_bytes() if count else b"")
    lines = (source / _RECORDS).read_text().splitlines(keepends=True)[:count] if count else []
    (target / _RECORDS).write_text("".join(lines))


def build_stock(network: imported.Network, database: pathlib.Path) -> Call:
    """The network with the best records of a database; the rest as TVM schedules it."""
    mod = _stock_module(network)
    opened = ms.database.JSONDatabase(
        str(database / _WORKLOADS), str(database / _RECORDS), allow_missing=True
    )
    with network.target, opened, tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.MetaScheduleApplyDatabase()(mod)
    built = executable.build(mod, network.target, network.imported.parameters)
    runs, _ = optimized.runner(built, network.examples)
    calling, inputs = network.imported.calling, list(network.examples)
    return lambda: calling.rebuild(runs(inputs))


def _stock_module(network: imported.Network) -> tvm.IRModule:
    """The import as TVM's own pipeline groups it."""
    with network.target, tvm.transform.PassContext(opt_level=3):
        return relax.get_pipeline("zero")(operators.expand_attention(network.imported.mod))
