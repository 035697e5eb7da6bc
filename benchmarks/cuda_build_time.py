"""What building a candidate for CUDA costs, and how well the search predicts it. Needs no GPU.

    python benchmarks/cuda_build_time.py [--subgraphs gemm conv3d] [--compiled 8]

Of each subgraph (`support.subgraphs`): random schedules of all sketches, and what rounds of
local search propose with the shipped cost model, without a limit on builds and as if each
candidate ran as fast as predicted. All are lowered, which gives true sizes; of those predicted to
build in a second or more (*long*) NVRTC compiles some, drawn at random (without NVRTC, none: pip
install nvidia-cuda-nvrtc). Seconds are CPU seconds of one process.

*Arrays* is the time of the source with registers in arrays, as TVM writes it, over that with
`cuda.cubins.scalars`, all of a row together; *same cubin* and *same size* are of those for which
the two sources differ.

*Too long* is what a builder would refuse or give up (`LocalOptions`); *predicted* are those of
them that the search would put off, *put off* others that it would put off.

Writes benchmarks/results/gpu-measuring/cuda_build_time.json; subgraphs not named keep what the
file has of them.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
import time
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, subgraphs

TARGET = "h200"
#: Of a round of the search.
ROUND = 24
#: Candidates predicted to build faster are not compiled: no limit is near.
LONG_S = 1.0
OUT = common.RESULTS / "gpu-measuring" / "cuda_build_time.json"
COLUMNS = (
    "candidates",
    "n",
    "n long",
    "statements 5/50/95 %",
    "n timed",
    "seconds 5/50/95 %",
    "arrays",
    "same cubin",
    "same size",
    "too long",
    "predicted",
    "put off",
)


def measure(text: str, n_random: int, n_rounds: int, n_compiled: int) -> list[dict[str, Any]]:
    """Sizes of candidates of one workload, and for some the seconds of NVRTC."""
    import felix
    from felix import errors, workloads
    from felix.runner.cuda import nvrtc

    task = workloads.parse(text, target=TARGET)
    sketches = felix.trace_sketches(task)
    drawn = [
        ("random", index, tuple(row))
        for index, sketch in enumerate(sketches)
        for row in sketch.sample(-(-n_random // len(sketches)), seed=5, max_structures=4).tolist()
    ]
    records: list[dict[str, Any]] = []
    texts: dict[str, tuple[int, str]] = {}
    for kind, index, row in drawn + proposed(task, sketches, n_rounds):
        record, source, arrays = size(sketches[index], row, task.target)
        records.append({"kind": kind, "sketch": index, **record})
        texts.setdefault(source, (len(records) - 1, arrays))
    try:
        nvrtc.load()
    except errors.MeasureError:
        return records
    long = [t for t, (i, _) in texts.items() if records[i]["predicted_s"] >= LONG_S]
    rng = np.random.default_rng(0)
    for number in rng.permutation(len(long))[:n_compiled].tolist():
        source = long[number]
        index, arrays = texts[source]
        if not refused(records[index]):
            records[index] |= compiled(source, arrays)
    return records


def compiled(source: str, arrays: str) -> dict[str, Any]:
    """Seconds of NVRTC for both sources, and what of the cubins differs."""
    from felix.runner.cuda import nvrtc

    def timed(text: str) -> tuple[float, bytes]:
        before = time.process_time()
        cubin = nvrtc.compile_cubin(text, "sm_90")
        return time.process_time() - before, cubin

    (nvrtc_s, cubin), (arrays_s, other) = timed(source), timed(arrays)
    return {
        "nvrtc_s": nvrtc_s,
        "nvrtc_arrays_s": arrays_s,
        "has_arrays": source == arrays,
        "same_cubin": cubin == other,
        "same_size": len(cubin) == len(other),
    }


def proposed(task: Any, sketches: list[Any], n_rounds: int) -> list[tuple[str, int, Any]]:
    """What rounds of the search propose after its warm-up."""
    from costmodel import registry
    from felix.features import spec
    from felix.search import gradient, selection

    model, _ = registry.load_for(task.target, spec.NAMES, spec.FEATURES_VERSION)
    any_size = selection.SelectionOptions(max_compile_s=math.inf)
    options = gradient.GradientOptions(selection=any_size, warm_selection=any_size)
    searcher = gradient.GradientSearch(sketches, model, options, seed=0)
    batches: list[Any] = []
    for _ in range(n_rounds + options.n_warm_rounds):
        batch = searcher.ask(ROUND)
        searcher.tell([(s, s.predicted_us) for s in batch])
        batches.append([("proposed", s.sketch_index, s.decisions) for s in batch])
    return [c for batch in batches[options.n_warm_rounds :] for c in batch]


def size(sketch: Any, row: Any, target: Any) -> tuple[dict[str, Any], str, str]:
    """What is predicted and true of a candidate, its source, and that with arrays."""
    from felix.builder.cuda import build, cubins
    from felix.search import build_time

    cost = build_time.BuildCost.of(sketch, sketch.formulas.exact(np.asarray([row])))
    mod = sketch.schedule(row).mod
    before = time.process_time()
    source = build.lower(mod, target).source.text
    record = {
        "predicted_statements": float(cost.statements[0]),
        "predicted_s": float(cost.compile_s[0]),
        "statements": source.count(";\n"),
        "source_bytes": len(source),
        "lower_s": time.process_time() - before,
    }
    with mock.patch.object(cubins, "scalars", str):  # leaves arrays as they are
        return record, source, build.lower(mod, target).source.text


def refused(record: dict[str, Any]) -> bool:
    """Whether a builder refuses the source for its length."""
    from felix.measure import local

    return bool(record["source_bytes"] > local.LocalOptions().max_source_bytes)


def summary(records_of: dict[str, list[dict[str, Any]]]) -> list[list[Any]]:
    """A row for each kind of candidate and subgraph that has long ones, and for all."""
    rows = []
    for kind in ("random", "proposed"):
        of_kind = {
            name: [r for r in records if r["kind"] == kind] for name, records in records_of.items()
        }
        rows += [[kind, name, *_row(records)] for name, records in of_kind.items()]
        rows.append([kind, "all", *_row([r for records in of_kind.values() for r in records])])
    return [row for row in rows if row[3]]


def render(result: dict[str, Any]) -> str:
    """The table of a results file: rows of all subgraphs."""
    rows = [row for row in summary(result["found"]) if row[1] == "all"]
    return common.table(COLUMNS, [[row[0], *row[2:]] for row in rows])


def _row(records: list[dict[str, Any]]) -> list[Any]:
    """Predicted over true: statements of the long ones, seconds of those compiled; and limits."""
    from felix.measure import local
    from felix.search import selection

    long = [r for r in records if r["predicted_s"] >= LONG_S]
    timed = [r for r in long if "nvrtc_s" in r]
    limit_s = selection.SelectionOptions().max_compile_s
    decided = timed + [r for r in records if refused(r)]
    too_long = [
        r for r in decided if refused(r) or build_s(r) > local.LocalOptions().build_timeout_s
    ]
    others = [r for r in decided if r not in too_long]
    return [
        len(records),
        len(long),
        _percentiles([r["predicted_statements"] / r["statements"] for r in long]),
        len(timed),
        _percentiles([r["predicted_s"] / build_s(r) for r in timed]),
        *_arrays(timed),
        len(too_long),
        sum(r["predicted_s"] > limit_s for r in too_long),
        sum(r["predicted_s"] > limit_s for r in others),
    ]


def _arrays(timed: list[dict[str, Any]]) -> list[Any]:
    changed = [r for r in timed if not r["has_arrays"]]
    both = [math.fsum(r[key] for r in timed) for key in ("nvrtc_arrays_s", "nvrtc_s")]
    same = [sum(r[key] for r in changed) for key in ("same_cubin", "same_size")]
    return [both[0] / both[1] if timed else None, *(f"{n} of {len(changed)}" for n in same)]


def build_s(record: dict[str, Any]) -> float:
    """CPU seconds of a build."""
    return float(record["lower_s"] + record["nvrtc_s"])


def _percentiles(ratios: list[float]) -> str:
    if not ratios:
        return "-"
    return " ".join(f"{value:.2f}" for value in np.percentile(ratios, [5, 50, 95]))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = list(subgraphs.SUBGRAPHS)
    parser.add_argument("--subgraphs", nargs="+", choices=names, default=names)
    parser.add_argument("--random", type=int, default=24, help="random schedules a subgraph")
    parser.add_argument("--rounds", type=int, default=2, help=f"of {ROUND} proposals a subgraph")
    parser.add_argument("--compiled", type=int, default=8, help="most that NVRTC compiles of one")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    head = common.header("cuda_build_time")
    records_of = json.loads(args.out.read_text())["found"] if args.out.exists() else {}
    for name in args.subgraphs:
        text = subgraphs.SUBGRAPHS[name]
        records_of[name] = measure(text, args.random, args.rounds, args.compiled)
        common.write(args.out, {**head, "found": records_of})
    print(common.table(["candidates", "name", *COLUMNS[1:]], summary(records_of)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
