"""What the two lanes of a run do: `tuning` has Felix's pieces, `libraries` those of PyTorch.

What is shared and what is not:
  GPU     not shared while anybody times or chooses kernels: both take the device's lock, the pool
          for each candidate, the libraries for their inputs, their choices and all of the timing
          in turns. Each process has its context, which is idle meanwhile.
  CPU     shared: inductor compiles in its workers while Felix searches and builds, so the seconds
          of a search are longer than those of one that has the machine. Inductor's workers have a
          lower priority, as Felix's builders have. What candidates waited for the lock is in the
          seconds, and apart in `lock_wait_s`.
  state   pools of measuring workers live for all shapes, as in the service; a search has an empty
          formula cache of its own. What modules remember of expressions stays in the process.
          Compiled functions are forgotten before those of the next shape are prepared.

Latencies are made as by pieces in processes of their own: eager, inductor, Felix's winner and
first choice by one process, in turns, with a cold L2.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from benchmarks.support.lanes import device
from benchmarks.support.searches import pieces as searched
from benchmarks.support.searches import timing, tuned

Do = Callable[[dict[str, Any]], None]
#: Niceness of processes that compile for the libraries: that of Felix's builders.
NICE = 10


@contextlib.contextmanager
def tuning() -> Iterator[Do]:
    """Does requests of "felix" and "first" with pools that stay."""
    from benchmarks.support.generated import first_choice
    from server.tuner import warm_pools

    waits = device.Waits()
    with waits.counted(), warm_pools.Pools() as pools, _WarmTimes() as warm:

        def do(request: dict[str, Any]) -> None:
            with tempfile.TemporaryDirectory() as cache:
                os.environ["FELIX_CACHE_DIR"] = cache
                if request["strategy"] == "first":
                    results = first_choice.piece(
                        request, lambda task: pools.take(task).for_task(task)
                    )
                else:
                    results = tuned.tune(request, pools, waits, warm.us)
                searched.write(request, results)
            gc.collect()

        yield do


class _WarmTimes:
    """Latencies with a warm L2, by one pool of one target for all."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._pool: Any = None

    def us(self, task: Any, program: Any) -> float | None:
        """Of a program; None: it fails."""
        from felix.measure.pool import local

        if self._pool is None:
            pool = local.LocalPool(task, timing.warm_options())
            self._pool = self._open.enter_context(pool)
        (measured,) = self._pool.for_task(task).measure([program])
        latency_us: float | None = measured.latency_us
        return latency_us

    def __enter__(self) -> _WarmTimes:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.close()


@contextlib.contextmanager
def libraries() -> Iterator[Do]:
    """Does requests to prepare the libraries of a shape, and to time what was prepared last."""
    from felix.measure.pool.locks import device_lock

    turn = device.Turn(device_lock.for_device("cuda"))
    with device.shared_while_compiling(turn) as shares:
        work = Libraries(turn, shares)
        yield lambda request: work.do(request)


class Libraries:
    """The libraries' calls for one shape at a time, from preparing to timing.

    Args:
        turn: the GPU's lock.
        shares: whether inductor lets it go while it compiles.
    """

    def __init__(self, turn: device.Turn, shares: bool) -> None:
        self._turn, self._shares = turn, shares
        self._prepared: tuple[str, dict[str, dict[str, Any]]] | None = None
        self._seconds: dict[str, float] = {}

    def do(self, request: dict[str, Any]) -> None:
        """One phase of a request, "prepare" or "time"; timing prepares what is not prepared."""
        if request["phase"] == "prepare":
            self._prepare(request)
        else:
            self._time(request)

    def _prepare(self, request: dict[str, Any]) -> dict[str, dict[str, Any]]:
        from benchmarks.support import vendor

        start, self._turn.held_s = time.monotonic(), 0.0
        calls = vendor.calls(request["workload"], self._turn)
        vendor.prepare(calls, self._turn)
        self._prepared = request["path"], calls
        self._seconds = {
            "prepare_s": time.monotonic() - start,
            "prepare_lock_s": self._turn.held_s,
        }
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.nice(NICE)
        return calls

    def _time(self, request: dict[str, Any]) -> None:
        from benchmarks.support import vendor

        path, calls = self._prepared or ("", {})
        if path != request["path"]:
            calls = self._prepare(request)
        start = time.monotonic()
        felix = searched.felix_calls(request, self._turn)
        with self._turn.taken():
            by_layout = vendor.in_turns_us(calls, felix)
            self._prepared = None
            calls, felix = {}, {}
            gc.collect()  # memory of the GPU is given back while it is ours
        pathlib.Path(request["path"]).parent.mkdir(parents=True, exist_ok=True)
        searched.write(
            request,
            {
                "latency_us": vendor.best(by_layout),
                "by_layout_us": by_layout,
                "time_s": time.monotonic() - start,
                "shares_while_compiling": self._shares,
                **self._seconds,
            },
        )
