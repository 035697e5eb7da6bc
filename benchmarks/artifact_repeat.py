"""How well artifacts reproduce, in fresh processes, the latency that their runs reported.

    python benchmarks/artifact_repeat.py [--seeds 2] [--runs 7]

For each workload and seed: `felix tune --trials 64`, then `run.py` of its artifact, several times,
each in a process of its own. Latencies in microseconds.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common

WORKLOADS = (
    "gemm:512,512,512",
    "conv2d:1,56,56,64,64,3,padding=1",
    "softmax:1024x1024",
    "softmax:64x128",
)


def measure(workload: str, seed: int, trials: int, runs: int) -> dict[str, Any]:
    """Tune, then run the artifact: the latency it reports and those of fresh processes."""
    with tempfile.TemporaryDirectory() as folder:
        tune = ["-m", "felix", "tune", workload, "--trials", str(trials), "--seed", str(seed)]
        _python(*tune, "--out", folder, "--compare", "none", "--quiet")
        reports = [json.loads(_python(f"{folder}/run.py", "--json")) for _ in range(runs)]
    return {
        "workload": workload,
        "seed": seed,
        "told_us": reports[0]["tuned_us"],
        "run_us": [report["latency_us"] for report in reports],
    }


def render(data: dict[str, Any]) -> str:
    """A row for each artifact: what fresh processes took over the reported latency."""
    rows = []
    for case in data["cases"]:
        ratios = [run_us / case["told_us"] for run_us in case["run_us"]]
        middle = statistics.median(ratios)
        rows.append(
            [
                case["workload"],
                case["seed"],
                case["told_us"],
                len(ratios),
                min(ratios),
                middle,
                max(ratios),
            ]
        )
    head = [
        "workload",
        "seed",
        "reported us",
        "runs",
        "least / reported",
        "median / reported",
        "most / reported",
    ]
    return common.table(head, rows)


def _python(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def main() -> int:
    """Measure, print, write after each artifact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=7, help="fresh processes of each artifact")
    out = common.RESULTS / "cpu-tuning" / "artifact_repeat.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    args = parser.parse_args()
    data: dict[str, Any] = {**common.header("artifact_repeat"), "cases": []}
    for workload in args.workloads:
        for seed in range(args.seeds):
            data["cases"].append(measure(workload, seed, args.trials, args.runs))
            common.write(args.out, data)
    print(render(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
