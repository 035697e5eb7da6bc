"""One descent for several tasks, against one each: CPU milliseconds of a step.

    python benchmarks/merged_descent.py [--repeats 5]

The tasks are subgraphs of `search_ablation` for an H200 under MetaSchedule's sketches, the first
1, 2, 4 and 8 of them. *together*: the entries of all tasks, 8 seeds of each sketch's first
structure, are merged into one program and descend together, as the sketches of one task do.
*apart*: a descent for each task, one after the other. Both have as many steps, one thread and
programs that are compiled already; they take turns, and the medians of the repeats count.
*merging*: what making the programs takes once, again whenever a structure changes.

*large*: 128 seeds and 50 steps over all sketches of a GEMM; how long that takes, and the cost
model alone for as many programs, forward and backward. Writes
benchmarks/results/formulas/merged_descent.json.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks import search_ablation
from benchmarks.support import common

NAMES = (
    "gemm-primes",
    "gemm-vit",
    "gemm-row",
    "attention",
    "conv2d-first",
    "conv2d-35x35",
    "conv2d-grouped",
    "softmax-odd",
)
COUNTS = (1, 2, 4, 8)
STEPS, N_SEEDS = 10, 8
LARGE, LARGE_STEPS, LARGE_SEEDS = "gemm:1024,1024,1024", 50, 128
OUT = common.RESULTS / "formulas" / "merged_descent.json"


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--counts", nargs="+", type=int, choices=COUNTS, default=list(COUNTS))
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FELIX_CACHE_DIR"] = folder
        rows = measured(NAMES[: max(args.counts)], args.counts, args.repeats)
        data = common.header("merged_descent") | {"rows": rows, "large": _large(args.repeats)}
    common.write(args.out, data)
    print(render(data))
    return 0


def measured(names: Sequence[str], counts: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """One row for each number of tasks."""
    import torch

    torch.set_num_threads(1)
    opened = [search_ablation.opened("traces", name) for name in names]
    (model,) = opened[0][1].values()  # of the target, the same for all
    return [_row([sketches for sketches, _ in opened[:n]], model, repeats) for n in counts]


def _row(tasks: Sequence[Sequence[Any]], model: Any, repeats: int) -> dict[str, Any]:
    from felix.search import descent

    options = descent.DescentOptions(steps=STEPS, record_every=STEPS)
    together, every = _descent([each for task in tasks for each in task], model, options)
    apart = [_descent(task, model, options) for task in tasks]
    work: dict[str, Callable[[], object]] = {
        "together": lambda: together.run(every),
        "apart": lambda: [each.run(entries) for each, entries in apart],
    }
    first_ms = {name: _cpu_ms(each) for name, each in work.items()}
    times = [{name: _cpu_ms(each) for name, each in work.items()} for _ in range(repeats)]
    row: dict[str, Any] = {"tasks": len(tasks), "entries": len(every)}
    for name in work:
        median_ms = statistics.median(each[name] for each in times)
        row |= {f"{name}_ms": median_ms / STEPS, f"{name}_merging_ms": first_ms[name] - median_ms}
    return row


def _large(repeats: int) -> dict[str, float]:
    """CPU seconds of a descent of many seeds, and of the cost model's share of it."""
    import felix
    from felix import workloads
    from felix.features.kind import FeatureKind
    from felix.search import cost_model, descent
    from felix.sketch import diversity

    task = workloads.parse(LARGE, target=search_ablation.TARGETS["traces"])
    model = cost_model.load(None, task.target, seed=0, kind=FeatureKind.TRACE).module
    sketches = list(diversity.searched(felix.trace_sketches(task)))
    options = descent.DescentOptions(steps=LARGE_STEPS, record_every=LARGE_STEPS)
    runner, entries = _descent(sketches, model, options, LARGE_SEEDS)
    runner.run(entries)
    n_rows = max(runner.scorer.of_structure(e.sketch_index, e.structure).n_rows for e in entries)
    shape = (LARGE_SEEDS * len(entries), n_rows, sketches[0].formulas.n_features)
    whole = [_cpu_ms(lambda: runner.run(entries)) for _ in range(repeats)]
    alone = [_cpu_ms(lambda: _through(model, shape)) for _ in range(repeats)]
    return {"descent_s": statistics.median(whole) / 1e3, "model_s": statistics.median(alone) / 1e3}


def _through(model: Any, shape: tuple[int, int, int]) -> None:
    """As many passes of the cost model as a descent's steps, with gradients of its inputs."""
    import torch

    mask = torch.ones(shape[:2])
    for _ in range(LARGE_STEPS):
        rows = torch.zeros(shape, requires_grad=True)
        torch.autograd.grad(model(rows, mask).sum(), rows)


def _descent(
    sketches: Sequence[Any], model: Any, options: Any, n_seeds: int = N_SEEDS
) -> tuple[Any, list[Any]]:
    """A descent over sketches and its entries: seeds under a structure of each."""
    from felix.features.kind import FeatureKind
    from felix.search import descent, scoring
    from felix.sketch import coordinates

    entries = []
    for index, sketch in enumerate(sketches):
        legal = sketch.sample(4 * n_seeds, seed=1, max_structures=1)
        structures = [coordinates.structure(sketch.variables, row) for row in legal.tolist()]
        same = [
            row
            for row, each in zip(legal.tolist(), structures, strict=True)
            if each == structures[0]
        ]
        seeds = np.asarray([same[i % len(same)] for i in range(n_seeds)], np.int64)
        entries.append(descent.Entry(index, structures[0], seeds))
    scorer = scoring.Scorer(list(sketches), {FeatureKind.TRACE: model})
    return descent.Descent(scorer, options), entries


def _cpu_ms(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return 1e3 * (time.process_time() - begin)


def render(data: dict[str, Any]) -> str:
    """The table of a results file."""
    head = [
        "tasks",
        "entries",
        "together ms a step",
        "apart ms a step",
        "together / apart",
        "merging together ms",
        "merging apart ms",
    ]
    rows = [
        [
            row["tasks"],
            row["entries"],
            row["together_ms"],
            row["apart_ms"],
            row["together_ms"] / row["apart_ms"],
            row["together_merging_ms"],
            row["apart_merging_ms"],
        ]
        for row in data["rows"]
    ]
    large = data["large"]
    return (
        f"{LARGE_SEEDS} seeds and {LARGE_STEPS} steps over all sketches of {LARGE} take "
        f"{large['descent_s']:.3g} CPU seconds, the cost model alone {large['model_s']:.3g}.\n\n"
        + common.table(head, rows)
    )


if __name__ == "__main__":
    sys.exit(main())
