"""Ways to build one kernel: which are as fast, and what building costs.

    python benchmarks/unrolling.py [--schedules 24]

For every workload, schedules that unroll (half of them the fastest by the analytic model, half
random) are built and timed by pools that differ in how they build only:
  explicit       TVM writes unrolled loops out, as MetaSchedule's space says
  pragma         `#pragma unroll` in their place
  explicit-quick, pragma-quick    the same with `--Ofast-compile=min`
  explicit-arrays    arrays in registers as TVM writes them, not `cuda.source.scalars`
Schedules with software pipelines are left out: TVM can only write those out. Latencies in
microseconds, builds in seconds (with all builders busy). Writes
`benchmarks/results/gpu-measuring/unrolling-DEVICE.json`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pathlib
import statistics
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common

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
VARIANTS = ("explicit", "pragma", "explicit-quick", "pragma-quick", "explicit-arrays")
OUT = common.RESULTS / "gpu-measuring" / "unrolling-h200.json"


def main() -> int:
    """Measure all pairs; prints a table and writes the results."""
    args = _arguments()
    import tvm

    from felix import target, workloads
    from felix.measure.cuda.building import nvrtc
    from felix.measure.pool import local

    built_for = target.describe(target.parse("cuda"))  # children may not ask the device
    with multiprocessing.get_context("fork").Pool(len(WORKLOADS)) as processes:
        requests = [(text, built_for, args.schedules, args.seed) for text in WORKLOADS]
        texts = processes.starmap(_schedules, requests)
    schedules = {
        text: (workloads.parse(text, target=built_for), [tvm.ir.load_json(mod) for mod in mods])
        for text, mods in zip(WORKLOADS, texts, strict=True)
    }
    measured: dict[str, dict[str, list[Any]]] = {text: {} for text in WORKLOADS}
    first = next(iter(schedules.values()))[0]
    for name in args.variants:
        options = local.LocalOptions(
            explicit_unroll=name.startswith("explicit"),
            nvrtc_options=nvrtc.FAST + (("--Ofast-compile=min",) if "quick" in name else ()),
            scalar_registers="arrays" not in name,
            build_timeout_s=8.0,
        )
        with local.LocalPool(first, options) as pool:
            views = {text: pool.for_task(task) for text, (task, _) in schedules.items()}
            futures = {
                text: [views[text].submit(mod) for mod in mods]
                for text, (_, mods) in schedules.items()
            }
            for text, waiting in futures.items():
                measured[text][name] = [future.result() for future in waiting]
    results = {text: _rows(both) for text, both in measured.items()}
    data = common.header("unrolling") | {"workloads": results}
    common.write(args.out, data)
    print(render(data))
    return 0


def _rows(by_variant: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """One dictionary a schedule: variant -> its measurement."""
    return [
        {
            name: {
                "latency_us": m.latency_us,
                "build_s": m.build_s,
                "spread": m.spread,
                "error": m.message or None,
            }
            for name, m in zip(by_variant, measured, strict=True)
        }
        for measured in zip(*by_variant.values(), strict=True)
    ]


def render(data: dict[str, Any]) -> str:
    """The table of a results file: each variant over `explicit`."""
    rows = []
    for text, schedules in data["workloads"].items():
        for name in schedules[0]:
            ran = [s for s in schedules if all(m["latency_us"] for m in s.values())]
            if len(ran) < 2:
                continue
            ratios = [s[name]["latency_us"] / s["explicit"]["latency_us"] for s in ran]
            best = min(s[name]["latency_us"] for s in schedules if s[name]["latency_us"])
            builds = [s[name]["build_s"] for s in schedules]
            low, *_, high = statistics.quantiles(ratios, n=10)
            spread = f"{low:.2f} {statistics.median(ratios):.2f} {high:.2f}"
            failed = sum(s[name]["latency_us"] is None for s in schedules)
            costs = [statistics.mean(builds), max(builds)]
            rows.append([text, name, len(ran), spread, best, *costs, failed])
    head = [
        "workload",
        "variant",
        "schedules",
        "ratio 10/50/90 %",
        "best us",
        "build mean s",
        "build max s",
        "failed",
    ]
    return common.table(head, rows)


def _schedules(text: str, built_for: str, count: int, seed: int) -> list[str]:
    """Modules as TVM's JSON; runs in a fork."""
    import torch
    import tvm

    import costmodel
    import felix
    from costmodel.data import felix_bridge
    from felix import workloads
    from felix.measure.cuda.building import build

    torch.set_num_threads(1)
    task = workloads.parse(text, target=built_for)
    rated: list[tuple[float, int, Any]] = []
    sketches = felix.trace_sketches(task)
    for number, sketch in enumerate(sketches):
        rows = sketch.sample(256, seed=seed)
        names = tuple(sketch.formulas.names)
        values = sketch.formulas.exact(rows)
        model, _ = costmodel.load_for(task.target, names, felix_bridge.features_version())
        with torch.no_grad():
            mask = felix_bridge.mask_of(values, names)
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
        if not build.pipelined(mod) and build.unrolls(mod):
            mods.append(mod)
    return [str(tvm.ir.save_json(mod)) for mod in mods]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--schedules", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=OUT,
    )
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
