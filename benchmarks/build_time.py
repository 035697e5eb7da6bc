"""What building costs on this CPU, and how well the size of the code predicts it.

    python benchmarks/build_time.py [--samples 32]

Random schedules of five workloads are built one after another; the CPU time of each build is
fitted by a + b * statements, with the feature `code_statements` of the largest kernel. The search
charges candidates for it (`felix.search.build_time`). Writes
benchmarks/results/parts/build_time.json.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common

WORKLOADS = (
    "gemm:512,512,512",
    "conv2d:1,56,56,64,64,3,padding=1",
    "depthwise_conv2d:1,56,56,64,3,padding=1",
    "softmax:1024x1024",
    "layer_norm:1024x1024",
)


def measure(text: str, n: int) -> list[tuple[float, float]]:
    """(statements, CPU seconds) of n random schedules of a workload, spread over its sketches."""
    import felix
    from felix import workloads
    from felix.features import spec
    from felix.measure import build
    from felix.workloads import catalogue

    operator, params = catalogue.parse_params(text)
    task = workloads.build(operator, params, "llvm")
    sketches = felix.trace_sketches(task)
    column = spec.NAMES.index("code_statements")
    points = []
    for number in range(n):
        sketch = sketches[number % len(sketches)]
        row = sketch.sample(1, seed=number)
        statements = float(sketch.formulas.raw(row)[0, :, column].max())
        mod = sketch.schedule(row[0]).mod
        with tempfile.TemporaryDirectory() as folder:
            before = os.times()
            build.build(mod, task.target, f"{folder}/kernel", build.Link.AUTO)
            after = os.times()
        cpu_s = sum(after[:4]) - sum(before[:4])
        points.append((statements, cpu_s))
    return points


def fit(points: list[tuple[float, float]]) -> dict[str, float]:
    """Least squares of relative errors: a, b, and the standard deviation of ln(fit / true)."""
    statements, cpu_s = np.array(points).T
    design = np.stack([np.ones_like(statements), statements], axis=1)
    (a, b), *_ = np.linalg.lstsq(design / cpu_s[:, None], np.ones_like(cpu_s), rcond=None)
    error = np.log(np.maximum(design @ [a, b], 1e-3) / cpu_s)
    return {
        "base_s": float(a),
        "statement_s": float(b),
        "free_statements": float(a / b),
        "ln_error_std": float(error.std()),
    }


def main() -> int:
    """Measure, fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=32, help="schedules a workload")
    parser.add_argument("--out", type=pathlib.Path, default=common.PARTS / "build_time.json")
    args = parser.parse_args()
    head = common.header("build_time")
    points: dict[str, Any] = {text: measure(text, args.samples) for text in WORKLOADS}
    rows = [
        [text, len(builds), *np.percentile([s for _, s in builds], [0, 50, 100]).tolist()]
        for text, builds in points.items()
    ]
    print(common.table(["workload", "builds", "least s", "median s", "most s"], rows))
    fitted = fit([point for builds in points.values() for point in builds])
    print(", ".join(f"{name} {value:.3g}" for name, value in fitted.items()))
    common.write(args.out, {**head, "fit": fitted, "points": points})
    return 0


if __name__ == "__main__":
    sys.exit(main())
