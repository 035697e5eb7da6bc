"""How fast features are: Felix's formulas against TVM's extractor, on the same candidates.

    python benchmarks/features.py [--quick] [--out FILE]

Per workload and target, in one process and run:

- *TVM*: applying the trace, the postprocessors, `PerStoreFeature`, one thread, per candidate
  (choosing and writing the decisions is not counted);
- *formulas*: `space.formulas.exact` of a batch of the same candidates, and of a batch of
  `BATCH` rows made by repeating them, one thread, per candidate;
- what makes the formulas of a sketch, with an empty cache.

Durations in seconds, per-candidate times in microseconds. It reports and never judges: the exit
code is 0 whatever the numbers are.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a side
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common

WORKLOADS = {
    "gemm": "gemm:512,512,512",
    "conv2d": "conv2d:1,56,56,64,64,3,padding=1",
    "softmax": "softmax:1024x1024",
    "layer_norm": "layer_norm:1024x1024",
}
TARGETS = {"llvm": "llvm", "cuda": "cuda -arch=sm_80"}
#: Rows of the large batch: what a round of the search evaluates at once.
BATCH = 2048


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="GEMM only, few candidates")
    parser.add_argument("--candidates", type=int, default=None, help="a sketch (default 64)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--out", type=pathlib.Path, default=None, help="JSON file")
    args = parser.parse_args()
    names = ["gemm"] if args.quick else args.workloads
    n = args.candidates or (8 if args.quick else 64)
    out = args.out or (None if args.quick else common.RESULTS / "formulas" / "features.json")
    result = common.header("features") | {"candidates_per_sketch": n, "batch": BATCH}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FELIX_CACHE_DIR"] = cache
        result["entries"] = [measure(name, kind, n) for name in names for kind in TARGETS]
    print(render(result))
    if out is not None:
        common.write(out, result)
        print(f"\nwritten to {out}")
    return 0


def measure(name: str, kind: str, n: int) -> dict[str, Any]:
    """One workload on one target."""
    import felix
    from felix import workloads

    task = workloads.parse(WORKLOADS[name], TARGETS[kind])
    sketches = felix.trace_sketches(task)
    cold = [_seconds(lambda s=sketch: s.formulas.default) for sketch in sketches]
    compared = [_compare(task, sketch, n) for sketch in sketches]
    entry = {
        "workload": WORKLOADS[name],
        "target": kind,
        "n_sketches": len(sketches),
        "extract_cold_s": cold,
        **_totals(compared),
    }
    return entry


def render(result: dict[str, Any]) -> str:
    """The table of a results file."""
    rows = [
        [
            entry["workload"],
            entry["target"],
            entry["n_sketches"],
            *(entry[key] for key in ("tvm_us", "large_batch_us", "large_batch_ratio")),
            statistics.mean(entry["extract_cold_s"]),
        ]
        for entry in result["entries"]
    ]
    head = ["workload", "target", "sketches", "TVM us", "formulas us", "TVM / formulas"]
    return common.table([*head, "formulas of a sketch s"], rows)


def _compare(task: Any, sketch: Any, n: int) -> dict[str, Any]:
    """TVM and formulas on n candidates of one sketch."""
    import numpy as np

    rows = sketch.sample(n, seed=0)
    tvm = _tvm(task, sketch, rows)
    sketch.formulas.exact(rows)  # compiles the structures among them: extraction, not evaluation
    batch_s = statistics.median(_seconds(lambda: sketch.formulas.exact(rows)) for _ in range(5))
    many = rows[np.resize(np.arange(n), BATCH)]
    large_s = statistics.median(_seconds(lambda: sketch.formulas.exact(many)) for _ in range(3))
    return {
        "index": sketch.index,
        "n_rows": sketch.formulas.n_rows,
        "n_features": sketch.formulas.n_features,
        **tvm,
        "batch_us": batch_s / n * 1e6,
        "large_batch_us": large_s / BATCH * 1e6,
    }


def _tvm(task: Any, sketch: Any, rows: Any) -> dict[str, Any]:
    """Trace application, postprocessors and feature extraction, us per candidate."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from felix.tir import design_space
    from felix.tir.design_space import shared_memory

    context = design_space.tune_context(task.mod, task.target, name=task.name)
    postprocs = context.space_generator.postprocs
    if sketch.is_gpu:
        postprocs = shared_memory.verified_to(task.mod, task.target, postprocs)
    extractor = ms.feature_extractor.PerStoreFeature()
    traces = [sketch.with_decisions(row) for row in rows]
    legal: list[Any] = []
    start = time.perf_counter()
    for trace in traces:
        schedule = tvm.s_tir.Schedule(task.mod, seed=1, debug_mask="none")
        trace.apply_to_schedule(schedule, remove_postproc=True)
        schedule.enter_postproc()
        if all(postproc.apply(schedule) for postproc in postprocs):
            legal.append(schedule)
    apply_s = time.perf_counter() - start
    candidates = [ms.search_strategy.MeasureCandidate(schedule, []) for schedule in legal]
    extract_s = _seconds(lambda: extractor.extract_from(context, candidates)) if legal else 0.0
    return {
        "n_legal": len(legal),
        "tvm_apply_us": apply_s / len(rows) * 1e6,
        "tvm_extract_us": extract_s / max(1, len(legal)) * 1e6,
        "tvm_us": apply_s / len(rows) * 1e6 + extract_s / max(1, len(legal)) * 1e6,
    }


def _totals(compared: list[dict[str, Any]]) -> dict[str, float]:
    mean = {
        key: statistics.mean(entry[key] for entry in compared)
        for key in ("tvm_us", "batch_us", "large_batch_us")
    }
    return {
        **mean,
        "ratio": mean["tvm_us"] / mean["batch_us"],
        "large_batch_ratio": mean["tvm_us"] / mean["large_batch_us"],
    }


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
