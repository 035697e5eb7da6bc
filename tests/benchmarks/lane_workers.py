"""What lanes of tests do: write that they began and ended, with the device's lock while timing."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.support import winners
from felix.measure.pool.locks import device_lock

Do = Callable[[dict[str, Any]], None]
#: Names of shapes that fail in a lane.
FAILS_TUNING, CRASHES_LIBRARIES = "layer-norm", "softmax"


def note(request: dict[str, Any], what: str) -> None:
    """Add a line to the journal of the run: what, who, which shape, when, by which process."""
    path = pathlib.Path(request["path"]).parent / "journal.jsonl"
    line = [what, request["strategy"], request["name"], time.monotonic(), os.getpid()]
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


@contextlib.contextmanager
def tuning(
    until: Callable[[dict[str, Any]], None] = lambda request: time.sleep(0.5),
) -> Iterator[Do]:
    """A search that takes half a second, or as long as `until` does."""

    def do(request: dict[str, Any]) -> None:
        note(request, "begins")
        if request["name"] == FAILS_TUNING:
            raise ValueError("this shape cannot be tuned")
        until(request)
        path = pathlib.Path(request["path"])
        path.with_suffix(winners.SUFFIX).write_text("[]")
        write(request, {"wall_s": 0.5, "n_measured": 1, "curve": [[1, 0.1, 5.0]]})

    yield do


def await_preparing(request: dict[str, Any]) -> None:
    """Wait until the libraries of the shape begin to be prepared; the test says if they do not."""
    journal = pathlib.Path(request["path"]).parent / "journal.jsonl"
    begins = json.dumps(["prepare", "vendor", request["name"]])[:-1]
    until_s = time.monotonic() + 30
    while begins not in journal.read_text() and time.monotonic() < until_s:
        time.sleep(0.01)


@contextlib.contextmanager
def libraries(lock_dir: pathlib.Path) -> Iterator[Do]:
    """Libraries that are prepared in 0.4 s and timed in 0.1 s with the lock of a device."""
    lock = device_lock.DeviceLock(lock_dir / "a.lock")

    def do(request: dict[str, Any]) -> None:
        note(request, request["phase"])
        if request["phase"] == "prepare":
            if request["name"] == CRASHES_LIBRARIES:
                os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(0.4)
            return
        lock.acquire()
        time.sleep(0.1)
        lock.release()
        write(request, {"latency_us": {"eager": 2.0, "inductor": 1.0, "felix": 1.0}})

    yield do


@contextlib.contextmanager
def hanging() -> Iterator[Do]:
    """Never done."""
    yield lambda request: time.sleep(60)


def write(request: dict[str, Any], results: dict[str, Any]) -> None:
    """A piece, whole, and that it ended."""
    piece = {key: request[key] for key in ("name", "workload", "seed", "strategy", "lanes")}
    text = json.dumps(piece | {"date": "2030-01-01"} | results)
    pathlib.Path(request["path"]).write_text(text)
    note(request, "ends")
