"""A made-up device and design space to collect from: schedules whose speed is known."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.collect import collector, proposals
from costmodel.data import dataset
from felix import errors
from felix.runner import protocol
from felix.space.variables import Variable

TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
NAMES = ("trip_count", "float_ops")
DIVISORS = (1, 2, 3, 4, 6, 12)
VARIABLES = (
    *(Variable(f"t{i}", "tile", DIVISORS, 0, 12, i, False, True) for i in range(2)),
    Variable("u", "choice", (0, 16, 64), 1, None, 0, False, False),
    Variable("c", "choice", (-1, 0), 2, None, 0, True, False),
)


def workload(number: int, operator: str = "gemm") -> dataset.Workload:
    params = f'{{"m":{number}}}'
    key = dataset.workload_key(operator, params, None)
    return dataset.Workload(key, f"{operator}_{number}", operator, params, None, 10, 20)


class FakeFormulas:
    names = NAMES

    def constraints_exact(self, batch: np.ndarray) -> np.ndarray:
        return (batch[:, 1:2] - 6).astype(np.float64)  # second tile part at most 6

    def exact(self, batch: np.ndarray) -> np.ndarray:
        return batch[:, None, :2].astype(np.float64)


class FakeSketch:
    """A tiling of 12 into two parts, an unroll step, a compute location."""

    variables = VARIABLES
    formulas = FakeFormulas()
    is_gpu = False

    def __init__(self, index: int, invalid: bool = False) -> None:
        self.index = index
        self.invalid = invalid

    @property
    def key(self) -> str:
        return f"sketch-{self.index}"

    def sample(self, n: int, seed: int, max_structures: int = 1) -> np.ndarray:
        draws = np.random.default_rng(seed)
        inner = draws.choice((1, 2, 3, 4, 6), n)
        return np.stack(
            [12 // inner, inner, draws.choice((0, 16, 64), n), draws.choice((-1, 0), n)], axis=1
        )

    def program(self, row: np.ndarray) -> Any:
        if self.invalid:
            raise errors.InvalidSchedule
        return (self.index, *map(int, row))


def speed(mod: tuple[int, ...]) -> float:
    return 10.0 + abs(mod[1] - 4) + mod[3] / 64


@dataclasses.dataclass
class Bench:
    """Measures fake modules at once; `answer` decides."""

    answer: Callable[[tuple[int, ...]], float | protocol.ErrorClass] = speed
    submitted: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    opened: list[str] = dataclasses.field(default_factory=list)
    sketches: tuple[FakeSketch, ...] = (FakeSketch(0), FakeSketch(1))
    holding: int = 0

    def submit(self, mod: tuple[int, ...]) -> Future[protocol.Measurement]:
        self.submitted.append(mod)
        future: Future[protocol.Measurement] = Future()
        outcome = self.answer(mod)
        if isinstance(outcome, protocol.ErrorClass):
            future.set_result(protocol.Measurement(error=outcome, message="no", device="bench"))
        else:
            future.set_result(protocol.Measurement.timed([outcome, outcome], device="bench"))
        return future

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        self.holding += 1
        yield

    def open(self, owner: dataset.Workload) -> proposals.OpenWorkload:
        self.opened.append(owner.name)
        return proposals.OpenWorkload(owner, self.sketches, self.submit, self.computing)

    def run(
        self, folder: Path, owners: list[dataset.Workload], **kwargs: Any
    ) -> collector.Progress:
        clock = kwargs.pop("clock", lambda: 0.0)
        predict = kwargs.pop("predict", None)
        report = kwargs.pop("report", None)
        with dataset.Writer(folder, 4) as writer:
            known = dataset.read(folder).records
            writer.add_workloads(owners)
            settings = proposals.CollectOptions("llvm", "0.27", **{"turn": 4, **kwargs})
            environment = collector.Environment(self.open, clock, lambda: TIME, predict, report)
            return collector.collect(environment, owners, writer, known, settings)
