"""Products and convolutions on tensor cores: Felix beside cuBLAS, cuDNN and inductor, on one GPU.

    python benchmarks/tensor_cores.py [--set gemms fused] [--shapes square-1024 ...]
    python benchmarks/tensor_cores.py --limit-s 500 --picture FILE.svg
    python benchmarks/tensor_cores.py --lanes --first gemms fused --restore '*' --limit-s 500
    python benchmarks/tensor_cores.py --without-libraries --out tensor-tuning-h200.json

For every shape three pieces, each in a process of its own, or with --lanes in two that overlap:
  felix        `felix.tune` as it is, with running measuring workers and an empty formula cache
  first        the kernel that the cost model prefers when nothing was measured
               (`benchmarks/support/generated/first_choice.py`)
  vendor       PyTorch eager (cuBLAS, cuDNN), compiled by inductor with max-autotune (Triton), and
               Felix's winner and first choice, in turns by one process and clock, with a cold L2

Shapes of `fused` have a bias and a GELU: eager runs them as kernels of their own, inductor and
Felix in the epilogue. Convolutions are in bfloat16 with channels last; the libraries are timed
with channels first as well, and their better layout counts. The sets take turns, so that a run
that is short of time has some of each; those of --first take their turns before the others. With
--lanes Felix tunes while the libraries of the shape are prepared, so tuning seconds are with
shared cores of the CPU (`benchmarks/support/lanes/pieces.py`); whoever times has the GPU alone.
With --without-libraries there is no third piece: Felix has the CPU's cores alone, and its winner
and first choice are compared by the latencies of its own pool.
Pieces that are done stay in the work folder and are not run again; --restore takes the shapes that
a results file has whole, so that a run can be continued where the work folder is gone.
Durations in seconds, latencies in microseconds; ratios are the faster library's latency over
Felix's.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import itertools
import json
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import search_efficiency
from benchmarks.support import common, efficiency, subgraphs

SETS = {
    "gemms": subgraphs.TENSOR_GEMMS,
    "fused": subgraphs.TENSOR_FUSED,
    "resnet50": subgraphs.TENSOR_RESNET50,
    "r3d18": subgraphs.TENSOR_R3D18,
}
STRATEGIES = ("felix", "first", "vendor")
#: Columns of the table of shapes: head and key of a row.
COLUMNS = {
    "shape": "name",
    "sketch": "sketch",
    "Felix us": "felix_us",
    "eager us": "eager_us",
    "inductor us": "inductor_us",
    "library / Felix": "ratio",
    "TFLOP/s": "tflops",
    "cores": "cores",
    "tuning s": "tuning_s",
    "to 90% s": "to_90%_s",
    "kernels": "kernels",
    "build s": "build_s",
    "first / best": "first_ratio",
}
TRIALS = 64
#: The model's first choice is good enough if it takes at most so many times as long as the best.
NEAR_BEST = 1.25


def main() -> int:
    """Run the pieces that are missing; returns 1 if one failed."""
    args = _arguments()
    args.restore = whole_shapes(args.out, args.restore)
    return search_efficiency.search(args, sys.modules[__name__], "tensor_cores")


def whole_shapes(results: pathlib.Path, patterns: Sequence[str]) -> list[str]:
    """What to restore of a results file: pieces of the matching shapes that have all of them.

    Programs are not in results, so a shape whose libraries were not timed starts anew.
    """
    if not patterns or not results.exists():
        return []
    pieces: dict[str, set[str]] = collections.defaultdict(set)
    for run in json.loads(results.read_text())["runs"]:
        pieces[run["name"]].add(run["strategy"])
    names = [name for name, strategies in pieces.items() if strategies >= set(STRATEGIES)]
    return [f"{name}:*" for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)]


def in_turns(sets: Sequence[Sequence[str]]) -> list[str]:
    """The shapes of several sets, one of each, then the next of each."""
    turns = itertools.zip_longest(*sets)
    return list(dict.fromkeys(name for turn in turns for name in turn if name is not None))


def in_order(sets: Sequence[str], first: Sequence[str] = ()) -> list[str]:
    """The shapes of sets in turns, those of some sets before the others."""
    before = [list(SETS[each]) for each in sets if each in first]
    after = [list(SETS[each]) for each in sets if each not in first]
    return list(dict.fromkeys([*in_turns(before), *in_turns(after)]))


def render(data: Mapping[str, Any]) -> str:
    """Tables in Markdown: every shape, and the ratios of each set."""
    rows = shapes(data["runs"])
    if not rows:
        return ""
    of_libraries = any(row["ratio"] is not None for row in rows)
    columns = {
        head: key
        for head, key in COLUMNS.items()
        if of_libraries or key not in ("eager_us", "inductor_us", "ratio")
    }
    every = common.table(list(columns), [[row[key] for key in columns.values()] for row in rows])
    whole = [
        [name, len(ratios), statistics.geometric_mean(ratios), min(ratios), max(ratios)]
        for name, ratios in ratios_by_set(rows).items()
    ]
    head = ["set", "shapes", "geometric mean of library / Felix", "least", "most"]
    parts = [common.table(head, whole) if whole else "", _costs(rows), every]
    return "\n\n".join(part for part in parts if part)


def _costs(rows: Sequence[Mapping[str, Any]]) -> str:
    """What tuning took in each set, and how good the first choice was; nothing of older files."""
    table = []
    for name, members in SETS.items():
        of_set = [row for row in rows if row["name"] in members]
        firsts = [row["first_ratio"] for row in of_set if row["first_ratio"] is not None]
        builds = [row["build_s"] for row in of_set if row["build_s"] is not None]
        if not firsts and not builds:
            continue
        table.append(
            [
                name,
                *_longest(of_set, "own"),
                *_longest(of_set, "shared"),
                statistics.mean(builds) if builds else None,
                statistics.geometric_mean(firsts) if firsts else None,
                max(firsts, default=None),
                f"{sum(ratio <= NEAR_BEST for ratio in firsts)} of {len(firsts)}",
            ]
        )
    head = [
        "set",
        "longest tuning s",
        "to 90% s",
        "longest tuning s, shared cores",
        "to 90% s, shared cores",
        "mean build s",
        "geometric mean of first / best",
        "worst",
        "first within 25 %",
    ]
    return common.table(head, table) if table else ""


def _longest(rows: Sequence[Mapping[str, Any]], cores: str) -> tuple[float | None, float | None]:
    """Most seconds of tuning, and until within 10 %, of rows with own or with shared cores."""
    chosen = [row for row in rows if row["cores"] == cores]
    near = [row["to_90%_s"] for row in chosen if row["to_90%_s"] is not None]
    return max((row["tuning_s"] for row in chosen), default=None), max(near, default=None)


def shapes(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each shape whose search is there, and its libraries or else its first choice.

    The best of `first_ratio` is the faster of Felix's winner and first choice. `cores` says
    whether libraries were compiled on the same cores while Felix tuned. Without libraries their
    latencies and `ratio` are None.
    """
    pieces = {(run["name"], run["strategy"]): run for run in runs}
    searched = {entry["name"]: entry for entry in efficiency.summary(list(runs))}
    last = "vendor" if any(strategy == "vendor" for _, strategy in pieces) else "first"
    rows = []
    for name, strategy in pieces:
        if strategy != last or not pieces.get((name, "felix"), {}).get("curve"):
            continue
        felix = pieces[name, "felix"]
        us = _latencies_us(felix, pieces.get((name, "first")), pieces.get((name, "vendor")))
        libraries_us = [us[kind] for kind in ("eager", "inductor") if kind in us]
        rows.append(
            {
                "name": name,
                "sketch": felix["variant"],
                "felix_us": us["felix"],
                "eager_us": us.get("eager"),
                "inductor_us": us.get("inductor"),
                "ratio": min(libraries_us) / us["felix"] if libraries_us else None,
                "tflops": felix["flops"] / us["felix"] * 1e-6,
                "cores": "shared" if felix.get("lanes") else "own",
                "tuning_s": felix["wall_s"],
                "to_90%_s": searched[name]["to_90%_s"],
                "kernels": felix["n_measured"],
                "build_s": felix.get("build_s"),
                "first_ratio": us["first"] / min(us["first"], us["felix"])
                if "first" in us
                else None,
            }
        )
    return rows


def _latencies_us(
    felix: Mapping[str, Any], first: Mapping[str, Any] | None, vendor: Mapping[str, Any] | None
) -> dict[str, float]:
    """Latencies of a shape timed in turns, or by Felix's pool where no library was timed."""
    if vendor is not None:
        return dict(vendor["latency_us"])
    us = {"felix": min(latency_us for *_, latency_us in felix["finals"] or felix["curve"])}
    if first is not None and first.get("us") is not None:
        us["first"] = first["us"]
    return us


def ratios_by_set(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Ratios of the shapes of each set that were measured."""
    of_sets = {
        name: [row["ratio"] for row in rows if row["name"] in members and row["ratio"] is not None]
        for name, members in SETS.items()
    }
    return {name: ratios for name, ratios in of_sets.items() if ratios}


def picture(data: Mapping[str, Any], path: pathlib.Path) -> None:
    """A bar for each shape: the faster library's latency over Felix's."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = shapes(data["runs"])
    figure, axis = pyplot.subplots(figsize=(1 + 0.28 * len(rows), 4))
    axis.bar([row["name"] for row in rows], [row["ratio"] for row in rows])
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set(ylabel="library / Felix", yscale="log")
    axis.tick_params(axis="x", rotation=90)
    figure.tight_layout()
    figure.savefig(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--set", nargs="+", choices=list(SETS), default=list(SETS))
    names = [name for members in SETS.values() for name in members]
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=names,
        metavar="NAME",
        help="only these (default: all of the sets)",
    )
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument(
        "--restore",
        nargs="+",
        default=[],
        metavar="SHAPE",
        help="take these of the results file, like '*' (none)",
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        help="begin no further piece (with --lanes: shape) after this long",
    )
    parser.add_argument(
        "--first",
        nargs="+",
        choices=list(SETS),
        default=[],
        metavar="SET",
        help="sets whose shapes come before those of others (none)",
    )
    search_efficiency.add_lanes(parser)
    parser.add_argument(
        "--without-libraries", action="store_true", help="Felix alone, with all of the CPU's cores"
    )
    parser.add_argument("--work", type=pathlib.Path, default=common.PARTS / "tensor_cores")
    out = common.RESULTS / "gpu-search" / "tensor-cores-h200.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    parser.add_argument(
        "--picture", type=pathlib.Path, help="SVG to write (default: beside the results)"
    )
    args = parser.parse_args()
    chosen = args.shapes or in_order(args.set, args.first)
    if args.lanes and args.without_libraries:
        parser.error(
            "--lanes prepares libraries: leave out one of --lanes and --without-libraries"
        )
    strategies = ("felix", "first") if args.without_libraries else STRATEGIES
    picture = args.picture or (None if args.without_libraries else args.out.with_suffix(".svg"))
    return argparse.Namespace(
        set=[],
        subgraphs=chosen,
        strategies=strategies,
        seeds=1,
        target="cuda",
        trials={"felix": args.trials},
        workload=None,
        model=None,
        max_compile_s=None,
        only=["*"],
        restore=args.restore,
        limit_s=args.limit_s,
        work=args.work,
        out=args.out,
        picture=picture,
        lanes=args.lanes,
        tuning_worker=args.tuning_worker,
        libraries_worker=args.libraries_worker,
    )


if __name__ == "__main__":
    sys.exit(main())
