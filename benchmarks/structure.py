"""The symbolic program against TVM over the whole check suite: every operator, target, sketch.

    python benchmarks/structure.py [--check 50] [--target llvm cuda] [--only NAME ...] [--jobs 2]

For each instance of `felix.workloads.suite.CHECK_SUITE` and each target,
`benchmarks.support.verify.compare.check` draws random legal decisions of every sketch and compares
loops, buffers and features with the schedule that TVM makes of them. Writes
benchmarks/results/formulas/structure.json; exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import pathlib
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common
from felix.workloads import suite

TARGETS = ("llvm", "cuda")
OUT = common.RESULTS / "formulas" / "structure.json"


def compare(job: tuple[str, str, int, int]) -> dict[str, Any]:
    """Check one instance on one target; counts, and the first mismatches in words."""
    from benchmarks.support.verify import compare as compare_schedules

    name, target, n, seed = job
    start = time.perf_counter()
    report = compare_schedules.check(suite.CHECK_SUITE[name](target), n, seed)
    return {
        "instance": name,
        "operator": suite.CHECK_SUITE[name].operator,
        "target": target,
        "sketches": len(report.sketches),
        "checked": report.checked,
        "rejected": report.invalid,
        "mismatched": sum(s.mismatched for s in report.sketches),
        "loose": sum(len({x.decisions for x in s.loose}) for s in report.sketches),
        "elapsed_s": round(time.perf_counter() - start, 2),
        "first_mismatches": report.lines(3)[1 + len(report.sketches) :],
    }


def summarize(checks: list[dict[str, Any]]) -> list[list[Any]]:
    """One row an operator and target: instances, sketches, rows compared, and what differed."""
    rows = []
    keys = ("sketches", "checked", "rejected", "mismatched", "loose")
    for operator, target in sorted({(c["operator"], c["target"]) for c in checks}):
        group = [c for c in checks if (c["operator"], c["target"]) == (operator, target)]
        rows.append([operator, target, len(group), *(sum(c[key] for c in group) for key in keys)])
    return [*rows, ["all", "", len(checks), *(sum(c[key] for c in checks) for key in keys)]]


def render(data: dict[str, Any]) -> str:
    """How many schedules were compared with TVM's, and what differed."""
    (*_, (_, _, instances, *counts)) = summarize(data["found"])
    sketches, checked, rejected, mismatched, _ = (f"{count:,}" for count in counts)
    return (
        f"{instances} instances, {sketches} sketches, {checked} schedules compared: {mismatched} "
        f"differ, TVM rejects {rejected}."
    )


def main() -> int:
    """Run, print the table, write the result; 1 if a row differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=int, default=50, metavar="N", help="rows a sketch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--only", nargs="+", choices=list(suite.CHECK_SUITE), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    chosen = parser.parse_args()
    names = chosen.only or list(suite.CHECK_SUITE)
    jobs = [(n, t, chosen.check, chosen.seed) for n, t in itertools.product(names, chosen.target)]
    head = common.header("structure")
    checks = []
    with multiprocessing.get_context("spawn").Pool(chosen.jobs) as pool:
        for done in pool.imap(compare, jobs):
            checks.append(done)
            print(f"{len(checks)}/{len(jobs)} {done['instance']} {done['target']}", flush=True)
            print(*done["first_mismatches"], sep="\n", end="", flush=True)
    columns = ["operator", "target", "instances", "sketches", "rows compared", "rejected by TVM"]
    print(common.table([*columns, "mismatched", "loose"], summarize(checks)))
    common.write(chosen.out, {**head, "rows": chosen.check, "seed": chosen.seed, "found": checks})
    return int(any(c["mismatched"] for c in checks))


if __name__ == "__main__":
    sys.exit(main())
