"""CPU seconds in which the sketches and formulas of a task are made.

    python -m tests.corpus.formula_time [--only TEXT] [--every N] [--out FILE]

Of every program of the corpus and of `felix.workloads` (small instances and shapes of networks),
on both targets, with an empty cache: what `felix.tune` does before it searches. Prints the median,
the maximum and the slowest.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable

from benchmarks.support import common
from felix import errors, workloads
from felix.sketch import sketch as sketching
from felix.task import Task
from tests.corpus import outcome

#: Besides the small instances of `workloads.CHECK_SUITE`.
SHAPES = (
    "gemm:1024,1024,1024",
    "gemm:1,4096,4096",
    "gemm:197,1021,509",
    "gemm:128,3072,768",
    "conv2d:1,56,56,64,64,3,padding=1",
    "conv2d:1,7,7,512,512,3,padding=1,epilogue=bias+relu",
    "conv3d:1,16,16,16,32,32,3,padding=1",
    "depthwise_conv2d:1,112,112,32,3,padding=1",
    "conv_transpose2d:1,8,8,128,64",
    "softmax:1536x128",
    "layer_norm:8192x768",
    "reduce:64x131072,axes=1",
)
N_SLOWEST = 12


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Timing:
    """Of one program on one target."""

    cpu_s: float
    name: str
    target: str
    n_sketches: int


def main() -> None:
    """Time what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="one program in so many")
    parser.add_argument("--out", type=pathlib.Path, help="JSON of all times")
    options = parser.parse_args()
    chosen = [name for name in programs() if options.only in name][:: options.every]
    timings = sorted(t for name in chosen for target in outcome.TARGETS for t in of(name, target))
    for timing in timings[-N_SLOWEST:]:
        print(
            f"{timing.cpu_s:6.2f} s {timing.target:4} {timing.name} {timing.n_sketches} sketches"
        )
    if options.out is not None:
        command = ["python -m tests.corpus.formula_time", *common.placeless(sys.argv[1:])]
        data = {"command": " ".join(command), "timings": [*map(dataclasses.asdict, timings)]}
        common.write(options.out, common.header("formula_time") | data)
    seconds = [timing.cpu_s for timing in timings]
    print(
        f"{len(seconds)} tasks, CPU seconds of sketches and formulas: "
        f"median {statistics.median(seconds):.2f}, maximum {max(seconds):.2f}"
    )


def programs() -> dict[str, Callable[[str], Task]]:
    """Name -> the task of a target."""
    corpus = {name: functools.partial(_of_corpus, name) for name in outcome.PROGRAMS}
    shapes = {text: functools.partial(workloads.parse, text) for text in SHAPES}
    return {**corpus, **workloads.CHECK_SUITE, **shapes}


def _of_corpus(name: str, target: str) -> Task:
    return outcome.task(outcome.PROGRAMS[name](), target, name)


def of(name: str, target: str) -> list[Timing]:
    """The time of one program; none where it is refused."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FELIX_CACHE_DIR"] = cache
        try:
            task = programs()[name](target)
            start_s = _cpu_s()
            sketches = sketching.trace_sketches(task)
        except errors.FelixError:
            return []
        for sketch in sketches:
            try:
                sketch.sample(1, seed=1, max_structures=1)
            except errors.FelixError:
                continue  # a sketch without legal schedules
        return [Timing(_cpu_s() - start_s, name, target, len(sketches))]


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    main()
