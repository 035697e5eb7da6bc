"""The whole corpus: `python -m tests.corpus [--jobs 2] [--rows 3] [--only TEXT]`.

Worker processes take the programs, so that a crash or an endless run of TVM is one line of the
table. Exits with 1 if anything but modelled or refused programs is among them.
"""

from __future__ import annotations

import argparse
import collections
import sys

from tests.corpus import outcome, workers


def main() -> int:
    """Check what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--rows", type=int, default=3, help="rows compared of each structure")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--target", choices=outcome.TARGETS)
    options = parser.parse_args()
    targets = [options.target] if options.target else outcome.TARGETS
    cases = [(n, t) for n in outcome.PROGRAMS if options.only in n for t in targets]
    counts: collections.Counter[str] = collections.Counter()
    for result in workers.outcomes(cases, options.jobs, options.rows):
        counts[result.kind] += 1
        message = result.message.strip().splitlines()
        print(f"{result.kind:9} {result.target:4} {result.name:26} {result.rows:3} "
              f"{result.invalid:3} {message[-1] if message else ''}", flush=True)  # fmt: skip
    print(", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return 1 if counts[outcome.Kind.ERROR] or counts[outcome.Kind.MISMATCH] else 0


if __name__ == "__main__":
    sys.exit(main())
