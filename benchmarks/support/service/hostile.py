"""What hostile jobs cost a normal key's job, and how soon a cancelled one frees its tuner.

The hostile jobs are written to the store as if reading had let them pass: chains of reductions
whose sketches and formulas take minutes, products whose candidates run until they are stopped, and
one that needs gigabytes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from tvm import te

from benchmarks.support.service import process as service_process
from felix import workloads
from felix.task import Task
from felix.workloads import catalogue
from server import errors, states
from server.store import control, events, job_lists, jobs, keys

N_HOSTILE = 30
N_CANCELS = 5
TARGET = "llvm"


def run(service: service_process.Service, chosen: argparse.Namespace) -> dict[str, Any]:
    """Tune a normal key's job alone and among hostile ones; the figures."""
    name, params = catalogue.parse_params(chosen.workload)
    normal = workloads.build(name, params, TARGET)
    key = _key(service, "normal")
    with service.process("tuner"):
        for _ in range(2):  # the first one fills the caches
            alone = _tenure(service, _ended(service, _queue(service, key, normal, chosen.trials)))
        print(f"alone: {alone['own_s']:.1f} s")
        _queue_hostile(service, chosen.keys)
        _wait(lambda: _running(service) is not None)
        time.sleep(3.0)
        among = _tenure(service, _ended(service, _queue(service, key, normal, chosen.trials)))
        slower = among["own_s"] / alone["own_s"]
        print(
            f"among {N_HOSTILE}: started after {among['start_s']:.1f} s, {among['own_s']:.1f} s "
            f"of the tuner in {among['turns']} turns ({slower:.2f} times), ended after "
            f"{among['total_s']:.1f} s"
        )
        freed_s = [_cancel(service) for _ in range(N_CANCELS)]
    median_s = statistics.median(freed_s)
    print(f"cancelled: free after {median_s:.1f} s, at most {max(freed_s):.1f} s")
    settings = {
        "workload": chosen.workload,
        "trials": chosen.trials,
        "hostile": N_HOSTILE,
        "keys": chosen.keys,
    }
    return settings | {"alone": alone, "among": among, "slower": slower, "freed_s": freed_s}


def products(n: int, depth: int) -> Task:
    """A chain of products of matrices: each has a reduction, and sketches multiply."""

    def product(x: te.Tensor, number: int) -> te.Tensor:
        k = te.reduce_axis((0, n), name=f"k{number}")
        return te.compute(
            (n, n), lambda i, j: te.sum(x[i, k] * x[k, j], axis=k), name=f"product_{number}"
        )

    first = last = te.placeholder((n, n), name="a")
    for number in range(depth):
        last = product(last, number)
    return Task.from_te([first, last], TARGET, name=f"chain of {depth} products")


def centrings(n: int, depth: int) -> Task:
    """A chain of row sums that are subtracted from the rows."""

    def centred(x: te.Tensor, number: int) -> te.Tensor:
        k = te.reduce_axis((0, n), name=f"k{number}")
        total = te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name=f"total_{number}")
        return te.compute((n, n), lambda i, j: x[i, j] - total[i], name=f"centred_{number}")

    first = last = te.placeholder((n, n), name="a")
    for number in range(depth):
        last = centred(last, number)
    return Task.from_te([first, last], TARGET, name=f"chain of {depth} centrings")


def hostile_tasks() -> list[Task]:
    """One task of each kind."""
    return [
        products(64, 6),
        centrings(64, 6),
        workloads.gemm(4096, 4096, 4096, target=TARGET),
        workloads.gemm(16384, 16384, 16384, target=TARGET),
    ]


def _key(service: service_process.Service, name: str) -> int:
    with service.db.write() as tx:
        return keys.create(tx, keys.NewKey(name=name, can_submit=True)).key.id


def _queue_hostile(service: service_process.Service, n_keys: int) -> None:
    owners = [_key(service, f"hostile {number}") for number in range(n_keys)]
    tasks = itertools.cycle(hostile_tasks())
    for number, task in zip(range(N_HOSTILE), tasks, strict=False):
        _queue(service, owners[number % n_keys], task, 1000)


def _queue(service: service_process.Service, key_id: int, task: Task, trials: int) -> int:
    new_task = jobs.NewTask(
        name=task.name,
        weight=1.0,
        flops=float(task.flops),
        min_bytes=float(task.min_bytes),
        program=task.to_json(),
    )
    new = jobs.NewJob(
        name=task.name,
        kind="tir",
        op=task.name,
        workload={},
        target=TARGET,
        target_key=TARGET,
        tasks=(new_task,),
        trials=trials,
        seconds=None,
        strategy="gradient",
    )
    with service.db.write() as tx:
        return jobs.create(tx, new, key_id).job.id


def _running(service: service_process.Service) -> int | None:
    """The job that has the tuner."""
    with service.db.read() as tx:
        page = job_lists.page(tx, job_lists.Filter(states=(states.State.RUNNING,)), limit=1)
    return page.items[0].id if page.items else None


def _ended(service: service_process.Service, job_id: int) -> int:
    def has_ended() -> bool:
        with service.db.read() as tx:
            return jobs.get(tx, job_id).finished_at is not None

    _wait(has_ended, 3600.0)
    return job_id


def _tenure(service: service_process.Service, job_id: int) -> Mapping[str, float]:
    """When a job got its first tuner, and for how long it had one in all."""
    with service.db.read() as tx:
        job = jobs.get(tx, job_id)
        moves = events.after(tx, job_id, kinds=[events.Type.STATE], limit=100_000)
    if job.state is not states.State.SUCCEEDED:
        raise SystemExit(f"job {job_id} {job.state}: {job.message}")
    began: datetime.datetime | None = None
    turns: list[float] = []
    for move in moves:
        if move.to_state == states.State.RUNNING:
            began = move.at
        elif began is not None:
            turns.append((move.at - began).total_seconds())
            began = None
    assert job.started_at is not None and job.finished_at is not None
    return {
        "start_s": (job.started_at - job.created_at).total_seconds(),
        "own_s": sum(turns),
        "turns": len(turns),
        "total_s": (job.finished_at - job.created_at).total_seconds(),
    }


def _cancel(service: service_process.Service) -> float:
    """Seconds from cancelling the job that runs until its tuner has put it down.

    One that ends by itself before it is cancelled, at a limit, says nothing: the next one is.
    """
    while True:
        _wait(lambda: _running(service) is not None)
        job_id = _running(service)
        time.sleep(1.5)
        began_s = time.monotonic()
        if job_id is None or job_id != _running(service):
            continue
        with service.db.write() as tx, contextlib.suppress(errors.IllegalMove):
            control.cancel(tx, job_id)
            break
    _ended(service, job_id)
    return time.monotonic() - began_s


def _wait(condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"nothing came of it in {limit_s:g} s")
        time.sleep(0.05)
