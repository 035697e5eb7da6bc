"""Everything `felix.tune` needs, without TVM schedules or processes: sketches and pools."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from rich import console

import felix
from benchmarks.support.searches import baselines
from felix import errors, workloads
from felix.cli import report
from felix.database import records
from felix.measure import locks
from felix.measure.measurer import Measurer
from felix.runner import protocol
from felix.search import cost_model, gradient
from felix.task import Task
from felix.tuning import options, pacing, results, task_search
from tests.support import synthetic, waiting, warm
from tests.support.function_measurer import FunctionMeasurer

UNSCHEDULED_US = 5000.0


@dataclasses.dataclass(frozen=True)
class Program:
    """Stands for a scheduled module."""

    sketch: int
    decisions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Stands for a TVM schedule."""

    mod: Program


class Sketch(synthetic.FakeSketch):
    """A synthetic sketch whose schedules are `Program`s; those `reject` says are invalid."""

    reject: Callable[[tuple[int, ...]], bool] | None = None

    def schedule(self, row: np.ndarray) -> Schedule:
        decisions = tuple(int(value) for value in row)
        if self.reject is not None and self.reject(decisions):
            raise errors.InvalidSchedule("the fake rejects it")
        return Schedule(Program(self.index, decisions))

    def program(self, row: np.ndarray) -> Program:
        return self.schedule(row).mod


def latency_us(mod: Any) -> float:
    """About 10 us at the optimum of the synthetic sketches, more elsewhere."""
    if not isinstance(mod, Program):
        return UNSCHEDULED_US
    optimum = (8, 2, 16, 4)
    tiles = mod.decisions[:8]
    distance = sum((math.log(v) - math.log(optimum[i % 4])) ** 2 for i, v in enumerate(tiles))
    return 10.0 * math.exp(0.2 * distance) * (1 + 0.1 * mod.sketch)


@dataclasses.dataclass
class Pool:
    """A pool without processes; `seconds` is what each candidate takes, by `wait`."""

    latency_of: Callable[[Any], float | protocol.ErrorClass] = latency_us
    seconds: float = 0.0
    wait: Callable[[float], None] = time.sleep
    measured: list[Program] = dataclasses.field(default_factory=list)
    closed: bool = False
    is_idle: bool = True
    unconfined: str | None = None
    n_devices: int = 1
    timing_lock: locks.ReadWriteLock = dataclasses.field(default_factory=locks.ReadWriteLock)

    def for_task(self, task: Task) -> Measurer:
        def measure(mod: Any) -> float | protocol.ErrorClass:
            if isinstance(mod, Program):
                self.measured.append(mod)
                self.wait(self.seconds)
            return self.latency_of(mod)

        return FunctionMeasurer(measure)

    def close(self) -> None:
        self.closed = True


class Clock(pacing.Clock):
    """A clock on which only `wait` takes time, however busy the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    @property
    def elapsed_s(self) -> float:
        return self._now_s

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds


class Model(torch.nn.Module):
    """A trainable model of the synthetic rows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.1))
        self.bias = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.bias + self.scale * (rows[..., 0] * mask).sum(dim=1)


def use(monkeypatch: pytest.MonkeyPatch, make: Callable[[Task], list[Any]] | None = None) -> None:
    """Let tasks have synthetic sketches."""
    monkeypatch.setattr(task_search, "sketches_of", lambda task, *_: (make or sketches)(task))


def use_cheap(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let runs of any strategy take random schedules of synthetic sketches, with a fake model."""
    set_attribute(task_search, "sketches_of", sketches)
    set_attribute(cost_model, "load", lambda *_: cost_model.Loaded(Model(), "a fake model"))
    set_attribute(options.TuneOptions, "maker", lambda *_: baselines.RandomSearch)


def sketches(task: Task, *_: Any) -> list[Any]:
    """Two sketches; tasks of other sizes get other ones."""
    extent = int(task.func.params[0].shape[0])
    return [Sketch(extents=(16 * extent, 1024), index=index) for index in range(2)]


def task(m: int = 64, weight: float = 1.0) -> Task:
    """A real task, of which only name, key and numbers are used."""
    made = workloads.gemm(m, 64, 64, target="llvm -num-cores 2")
    return dataclasses.replace(made, weight=weight)


#: Small rounds, without descents; and with one.
SIZES = gradient.GradientOptions(
    n_samples=16, n_before=0, n_polish=1, n_warm_polish=8, n_structures=0
)
DESCENDING = dataclasses.replace(SIZES, n_structures=1, n_seeds=2)


def small(pool: Pool | None = None, **changes: Any) -> options.TuneOptions:
    """Options for quick runs with a fake pool."""
    chosen = pool or Pool()
    defaults: dict[str, Any] = {
        "round_size": 8,
        "n_remeasured": 0,
        "remeasure_pause_s": 0.0,
        "search": SIZES,
        "pool": lambda task: chosen,
    }
    return options.TuneOptions(**(defaults | changes))


def tune(
    tasks: Any = None,
    pool: Pool | None = None,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """`felix.tune` of a small task on a fake pool, 32 trials unless it says otherwise."""
    arguments = {"trials": 32, "model": Model(), **arguments}
    return felix.tune(tasks or task(), options=small(pool, **(options or {})), **arguments)


def record(
    decisions: tuple[int, ...], measurement: protocol.Measurement, **more: Any
) -> records.Trial:
    """The record of a candidate of some task."""
    fields: dict[str, Any] = {
        "task_key": "key",
        "task_name": "gemm",
        "sketch_index": 0,
        "sketch_key": "s",
        "predicted_us": None,
        "round": 0,
        "elapsed_s": 1.5,
        "timestamp": 1.7e9,
        "versions": records.versions(),
    }
    return records.Trial(decisions=decisions, measurement=measurement, **(fields | more))


def report_text(
    tasks: Sequence[results.TuneResult], compared: Sequence[report.Compared] | None = None
) -> str:
    """What a command prints of results."""
    out, of_each = io.StringIO(), compared or [{}] * len(tasks)
    report.show(console.Console(file=out, width=200), tasks, of_each, tasks[0].breakdown)
    return out.getvalue()


def keys(result: results.TuneResult) -> list[records.Key]:
    """Of the measured candidates, in their order."""
    return [record.key for record in result.records]


def killed(script: str, out: pathlib.Path) -> list[records.Trial]:
    """Run Python text that tunes in `out`, its argument; kill it after 20 trials; its records."""
    root = pathlib.Path(__file__).parents[2]
    victim = warm.Popen(
        [sys.executable, "-c", script, str(out)],
        warm=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    log = out / "tuning" / "records.jsonl"
    waiting.until(lambda: log.exists() and log.read_bytes().count(b"\n") >= 21)
    assert victim.poll() is None, "the victim ended by itself"
    victim.kill()
    victim.wait()
    return list(records.read(log))
