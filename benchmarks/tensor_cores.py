"""Products and convolutions on tensor cores: Felix beside cuBLAS, cuDNN and inductor, on one GPU.

    python benchmarks/tensor_cores.py [--set gemms fused] [--shapes square-1024 ...]
    python benchmarks/tensor_cores.py --limit-s 500 --picture FILE.svg
    python benchmarks/tensor_cores.py --without-libraries --out tensor-tuning-h200.json

For every shape three pieces, each in a process of its own:
  felix        `felix.tune` as it is, with running measuring workers and an empty formula cache
  first        the kernel that the cost model prefers when nothing was measured
               (`benchmarks/support/searches/first_choice.py`)
  vendor       PyTorch eager (cuBLAS, cuDNN), compiled by inductor with max-autotune (Triton), and
               Felix's winner and first choice, in turns by one process and clock, with a cold L2

Shapes of `fused` have a bias and a GELU: eager runs them as kernels of their own, inductor and
Felix in the epilogue. Convolutions are in bfloat16 with channels last; the libraries are timed
with channels first as well, and their better layout counts. The sets take turns, so that a run
that is short of time has some of each. With --without-libraries there is no third piece: Felix's
winner and first choice are compared by the latencies of its own pool.
Pieces that are done stay in the work folder and are not run again. Durations in seconds, latencies
in microseconds; ratios are the faster library's latency over Felix's.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import search_efficiency
from benchmarks.support import common, efficiency, ratios, subgraphs

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
    "tuning s": "tuning_s",
    "to 90% s": "near_s",
    "build s": "build_s",
    "first / best": "first_ratio",
}
TRIALS = 64
#: The model's first choice is good enough if it takes at most so many times as long as the best.
NEAR_BEST = 1.25
#: Latencies within this share of a search's result are near it.
SHARE = 0.9


def main() -> int:
    """Run the pieces that are missing; returns 1 if one failed."""
    return search_efficiency.search(_arguments(), sys.modules[__name__], "tensor_cores")


def in_turns(sets: Sequence[str]) -> list[str]:
    """The shapes of several sets, one of each, then the next of each."""
    turns = itertools.zip_longest(*(SETS[each] for each in sets))
    return [name for turn in turns for name in turn if name is not None]


def render(data: Mapping[str, Any]) -> str:
    """A row a set, in Markdown: the libraries over Felix, what tuning took, the first choices."""
    rows = []
    every = shapes(data["runs"])
    for name, members in SETS.items():
        of_set = [row for row in every if row["name"] in members]
        if not of_set:
            continue
        behind = {row["name"]: row["ratio"] for row in of_set if row["ratio"] is not None}
        ends = ratios.ends({shape: [ratio] for shape, ratio in behind.items()}) if behind else None
        firsts = [row["first_ratio"] for row in of_set if row["first_ratio"] is not None]
        rows.append(
            [
                name,
                len(of_set),
                *((str(ratios.single(behind)), *ends) if ends else ()),
                statistics.median(row["tuning_s"] for row in of_set),
                max(row["tuning_s"] for row in of_set),
                statistics.median(row["near_s"] for row in of_set),
                f"{sum(ratio <= NEAR_BEST for ratio in firsts)} of {len(firsts)}",
            ]
        )
    if not rows:
        return ""
    head = ["tuning s", "at most", "within 10 % s", "first choice within 25 %"]
    libraries = ["library / Felix", "least", "most"] if len(rows[0]) > 6 else []
    return common.table(["set", "shapes", *libraries, *head], rows)


def table_of_pieces(data: Mapping[str, Any]) -> str:
    """A row a shape, for who ran it."""
    rows = [[row[key] for key in COLUMNS.values()] for row in shapes(data["runs"])]
    return common.table(list(COLUMNS), rows)


def shapes(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each shape whose search is there, and its libraries or else its first choice.

    The best of `first_ratio` is the faster of Felix's winner and first choice. Without libraries
    their latencies and `ratio` are None.
    """
    pieces = {(run["name"], run["strategy"]): run for run in runs}
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
                "tuning_s": felix["wall_s"],
                "near_s": efficiency.time_to(felix, felix["curve"][-1][2] / SHARE),
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
    us = {
        "felix": min(
            latency_us for *_, latency_us in efficiency.remeasured(felix) or felix["curve"]
        )
    }
    if first is not None and first.get("us") is not None:
        us["first"] = first["us"]
    return us


def picture(data: Mapping[str, Any], path: pathlib.Path) -> None:
    """A bar for each shape: the faster library's latency over Felix's."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = [row for row in shapes(data["runs"]) if row["ratio"] is not None]
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
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=[name for members in SETS.values() for name in members],
        metavar="NAME",
        help="only these (default: all of the sets)",
    )
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--limit-s", type=float, help="begin no further piece after this long")
    parser.add_argument("--without-libraries", action="store_true", help="Felix alone")
    parser.add_argument("--work", type=pathlib.Path, default=common.PARTS / "tensor_cores")
    out = common.RESULTS / "gpu-search" / "tensor-cores-h200.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    parser.add_argument("--picture", type=pathlib.Path, help="SVG to write")
    args = parser.parse_args()
    return argparse.Namespace(
        set=[],
        subgraphs=args.shapes or in_turns(args.set),
        strategies=STRATEGIES[:2] if args.without_libraries else STRATEGIES,
        seeds=1,
        target="cuda",
        trials={"felix": args.trials},
        workload=None,
        model=None,
        only=["*"],
        limit_s=args.limit_s,
        work=args.work,
        out=args.out,
        picture=args.picture,
    )


if __name__ == "__main__":
    sys.exit(main())
