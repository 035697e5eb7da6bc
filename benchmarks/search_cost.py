"""What searching costs: CPU seconds of opening a task's sketches and of rounds of proposals.

    python benchmarks/search_cost.py [--only NAME ...] [--seeds 1] [--rounds 4]

Each workload is searched for an H200 with the shipped cost model, as `felix.tune` does: its
sketches are made and opened, then the default search proposes a warm-up round of 8 and
`--rounds` of 24, and is updated as if each candidate took what the model predicted. Nothing is
built or measured, so no GPU is needed. *Cold* starts with an empty formula cache, *warm* again
with what the cold search left there. Each search has a process of its own, one thread, and what
a process pays once (imports, the first call of each library) is not counted. The median of the
seeds counts. *structures*: those whose formulas a search compiled or loaded. Writes
benchmarks/results/formulas/search_cost.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, subgraphs

TARGET = "h200"
#: Of `subgraphs`.
WORKLOADS = (
    "gemm",
    "gemm-primes",
    "gemm-row",
    "conv2d-3x3",
    "conv3d",
    "transposed",
    "softmax",
    "layer-norm",
)
#: Searched before the clock starts: what a process pays once.
FIRST = "reduce:8x8,axes=1"
N_WARM_UP, N_ROUND = 8, 24
CACHES = ("cold", "warm")
OUT = common.RESULTS / "formulas" / "search_cost.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One search with the formula cache in `folder`."""

    name: str
    cache: str
    seed: int
    rounds: int
    folder: str


def piece(job: Job) -> dict[str, Any]:
    """One search in this process: CPU seconds of opening and of the rounds, and what it found."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as other:
        os.environ["FELIX_CACHE_DIR"] = other
        _search(FIRST, 0, 1)
    os.environ["FELIX_CACHE_DIR"] = job.folder
    text = (subgraphs.SUBGRAPHS | subgraphs.AWKWARD)[job.name]
    return {
        "name": job.name,
        "workload": text,
        "cache": job.cache,
        "seed": job.seed,
        **_search(text, job.seed, job.rounds),
    }


def _search(text: str, seed: int, rounds: int) -> dict[str, Any]:
    import felix
    from costmodel import registry
    from felix import search, workloads
    from felix.features import spec

    task = workloads.parse(text, target=TARGET)
    model, _ = registry.load_for(task.target, spec.NAMES, spec.FEATURES_VERSION)
    start = time.process_time()
    sketches = _opened(felix.trace_sketches(task))
    opened = time.process_time()
    searcher = search.GradientSearch(sketches, model, seed=seed)
    best_us = _proposed(searcher, rounds)
    end = time.process_time()
    return {
        "sketches": len(sketches),
        "structures": len(searcher.scorer.known),
        "open_s": opened - start,
        "rounds_s": end - opened,
        "best_us": best_us,
    }


def _opened(sketches: Sequence[Any]) -> list[Any]:
    """The sketches that a search of the task has, their first formulas made."""
    from felix import errors
    from felix.space import diversity

    result = []
    for sketch in diversity.searched(sketches):
        try:
            sketch.sample(1, seed=1, max_structures=1)
            result.append(sketch)
        except (errors.InvalidSchedule, errors.UnsupportedSchedule):
            continue
    return result


def _proposed(searcher: Any, rounds: int) -> float:
    """The lowest prediction, in us, among what the rounds propose."""

    best_us = math.inf
    for number in range(1 + rounds):
        candidates = searcher.ask(N_ROUND if number else N_WARM_UP)
        best_us = min([best_us, *(s.predicted_us for s in candidates)])
        searcher.tell([(s, s.predicted_us) for s in candidates])
    return best_us


def summary(pieces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the seeds of each workload, cold and warm."""
    rows = []
    for name in dict.fromkeys(piece["name"] for piece in pieces):
        row: dict[str, Any] = {"name": name}
        for cache in CACHES:
            same = [p for p in pieces if (p["name"], p["cache"]) == (name, cache)]
            for key in ("open_s", "rounds_s"):
                row[f"{cache}_{key}"] = statistics.median(p[key] for p in same)
            row[f"{cache}_s"] = statistics.median(p["open_s"] + p["rounds_s"] for p in same)
            row |= {key: same[0][key] for key in ("workload", "sketches")}
            row["structures"] = statistics.median(p["structures"] for p in same)
        rows.append(row)
    return rows


def render(data: dict[str, Any]) -> str:
    """The table of a results file."""
    rows = [
        [
            row["workload"],
            row["sketches"],
            row["cold_s"],
            f"{row['cold_open_s'] / row['cold_s']:.0%}",
            row["warm_s"],
        ]
        for row in data["summary"]
    ]
    head = ["sketches", "cold s", "of which opening", "warm s"]
    return common.table(["workload", *head], rows)


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4, help="after the warm-up")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    head = common.header("search_cost")
    pieces = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in args.only:
            for seed in range(args.seeds):
                with tempfile.TemporaryDirectory() as folder:
                    for cache in CACHES:
                        job = Job(name, cache, seed, args.rounds, folder)
                        pieces.append(pool.apply(piece, (job,)))
                        print(pieces[-1], flush=True)
    data = {
        **head,
        "target": TARGET,
        "candidates": N_WARM_UP + args.rounds * N_ROUND,
        "summary": summary(pieces),
    }
    common.write(args.out, data)
    print(render(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
