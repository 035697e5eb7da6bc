"""GEMMs on tensor cores: Felix beside cuBLAS and inductor, on one GPU.

    python benchmarks/tensor_cores.py [--set gemms fused] [--shapes square-1024 ...]
    python benchmarks/tensor_cores.py --limit-s 500 --picture tensor-cores.svg

For every shape two pieces, each in a process of its own:
  felix        `felix.tune` as it is, with running measuring workers and an empty formula cache
  vendor       PyTorch eager (cuBLAS), compiled by inductor with max-autotune (Triton), and
               Felix's winner, in turns by one process and clock, with a cold L2

Shapes of `fused` have a bias and a GELU: eager runs them as kernels of their own, inductor and
Felix in the epilogue. Pieces that are done stay in the work folder and are not run again.
Durations in seconds, latencies in microseconds; ratios are the faster library's latency over
Felix's.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import search_efficiency
from benchmarks.support import common, efficiency, subgraphs

SETS = {"gemms": subgraphs.TENSOR_GEMMS, "fused": subgraphs.TENSOR_FUSED}
TRIALS = 64


def main() -> int:
    """Run the pieces that are missing; returns 1 if one failed."""
    return search_efficiency.search(_arguments(), sys.modules[__name__], "tensor_cores")


def render(data: Mapping[str, Any]) -> str:
    """Tables in Markdown: every shape, and the ratios of each set."""
    rows = shapes(data["runs"])
    if not rows:
        return ""
    every = common.table(
        ["shape", "sketch", "Felix us", "eager us", "inductor us", "library / Felix", "TFLOP/s",
         "tuning s", "to 90% s", "kernels"],
        [[row[key] for key in
          ("name", "sketch", "felix_us", "eager_us", "inductor_us", "ratio", "tflops", "tuning_s",
           "to_90%_s", "kernels")] for row in rows],
    )  # fmt: skip
    whole = [
        [name, len(ratios), statistics.geometric_mean(ratios), min(ratios), max(ratios)]
        for name, ratios in ratios_by_set(rows).items()
    ]
    head = ["set", "shapes", "geometric mean of library / Felix", "least", "most"]
    return f"{common.table(head, whole)}\n\n{every}"


def shapes(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each shape that both pieces are there of."""
    pieces = {(run["name"], run["strategy"]): run for run in runs}
    searched = {entry["name"]: entry for entry in efficiency.summary(list(runs))}
    rows = []
    for name, strategy in pieces:
        if strategy != "vendor" or not pieces.get((name, "felix"), {}).get("curve"):
            continue
        us, felix = pieces[name, "vendor"]["latency_us"], pieces[name, "felix"]
        rows.append(
            {
                "name": name,
                "sketch": felix["variant"],
                "felix_us": us["felix"],
                "eager_us": us["eager"],
                "inductor_us": us["inductor"],
                "ratio": min(us["eager"], us["inductor"]) / us["felix"],
                "tflops": felix["flops"] / us["felix"] * 1e-6,
                "tuning_s": felix["wall_s"],
                "to_90%_s": searched[name]["to_90%_s"],
                "kernels": felix["n_measured"],
            }
        )
    return rows


def ratios_by_set(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Ratios of the shapes of each set that were measured."""
    of_sets = {name: [row["ratio"] for row in rows if row["name"] in members]
               for name, members in SETS.items()}  # fmt: skip
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
    parser.add_argument("--shapes", nargs="+", choices=names, metavar="NAME",
                        help="only these (default: all of the sets)")  # fmt: skip
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--limit-s", type=float, help="start no further piece after this long")
    parser.add_argument("--work", type=pathlib.Path, default=common.PARTS / "tensor_cores")
    out = common.RESULTS / "gpu-search" / "tensor-cores-h200.json"
    parser.add_argument("--out", type=pathlib.Path, default=out)
    parser.add_argument("--picture", type=pathlib.Path, help="SVG to write")
    args = parser.parse_args()
    chosen = args.shapes or [name for each in args.set for name in SETS[each]]
    return argparse.Namespace(
        set=[], subgraphs=chosen, strategies=("felix", "vendor"), seeds=1, target="cuda",
        trials={"felix": args.trials}, workload=None, model=None, max_compile_s=None, only=["*"],
        restore=[], limit_s=args.limit_s, work=args.work, out=args.out, picture=args.picture,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
