"""Loops written out by TVM against loops under `#pragma unroll`: the same kernels both ways.

    python benchmarks/unrolling.py [--schedules 24]

For every workload, schedules that unroll (half of them the fastest by the analytic model, half
random) are built and timed twice, by pools that differ in `explicit_unroll` only. Schedules with
software pipelines are left out: TVM can only write those out. Latencies in microseconds, builds in
seconds (with all builders busy). Writes `benchmarks/results/unrolling-DEVICE.json`.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from benchmarks import common

WORKLOADS = (
    "gemm:1024,1024,1024",
    "gemm:128,3072,768",
    "conv2d:1,56,56,64,64,3,padding=1",
    "conv2d:16,14,14,256,256,3,padding=1",
    "conv3d:1,8,28,28,64,64,3,padding=1",
    "depthwise_conv2d:1,56,56,144,3,padding=1",
    "conv_transpose2d:1,16,16,256,128,4,stride=2,padding=1",
    "softmax:1536x128",
    "layer_norm:8192x768",
    "reduce:64x131072,axes=1",
)


def main() -> int:
    """Measure all pairs; prints a table and writes the results."""
    args = _arguments()
    from felix.measure import local

    found = {text: _schedules(text, args.schedules, args.seed) for text in WORKLOADS}
    measured: dict[str, dict[str, list[Any]]] = {text: {} for text in WORKLOADS}
    first = next(iter(found.values()))[0]
    for explicit in (True, False):
        options = local.LocalOptions(explicit_unroll=explicit, build_timeout_s=60.0)
        with local.LocalPool(first, options) as pool:
            views = {text: pool.for_task(task) for text, (task, _) in found.items()}
            futures = {
                text: [views[text].submit(mod) for mod in mods]
                for text, (_, mods) in found.items()
            }
            name = "explicit" if explicit else "pragma"
            for text, waiting in futures.items():
                measured[text][name] = [future.result() for future in waiting]
    results = {text: _pairs(both) for text, both in measured.items()}
    data = common.header("unrolling") | {"workloads": results}
    common.write(args.out, data)
    print(render(data))
    return 0


def _pairs(both: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [
        {
            name: {"latency_us": m.latency_us, "build_s": m.build_s, "spread": m.spread,
                   "error": m.message or None}
            for name, m in (("explicit", explicit), ("pragma", pragma))
        }
        for explicit, pragma in zip(both["explicit"], both["pragma"], strict=True)
    ]  # fmt: skip


def render(data: dict[str, Any]) -> str:
    """The table of a results file: pragma over explicit."""
    rows = []
    for text, pairs in data["workloads"].items():
        ran = [p for p in pairs if p["explicit"]["latency_us"] and p["pragma"]["latency_us"]]
        if len(ran) < 2:
            rows.append([text, len(ran), None, None, None, None])
            continue
        ratios = [p["pragma"]["latency_us"] / p["explicit"]["latency_us"] for p in ran]
        best = [min(p[kind]["latency_us"] for p in ran) for kind in ("explicit", "pragma")]
        builds = [statistics.mean(p[kind]["build_s"] for p in ran)
                  for kind in ("explicit", "pragma")]  # fmt: skip
        low, *_, high = statistics.quantiles(ratios, n=10)
        spread = f"{low:.2f} {statistics.median(ratios):.2f} {high:.2f}"
        rows.append([text, len(ran), spread, best[1] / best[0], *builds])
    head = ["workload", "pairs", "ratio 10/50/90 %", "ratio of bests",
            "build explicit", "build pragma"]  # fmt: skip
    return common.table(head, rows)


def _schedules(text: str, count: int, seed: int) -> tuple[Any, list[Any]]:
    import torch

    import costmodel
    import felix
    from costmodel import featurize
    from felix import workloads
    from felix.measure import cuda_build

    task = workloads.parse(text, target="cuda")
    rated: list[tuple[float, int, Any]] = []
    sketches = felix.sketches(task)
    for number, sketch in enumerate(sketches):
        rows = sketch.sample(256, seed=seed)
        names = tuple(sketch.formulas.names)
        values = sketch.formulas.exact(rows)
        model, _ = costmodel.load_for(task.target, names, featurize.features_version())
        with torch.no_grad():
            mask = featurize.mask_of(values, names)
            costs = model(torch.tensor(values, dtype=torch.float32), torch.tensor(mask))
        rated += [(float(cost), number, row) for cost, row in zip(costs, rows, strict=True)]
    best = sorted(rated, key=lambda item: item[0])
    order = [best[i // 2] if i % 2 else rated[i] for i in range(len(rated))]
    mods: list[Any] = []
    for _, number, row in order:
        if len(mods) == count:
            break
        try:
            mod = sketches[number].schedule(row).mod
        except felix.InvalidSchedule:
            continue
        if not cuda_build.pipelined(mod) and cuda_build.unrolls(mod):
            mods.append(mod)
    return task, mods


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, default=common.RESULTS / "unrolling-h200.json")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
