"""ONNX's own cases of one node each: right, refused with a sentence, or a defect.

    python -m benchmarks.conformance [--only REGEX] [--update] [--processes 2]   # make conformance

Each case is imported, lowered, built for this CPU as TVM schedules it, and run; its outputs are
compared with the case's, by the case's tolerances; of 16-bit floats, whose expected values ONNX
rounds at every step, by two units in the last place. A case is, from the worst to the best,

- *wrong*: it ran, and an output differs;
- *failed*: an error that is not Felix's own, a crash, or no end in `LIMIT_S`;
- *unclear*: refused by a sentence that does not say what it is about;
- *refused*: refused by a sentence;
- *right*.

The ledger has the state of each. Cases that are worse than there are printed, and the command
fails; `--update` writes what was found.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.support import common, forked, onnx_cases
from benchmarks.support.onnx_cases import Found
from felix import errors

LEDGER = common.RESULTS / "conformance" / "onnx_nodes.txt"
#: From the worst to the best.
STATES = ("wrong", "failed", "unclear", "refused", "right")
#: Cases whose values are not what ONNX's text says, and what is taken for right: ONNX Runtime's.
#: By the text ends are aligned by whole lengths; the cases take those before they are rounded.
_DISPUTED = frozenset(
    f"test_resize_downsample_scales_{mode}_align_corners" for mode in ("cubic", "linear")
)
#: Seconds that a case may take.
LIMIT_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases; prints how many are in each state and what got worse."""
    args = _arguments(argv)
    cases = onnx_cases.collected()
    names = [name for name in cases if re.search(args.only, name)]
    found: dict[str, Found] = {}

    def work(name: str) -> Found:
        return state(cases[name])

    for name, result in forked.results(work, names, args.processes, LIMIT_S):
        found[name] = ("failed", result.why) if isinstance(result, forked.Ended) else result
    return report(args.ledger, found, args.update)


def report(ledger: pathlib.Path, found: Mapping[str, Found], update: bool) -> int:
    """Print how many are in each state and what is worse than a ledger says, which makes the
    result 1; or write what was found there."""
    known = read(ledger)
    print(", ".join(f"{n} {state}" for state, n in counts(found).items()))
    lost = worse(known, found)
    for name in lost:
        print(f"{name}: {found[name][0]}, was {known[name][0]}: {found[name][1]}")
    if update:
        write(ledger, {**known, **found})
    return int(bool(lost) and not update)


def state(case: Any) -> Found:
    """The state of a case."""
    return judged(lambda: _compared(case))


def judged(compare: Callable[[], Found]) -> Found:
    """What a comparison finds, or what the error says that ends it."""
    try:
        return compare()
    except errors.FelixError as error:
        return onnx_cases.refused(error)
    except Exception as error:  # whatever it is, it is what the case's state says
        return onnx_cases.failed(error)


def _compared(case: Any) -> Found:
    results = onnx_cases.by_felix(case.model, [inputs for inputs, _ in case.data_sets])
    names = [item.name for item in case.model.graph.input]
    for outputs, (inputs, expected) in zip(results, case.data_sets, strict=True):
        if case.name in _DISPUTED:
            by_name = dict(zip(names, inputs, strict=False))
            expected = onnx_cases.by_runtime(case.model, by_name)
        if (why := onnx_cases.difference(outputs, expected, case)) is not None:
            return "wrong", why
    return "right", ""


def counts(found: Mapping[str, Found]) -> dict[str, int]:
    """Cases by state."""
    number = collections.Counter(each for each, _ in found.values())
    return {each: number[each] for each in STATES}


def worse(known: Mapping[str, Found], found: Mapping[str, Found]) -> list[str]:
    """Names of cases whose state is worse than what is known of them."""
    both = [name for name in found if name in known]
    return [name for name in both if STATES.index(found[name][0]) < STATES.index(known[name][0])]


def read(path: pathlib.Path) -> dict[str, Found]:
    """The states of a ledger; none where there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    parts = (line.split("\t") for line in lines)
    return {name: (each, sentence) for name, each, sentence in parts}


def write(path: pathlib.Path, found: Mapping[str, Found]) -> None:
    """Write a ledger: a line a case, with its state and what was said of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (f"{name}\t{each}\t{sentence}\n" for name, (each, sentence) in sorted(found.items()))
    path.write_text("".join(lines))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--ledger", type=pathlib.Path, default=LEDGER)
    parser.add_argument("--update", action="store_true", help="write what was found")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
