"""A library's process: started with a request, it answers with a latency or the reason for none.

Request and answer are JSON, the answer is the last line the process prints. BLAS and OpenMP take
the number of threads from the environment when they are loaded.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TVM_NUM_THREADS",
)


@dataclasses.dataclass(frozen=True, slots=True)
class LibraryTime:
    """Median latency and how it was measured, or None with the reason."""

    latency_us: float | None
    note: str


def timed(
    child: str, request: Mapping[str, Any], n_threads: int | None, timeout_s: float
) -> LibraryTime:
    """What a module of this package, run as a process, answers to a request."""
    package = str(pathlib.Path(__file__).parents[3])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {} if n_threads is None else dict.fromkeys(_THREAD_VARIABLES, str(n_threads))
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"felix.cli.comparison.{child}"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=os.environ | {"PYTHONPATH": path} | variables,
        )
    except subprocess.TimeoutExpired:
        return LibraryTime(None, f"it took over {timeout_s:.0f} s")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return LibraryTime(None, f"it failed: {lines[-1]}")
    return LibraryTime(**json.loads(done.stdout.splitlines()[-1]))


def threads(count: int) -> str:
    """A number of threads in words."""
    return f"{count} thread{'s' * (count != 1)}"


def request() -> dict[str, Any]:
    """In the process: the request."""
    content: dict[str, Any] = json.load(sys.stdin)
    return content


def answer(latency_us: float | None, note: str) -> None:
    """In the process: answer the request."""
    print(json.dumps(dataclasses.asdict(LibraryTime(latency_us, note))))
