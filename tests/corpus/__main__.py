"""The whole corpus: `python -m tests.corpus [--jobs 2] [--rows 3] [--only TEXT] [--networks]`.

Worker processes take the programs, so that a crash or an endless run of TVM is one line of the
table. At the end the programs that are refused although MetaSchedule alone makes a design space of
them are named; `--out` writes all outcomes. Exits with 1 if anything but modelled or refused
programs is among them, or if of the whole corpus less than 95 % of what MetaSchedule alone makes a
space of is modelled.
"""

from __future__ import annotations

import argparse
import collections
import functools
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.support import common
from tests.corpus import networks, outcome, workers

#: Of what MetaSchedule alone makes a space of, the share that has to be modelled.
LEAST = 0.95


def main() -> int:
    """Check what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--rows", type=int, default=3, help="rows compared of each structure")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--networks", action="store_true", help="tasks of models instead")
    parser.add_argument("--target", choices=outcome.TARGETS)
    parser.add_argument("--out", type=pathlib.Path, help="JSON of all outcomes")
    options = parser.parse_args()
    targets = [options.target] if options.target else outcome.TARGETS
    known = networks.names() if options.networks else list(outcome.PROGRAMS)
    cases = [(name, target) for name in known if options.only in name for target in targets]
    check = networks.of if options.networks else outcome.of
    results = _run(cases, options.jobs, functools.partial(check, rows=options.rows))
    missing = [] if options.networks else _missing(results, options.jobs)
    share = _share(results, missing)
    if options.out is not None:
        common.write(options.out, _data(results, missing))
    kinds = {result.kind for result in results}
    is_low = share < LEAST and not options.only
    return 1 if is_low or kinds & {outcome.Kind.ERROR, outcome.Kind.MISMATCH} else 0


def _run(cases: Sequence[workers.Case], jobs: int, check: workers.Check) -> list[outcome.Outcome]:
    results = []
    for result in workers.outcomes(cases, jobs, check):
        results.append(result)
        message = result.message.strip().splitlines()
        print(
            f"{result.kind:9} {result.target:4} {result.name:26} {result.rows:3} "
            f"{result.invalid:3} {message[-1] if message else ''}",
            flush=True,
        )
    counts = collections.Counter(result.kind for result in results)
    print(", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return results


def _missing(results: Sequence[outcome.Outcome], jobs: int) -> list[workers.Case]:
    """What is not modelled although MetaSchedule alone makes a space of it."""
    others = [(r.name, r.target) for r in results if r.kind is not outcome.Kind.MODELLED]
    stock = workers.outcomes(others, jobs, outcome.of_stock) if others else ()
    return [(r.name, r.target) for r in stock if r.kind is outcome.Kind.MODELLED]


def _share(results: Sequence[outcome.Outcome], missing: Sequence[workers.Case]) -> float:
    """The share of the programs that MetaSchedule alone makes a space of that is modelled."""
    modelled = sum(result.kind is outcome.Kind.MODELLED for result in results)
    share = modelled / max(1, modelled + len(missing))
    print(
        f"{share:.1%} of those that MetaSchedule alone makes a space of are modelled; not:",
        ", ".join(f"{name} ({target})" for name, target in missing) or "none",
    )
    return share


def _data(results: Sequence[outcome.Outcome], missing: Sequence[workers.Case]) -> dict[str, Any]:
    """A results file: `missing` of a program says whether MetaSchedule makes a space of it."""
    programs = [
        {
            "name": r.name,
            "target": r.target,
            "kind": str(r.kind),
            "rows": r.rows,
            "invalid": r.invalid,
        }
        | (
            {}
            if r.kind is outcome.Kind.MODELLED
            else {
                "reason": r.message.strip().splitlines()[-1],
                "missing": (r.name, r.target) in missing,
            }
        )
        for r in results
    ]
    command = " ".join(["python -m tests.corpus", *common.placeless(sys.argv[1:])])
    return common.header("corpus") | {"command": command, "programs": programs}


if __name__ == "__main__":
    sys.exit(main())
