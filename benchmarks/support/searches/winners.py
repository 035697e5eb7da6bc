"""The winners of all searches of a subgraph, timed in turns by one process.

Each search has timed its own winner, minutes apart and in processes of their own; kernels of a few
microseconds differ by some per cent from process to process. So who is faster is decided here:
a burst of repeats of each, then the next burst of each, with a cold L2, and the median of all.

Programs in (scheduled modules, or what templates generated), latencies in microseconds out.
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felix.measure import local
    from felix.task import Task
    from felix.templates.generated import Program

#: Bursts of each program that is not slower than the fastest by more than this factor.
TURNS, MARGIN = 20, 1.25
SUFFIX = ".programs"
#: What stock could build must not be lost when it is built again.
REBUILD_S, REBUILD_SOURCE_BYTES = 60.0, 1 << 30


def write(piece: pathlib.Path, task: Task, programs: Sequence[Program]) -> None:
    """Write the programs that may be a search's winner, if any, beside its piece."""
    from felix.builder import payload

    texts = [payload.of(program, task.target) for program in programs]
    piece.with_suffix(SUFFIX).write_text(json.dumps(texts))


def read(pieces: Mapping[str, pathlib.Path]) -> dict[str, list[Program]]:
    """The programs that `write` wrote, by the name of the search; of pieces that are there.

    Raises:
        FileNotFoundError: a piece is there and its programs are not, or there are no two.
    """
    done = {name: path.with_suffix(SUFFIX) for name, path in pieces.items() if path.exists()}
    missing = [name for name, path in done.items() if not path.exists()]
    if missing or len(done) < 2:
        what = f"no programs of {', '.join(missing)}" if missing else "fewer than two searches"
        raise FileNotFoundError(f"{what}: run the searches again, in this work folder")
    return {name: read_one(path) for name, path in done.items()}


def read_one(piece: pathlib.Path) -> list[Program]:
    """The programs that `write` wrote beside one piece."""
    from felix.builder import payload

    read = [payload.read(text) for text in json.loads(piece.with_suffix(SUFFIX).read_text())]
    return [one.mod if isinstance(one, payload.TirProgram) else one for one in read]


def patient(task: Task) -> local.LocalPool:
    """A pool that builds whatever stock could build."""
    from felix.measure import local

    options = local.LocalOptions(build_timeout_s=REBUILD_S, max_source_bytes=REBUILD_SOURCE_BYTES)
    return local.LocalPool(task, options)


def timed(task: Task, programs: Mapping[str, Sequence[Program]]) -> dict[str, Any]:
    """Median latency of every search's fastest program; None: none of them ran."""

    every = [(name, one) for name, some in programs.items() for one in some]
    latencies: list[list[float]] = [[] for _ in every]
    left = list(range(len(every)))
    with patient(task) as pool:
        for turn in range(TURNS):
            futures = [pool.submit(every[number][1], thorough=True) for number in left]
            for number, future in zip(left, futures, strict=True):
                latencies[number].extend(future.result().latencies_us)
            if turn == 0:
                left = _near_the_best(latencies)
    medians: dict[str, list[float]] = {name: [] for name in programs}
    for (name, _), times_us in zip(every, latencies, strict=True):
        if times_us:
            medians[name].append(statistics.median(times_us))
    return {"median_us": {name: min(us, default=None) for name, us in medians.items()}}


def _near_the_best(latencies: Sequence[Sequence[float]]) -> list[int]:
    medians = [statistics.median(times_us) if times_us else math.inf for times_us in latencies]
    limit_us = MARGIN * min(medians, default=math.inf)
    return [number for number, us in enumerate(medians) if us <= limit_us < math.inf]
