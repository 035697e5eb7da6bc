"""What steps of a descent are worth: the lowest predictions that searches of several lengths find.

    python benchmarks/descent_steps.py [--steps 0 25 32 50 100 200] [--seeds 2] [--rounds 4]

For every subgraph of `subgraphs`, an H200 target and the shipped cost model, the gradient search
proposes a warm-up round of 8 and `--rounds` of 24, and is updated as if each candidate took what
the model predicted. The model does not change and nothing is measured, so the lowest prediction
says how well the search minimises, and nothing else. 0 steps leave sampling, polishing and
neighbours. A round's descent records ten points on the way whatever its length. *of best*: the
lowest prediction that any search of the subgraph ended with, over this one's; geometric means. No
GPU is needed.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, subgraphs

TARGET = "h200"
RECORDED = 10
OUT = common.RESULTS / "gpu-search" / "descent_steps.json"


def piece(name: str, steps: int, seed: int, rounds: int) -> dict[str, Any]:
    """One search: lowest predictions after each round, in us, and the CPU time of each, in s."""
    import torch

    import felix
    from costmodel import registry
    from felix import search, workloads
    from felix.features import spec
    from felix.measure import protocol
    from felix.search import descent

    torch.set_num_threads(1)
    task = workloads.parse(subgraphs.SUBGRAPHS[name], target=TARGET)
    sketches = felix.trace_sketches(task)
    model, _ = registry.load_for(task.target, spec.NAMES, spec.FEATURES_VERSION)
    moving = descent.DescentOptions(steps=steps, record_every=max(1, steps // RECORDED))
    searcher = search.GradientSearch(sketches, model, search.GradientOptions(descent=moving), seed)
    best_us, after_rounds_us, seconds = math.inf, [], []
    for number in range(1 + rounds):
        start = time.process_time()
        suggestions = searcher.suggest(24 if number else 8)
        seconds.append(time.process_time() - start)
        best_us = min([best_us, *(s.predicted_us for s in suggestions)])
        after_rounds_us.append(best_us)
        searcher.update(
            [(s, protocol.Measurement(latency_us=s.predicted_us)) for s in suggestions]
        )
    return {
        "name": name,
        "steps": steps,
        "seed": seed,
        "best_us": after_rounds_us,
        "seconds": seconds,
    }


def summary(pieces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per number of steps: share of the best after each descending round, CPU time of one."""
    ends = {p["name"]: math.inf for p in pieces}
    for p in pieces:
        ends[p["name"]] = min(ends[p["name"]], p["best_us"][-1])
    rows = []
    for steps in sorted({p["steps"] for p in pieces}):
        same = [p for p in pieces if p["steps"] == steps]
        shares = [
            statistics.geometric_mean(ends[p["name"]] / p["best_us"][number] for p in same)
            for number in range(1, len(same[0]["best_us"]))
        ]
        seconds = statistics.fmean(s for p in same for s in p["seconds"][1:])
        rows.append({"steps": steps, "searches": len(same), "of_best": shares, "round_s": seconds})
    return rows


def render(data: dict[str, Any]) -> str:
    """The table of a results file."""
    rows = [[s["steps"], s["searches"], s["round_s"], *s["of_best"]] for s in data["summary"]]
    rounds = [f"of best, round {number + 1}" for number in range(len(rows[0]) - 3)]
    return common.table(["steps", "searches", "CPU s a round", *rounds], rows)


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = list(subgraphs.SUBGRAPHS)
    parser.add_argument("--subgraphs", nargs="+", choices=names, default=names)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 25, 32, 50, 100, 200])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4, help="after the warm-up")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    head = common.header("descent_steps")
    pieces = []
    for name in args.subgraphs:
        for seed in range(args.seeds):
            for steps in args.steps:
                pieces.append(piece(name, steps, seed, args.rounds))
                print(pieces[-1], flush=True)
    data = {**head, "target": TARGET, "pieces": pieces, "summary": summary(pieces)}
    common.write(args.out, data)
    print(render(data))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
