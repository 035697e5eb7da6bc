"""Check and time every tuned kernel of this job: `python run.py` in its folder.

Needs TVM and numpy, not Felix: each task's folder has a `run.py` of its own, which this one
calls. Exit status: 0 if all agree, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main() -> int:
    """Run all; the exit status."""
    parser = argparse.ArgumentParser(description="Check and time the tuned kernels of this job.")
    parser.add_argument("--repeats", type=int, default=100, help="timed calls (default 100)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    tasks = json.loads((HERE / "manifest.json").read_text())["tasks"]
    reports, total_us, n_failed = [], 0.0, 0
    for task in tasks:
        if task["folder"] is None:
            reason = f"skipped: {task['skipped']}" if task["skipped"] else task["left_out"]
            reason = reason or "no schedule was found"
            print(f"{task['name']}: {reason}", file=sys.stderr)
            continue
        command = [sys.executable, str(HERE / task["folder"] / "run.py"), "--json"]
        command += ["--repeats", str(options.repeats)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            n_failed += 1
            continue
        report = json.loads(done.stdout)
        reports.append(report | {"weight": task["weight"]})
        total_us += task["weight"] * report["latency_us"]
        if not options.json:
            line = (
                f"{report['task']}: {report['latency_us']:.2f} us, {report['gflops']:.1f} GFLOP/s"
            )
            print(f"{line} (tuned: {report['tuned_us']:.2f} us), weight {task['weight']:g}")
    if options.json:
        print(json.dumps({"tasks": reports, "latency_us": total_us, "failed": n_failed}))
    else:
        print(f"all tasks, weighted: {total_us:.2f} us")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
