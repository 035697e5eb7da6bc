"""Random legal settings of generated kernels on random shapes, compared with the reference.

    python benchmarks/template_fuzz.py [--settings 2000] [--seconds 150] [--seed 0]
    python benchmarks/template_fuzz.py --workload gemm:100,200,300,dtype=bfloat16 --settings 64

Products, convolutions of one to three dimensions and transposed convolutions are drawn in all
types, layouts and epilogues (`benchmarks/support/random_workloads.py`), and for each of
them settings of every template that suits it on this GPU, whether the product would prefer it or
not. They are built side by side by the measuring pool of a tuning run and checked there; a kernel
that hangs costs itself. Prints counts by outcome and every setting that is not right, writes all
of it, and returns 1 if a result was wrong, a kernel faulted or hung, or nothing was checked.
With a workload, settings of that one alone are drawn. --seconds is a limit for drawing settings;
those that are being built or measured then are waited for. The same seed draws the same settings,
of which a limit of seconds may cut off the last.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import pathlib
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, fuzzing, random_workloads

OUT = common.PARTS / "template_fuzz.json"
#: Seconds: a kernel takes microseconds, its first call some milliseconds.
HANGS_S = 5.0
#: Settings in the pool for each builder: one at work, the others wait for it or for the device.
IN_FLIGHT = 6


def main() -> int:
    """Draw, measure, print and write; returns 1 if something is wrong."""
    args = _arguments()
    start_s = time.monotonic()
    data = common.header("template_fuzz") | {"seed": args.seed}
    with contextlib.ExitStack() as stack:
        outcome = fuzzing.fuzz(
            _workloads(args),
            _Opener(args, stack),
            args.target,
            fuzzing.Limits(
                args.settings, args.seconds, args.per_workload, IN_FLIGHT * args.builders
            ),
            random.Random(f"{args.seed} settings"),
        )
    data |= results(outcome, time.monotonic() - start_s)
    common.write(args.out, data)
    print(table_of_groups(data))
    return 0 if outcome.is_right else 1


class _Opener:
    """Measurers of tasks that share one pool, made with the first task."""

    def __init__(self, args: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self._args = args
        self._stack = stack
        self._pool: Any = None

    def __call__(self, task: Any) -> Any:
        if self._pool is None:
            self._pool = self._stack.enter_context(open_pool(task, self._args.builders))
        return self._pool.for_task(task)


def open_pool(task: Any, builders: int) -> Any:
    """A pool that times each kernel shortly: what counts here is what it computes."""
    from felix.measure import local
    from felix.runner import timing

    short = timing.TimingOptions(
        min_repeats=2, max_repeats=3, min_total_s=0.0, max_total_s=0.02, early_stop_first_s=0.0
    )
    options = local.LocalOptions(builders=builders, run_timeout_s=HANGS_S, timing=short)
    return local.LocalPool(task, options)


def results(outcome: fuzzing.Outcome, seconds: float) -> dict[str, Any]:
    """What is written of an outcome."""
    return {
        "seconds": seconds,
        "is_right": outcome.is_right,
        "workloads": outcome.workloads,
        "settings": outcome.totals.total(),
        "totals": dict(outcome.totals),
        "counts": {group: dict(counts) for group, counts in sorted(outcome.counts.items())},
        "build_s": outcome.build_s,
        "run_s": outcome.run_s,
        "left_out": dict(outcome.left_out.most_common()),
        "failures": outcome.failures,
    }


def render(data: dict[str, Any]) -> str:
    """What random settings of generated kernels came to."""
    totals = dict(data["totals"])
    right = totals.pop("ok", 0)
    others = ", ".join(f"{count} {name}" for name, count in sorted(totals.items()))
    rest = f"of the others: {others}" if others else "none does not"
    return (
        f"{right:,} of {data['settings']:,} settings of {data['workloads']} workloads compute "
        f"what the reference does; {rest}."
    )


def table_of_groups(data: dict[str, Any]) -> str:
    """Counts as a table, then every setting that is not right, for who ran it."""
    names = ["ok", *sorted(set(data["totals"]) - {"ok"})]
    rows = [
        [group, *(counts.get(name, 0) for name in names)]
        for group, counts in data["counts"].items()
    ]
    rows.append(["all", *(data["totals"].get(name, 0) for name in names)])
    lines = [common.table(["template, operator, type", *names], rows), ""]
    lines.append(
        f"{data['settings']} settings of {data['workloads']} workloads in {data['seconds']:.0f} s"
    )
    lines += [f"no template, {n} times: {why}" for why, n in data["left_out"].items()]
    for failure in data["failures"]:
        tf32 = " (TF32)" if failure["allows_tf32"] else ""
        lines.append(
            f"{failure['outcome']}: {failure['workload']}{tf32} {failure['template']} "
            f"{failure['decisions']}: {failure['message']}"
        )
    return "\n".join(lines)


def _workloads(args: argparse.Namespace) -> Iterator[random_workloads.Drawn]:
    """The one that was given, as often as it takes, or random ones without end."""
    if args.workload is not None:
        is_float32 = "dtype=" not in args.workload or "dtype=float32" in args.workload
        return itertools.repeat(random_workloads.Drawn(args.workload, is_float32))
    rng = random.Random(args.seed)
    return (random_workloads.draw(rng) for _ in itertools.count())


def _arguments() -> argparse.Namespace:
    from felix.target import cpu

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--settings", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=150.0, help="limit for drawing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-workload", type=int, default=20, help="settings of a workload")
    parser.add_argument("--workload", help="text form of the only workload")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--builders", type=int, default=cpu.available_cores())
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
