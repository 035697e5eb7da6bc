"""How many proposals of local search TVM accepts, beside uniform sampling.

    python benchmarks/proposals.py [--proposals 48] [--uniform 200]

For each workload and target, rounds of local search (shipped or analytic cost model,
nothing measured) propose schedules, and TVM applies the trace and its postprocessors to each.
*Uniform* is TVM's own sampler on the same sketches, judged in the same way. No GPU is needed.
Writes benchmarks/results/formulas/proposals.json.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common

WORKLOADS = (
    "gemm:512,512,512,epilogue=bias+relu",
    "gemm:197,768,3072",
    "conv2d:1,56,56,64,64,3,padding=1",
    "depthwise_conv2d:1,56,56,64,3,padding=1",
    "softmax:1024x1024",
    "layer_norm:1024x1024",
    "reduce:64x4096,1",
)
OUT = common.RESULTS / "formulas" / "proposals.json"


def judge(text: str, target: str, proposals: int, uniform: int) -> dict[str, Any]:
    """How many of the search's proposals and of uniform samples TVM accepts."""
    import felix
    from costmodel import registry
    from felix import errors, search, workloads
    from felix.features import spec
    from felix.workloads import catalogue

    operator, params = catalogue.parse_params(text)
    task = workloads.build(operator, params, target)
    sketches = felix.trace_sketches(task)
    model, info = registry.load_for(task.target, spec.NAMES, spec.FEATURES_VERSION)
    searcher = search.LocalSearch(sketches, model, seed=0)
    suggestions: list[Any] = []
    while missing := proposals - len(suggestions):
        batch = searcher.suggest(min(16, missing))
        if not batch:
            break
        suggestions += batch
    accepted = 0
    for suggestion in suggestions:
        try:
            sketches[suggestion.sketch_index].schedule(suggestion.decisions)
            accepted += 1
        except errors.InvalidSchedule:
            continue
    return {
        "workload": text,
        "target": target,
        "model": info.source,
        "proposed": len(suggestions),
        "accepted": accepted,
        "uniform": uniform,
        "uniform_accepted": sum(_is_accepted(sketches, i) for i in range(uniform)),
    }


def _is_accepted(sketches: list[Any], number: int) -> bool:
    """Whether sample `number` of TVM's own sampler passes the postprocessors."""
    from felix import errors

    sketch = sketches[number % len(sketches)]
    row = sketch.tvm_sample(int(np.random.default_rng([7, number]).integers(1, 2**31 - 1)))
    if row is None:
        return False
    try:
        sketch.schedule(row)
    except errors.InvalidSchedule:
        return False
    return True


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--proposals", type=int, default=48, help="of each workload and target")
    parser.add_argument("--uniform", type=int, default=200, help="uniform samples")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    head = common.header("proposals")
    entries = []
    for text in WORKLOADS:
        for target in ("llvm", "cuda"):
            entries.append(judge(text, target, args.proposals, args.uniform))
            print(entries[-1], flush=True)
    rows = [
        [
            f["workload"],
            f["target"],
            f["proposed"],
            f["accepted"] / max(f["proposed"], 1),
            f["uniform_accepted"] / f["uniform"],
        ]
        for f in entries
    ]
    total = sum(f["accepted"] for f in entries) / sum(f["proposed"] for f in entries)
    head_row = ["workload", "target", "proposed", "accepted share", "uniform accepted share"]
    print(common.table(head_row, rows))
    print(f"all: {total:.4f} of the proposals accepted")
    common.write(args.out, {**head, "found": entries, "accepted_share": total})
    return 0


if __name__ == "__main__":
    sys.exit(main())
