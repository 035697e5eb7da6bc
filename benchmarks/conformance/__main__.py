"""ONNX's own cases and PyTorch's OpInfo, against the ledgers of their states.

    python -m benchmarks.conformance [onnx] [opinfo] [--only REGEX] [--update]   # make conformance

Cases that are worse than their ledger says are printed, and the command fails; `--update` writes
what was found. `ledger` has the states, `onnx_nodes` and `opinfo` say what their cases are.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
from collections.abc import Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.conformance import ledger, onnx_nodes, opinfo
from benchmarks.support import common

FOLDER = common.RESULTS / "conformance"
SUITES = ("onnx", "opinfo")


def main(argv: Sequence[str] | None = None) -> int:
    """Run suites; prints how many of their samples are in each state, and what got worse."""
    args = _arguments(argv)
    suites: dict[str, onnx_nodes.Cases | opinfo.Cases] = {}
    if "onnx" in args.suites:
        suites["onnx_nodes"] = onnx_nodes.Cases()
    if "opinfo" in args.suites:
        suites["opinfo"] = opinfo.Cases(args.samples, args.seed)
    has_worse = False
    for name, suite in suites.items():
        names = [each for each in suite.names if re.search(args.only, each)]
        found = ledger.found(suite.judge, names, suite.limit_s, args.processes)
        path = args.ledgers / f"{name}.txt"
        has_worse |= ledger.report(path, found, args.update, suite.head)
    return int(has_worse)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="onnx, opinfo; all without")
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--ledgers", type=pathlib.Path, default=FOLDER, help="their folder")
    parser.add_argument("--update", action="store_true", help="write what was found")
    parser.add_argument(
        "--samples", type=int, default=opinfo.SAMPLES, help="of an operator of PyTorch"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the choice of those samples")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.suites) - set(SUITES):
        parser.error(
            f"no such suite: {', '.join(sorted(unknown))} (there are {', '.join(SUITES)})"
        )
    arguments.suites = arguments.suites or list(SUITES)
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
