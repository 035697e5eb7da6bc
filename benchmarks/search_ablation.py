"""What finds the lowest predictions at equal CPU seconds: local search, gradients, evolution.

    python benchmarks/search_ablation.py [--set traces templates] [--seeds 5] [--cpu-s 8]

Every search has the same sketches, exact formulas and shipped cost model, which does not change:
a candidate that is proposed counts as measured with what the model predicts. So the lowest
prediction says how well a search minimises, and nothing else; no GPU is needed. *traces* are
MetaSchedule's sketches of subgraphs on an H200, *templates* the sketches of generated kernels
there, *mixed* all sketches of subgraphs that have both, *cpu* MetaSchedule's sketches on this CPU.

A search has a process of its own and one thread, and ends after `--cpu-s` CPU seconds of its
rounds. The sketches are opened before, once for all searches of a task; formulas that a search
asks for beyond them are its own cost. Its best after t CPU seconds is that
of the rounds that ended by then; before the first has ended, that of the first.

*felix* is `--strategy local`, *more-polish* has twice the samples and generations, *each-kind*
polishes generated kernels and schedules apart, which differs on *mixed* alone. *gradient* is the
strategy of that name: a short descent from polished points. *descent* is a long one from samples,
before polishing; *descent-only* leaves polishing out; *first-order* scores only those neighbours
of a point that its gradient ranks first, *langevin* draws points around polished ones by the
gradient there, *preconditioned* is *gradient* with a full matrix of second moments in Adam,
*steepest* from the temperature at which slopes are steepest (`support/gradients.py`).
*evolution-24* and *evolution-64* are TVM's evolution with Felix's cost model in rounds of so many
candidates, on the sketches of the task's own program: it knows no templates and no variants.

*share*: the lowest prediction of any search of the task, over this one's; geometric means over
tasks and seeds. *felix / other*: this strategy's lowest prediction over felix's, above 1 where
felix is ahead, with the interval that holds 95 % of such means over tasks and seeds drawn anew.
After equal numbers of rounds they are compared once more: what each would be worth if a round cost
nothing. None of the subgraphs chose a setting of the search. Writes
benchmarks/results/gpu-search/search_ablation.json after each task; with --keep the pieces that it
has of as many CPU seconds are not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import ablation_table, common, subgraphs
from benchmarks.support.ablation_table import BUDGETS_S, COMPARED, FELIX
from benchmarks.support.searches import tuned

if TYPE_CHECKING:
    from felix.features.kind import FeatureKind

#: Targets of the sets.
TARGETS = {"traces": "h200", "templates": "h200", "mixed": "h200", "cpu": "llvm"}
SETS = {
    "traces": subgraphs.AWKWARD | {"gemm-odd-batch": "gemm:333,777,1111,batch=3"},
    "templates": {
        name: subgraphs.EVERY[name]
        for name in (
            "square-1024",
            "square-4096",
            "llama-qkv-16",
            "llama-up-100",
            "llama-down-512",
            "bert-up-197",
            "primes",
            "odd",
            "scores-197",
            "values-512",
            "llama-up-16-gelu",
            "bert-down-512-gelu",
            "resnet50-224-3-64-k7s2-b1",
            "resnet50-56-64-64-k3s1-b1",
            "resnet50-14-256-256-k3s1-b16",
            "resnet50-7-512-2048-k1s1-b1",
            "resnet50-28-512-1024-k1s2-b16",
            "r3d18-16x56-64-64-k3s1",
            "r3d18-4x14-256-256-k3s1",
            "r3d18-first",
        )
    },
    "mixed": {
        name: subgraphs.EVERY[name]
        for name in (
            "gemm-primes",
            "gemm-vit",
            "gemm-llama",
            "gemm-row",
            "gemm-5-rows",
            "attention",
            "gemm",
            "gemm-skinny",
            "batched-matmul",
            "conv2d-1x1",
        )
    },
    "cpu": {
        name: subgraphs.AWKWARD[name]
        for name in (
            "gemm-primes",
            "gemm-vit",
            "gemm-row",
            "attention",
            "sum-of-columns",
            "conv2d-first",
            "conv2d-35x35",
            "conv2d-grouped",
            "softmax-odd",
            "transposed-8x8",
        )
    },
}
#: Kinds of features of the sketches of a set, if others than those of traces.
KINDS = {"templates": ("template",), "mixed": ("trace", "template")}
#: TVM's evolution, by the candidates of a round.
OF_TVM = {"evolution-24": 24, "evolution-64": 64}
STRATEGIES = (FELIX, *COMPARED, *OF_TVM)
N_WARM_UP, N_ROUND = 8, 24
OUT = common.RESULTS / "gpu-search" / "search_ablation.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One search."""

    set: str
    name: str
    strategy: str
    seed: int
    cpu_s: float


#: (sketches, cost models, job) -> piece.
Run: TypeAlias = "Callable[[Sequence[Any], Any, Job], dict[str, Any]]"


def strategies_of(set_name: str) -> list[str]:
    """The strategies that can search a set: TVM's know no templates."""
    return [each for each in STRATEGIES if set_name not in KINDS or each not in OF_TVM]


def make_search(strategy: str, sketches: Sequence[Any], models: Any, seed: int) -> Any:
    """The search of a strategy."""
    from benchmarks.support import gradients
    from felix import search
    from felix.metaschedule import tvm_search

    if strategy in OF_TVM:
        sizes = tvm_search.TVMEvolutionOptions(threads=1)
        return tvm_search.TVMEvolutionarySearch(sketches, models, sizes, seed)
    kind, options = {
        FELIX: (search.LocalSearch, search.LocalOptions()),
        **{
            name: (search.LocalSearch, tuned.search_options(name, None))
            for name in (*tuned.LOCAL, *tuned.SELECTED)
        },
        "rank": (
            search.LocalSearch,
            search.LocalOptions(
                n_samples=512, n_template_samples=4096, n_polish=0, n_warm_polish=0, n_parents=0
            ),
        ),
        **{
            name: (search.EvolutionarySearch, tuned.search_options(name, None))
            for name in ("exact-evolution", "evolution-mean")
        },
        "gradient": (search.GradientSearch, search.GradientOptions()),
        "descent": (search.GradientSearch, gradients.DESCENT),
        "descent-only": (
            search.GradientSearch,
            dataclasses.replace(gradients.DESCENT, n_polish=0),
        ),
        "first-order": (gradients.FirstOrderSearch, search.LocalOptions()),
        "langevin": (gradients.LangevinSearch, search.GradientOptions(n_roundings=1)),
        "preconditioned": (gradients.PreconditionedSearch, search.GradientOptions()),
        "steepest": (gradients.SteepestSearch, search.GradientOptions()),
    }[strategy]
    return kind(sketches, models, options, seed)


def kinds_of(set_name: str) -> list[FeatureKind]:
    """Kinds of features of the sketches of a set."""
    from felix.features.kind import FeatureKind

    return [FeatureKind(kind) for kind in KINDS.get(set_name, ("trace",))]


def opened(set_name: str, name: str) -> tuple[list[Any], dict[FeatureKind, Any]]:
    """The sketches of a task that a search of the set has, with formulas; and their models."""
    import felix
    from felix import errors, workloads
    from felix.search import cost_model
    from felix.sketch import diversity

    kinds = kinds_of(set_name)
    task = workloads.parse(SETS[set_name][name], target=TARGETS[set_name])
    every = felix.sketches(task)
    sketches = []
    for sketch in diversity.searched(every):
        try:
            if sketch.formulas.kind in kinds:
                sketch.sample(1, seed=1, max_structures=1)
                sketches.append(sketch)
        except (errors.InvalidSchedule, errors.UnsupportedSchedule):
            continue
    return sketches, {
        kind: cost_model.load(None, task.target, seed=0, kind=kind).module for kind in kinds
    }


def of_task(jobs: Sequence[Job], n_processes: int, run: Run | None = None) -> list[dict[str, Any]]:
    """The searches of one task, each in a fork of this process that has its sketches.

    Args:
        run: what a fork does with a job (default: `piece`).
    """
    import torch

    torch.set_num_threads(1)
    context, results = multiprocessing.get_context("fork"), []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FELIX_CACHE_DIR"] = folder
        sketches, models = opened(jobs[0].set, jobs[0].name)
        for first in range(0, len(jobs), n_processes):
            running = []
            for job in jobs[first : first + n_processes]:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_tell, args=(theirs, run or piece, sketches, models, job)
                )
                process.start()
                theirs.close()
                running.append((process, ours))
            for process, ours in running:
                results.append(ours.recv())
                process.join()
    return results


def _tell(theirs: Connection, run: Run, sketches: Sequence[Any], models: Any, job: Job) -> None:
    with tempfile.TemporaryDirectory() as own:
        os.environ["FELIX_CACHE_DIR"] = own
        theirs.send(run(sketches, models, job))


def piece(sketches: Sequence[Any], models: Any, job: Job) -> dict[str, Any]:
    """One search: CPU seconds of this process and the lowest prediction after each round."""
    from felix.measure import protocol

    searcher = make_search(job.strategy, sketches, models, job.seed)
    after_s, best_us = [0.0], [math.inf]
    first, later = OF_TVM.get(job.strategy, N_WARM_UP), OF_TVM.get(job.strategy, N_ROUND)
    while after_s[-1] < job.cpu_s:
        start = time.process_time()
        suggestions = searcher.suggest(later if len(after_s) > 1 else first)
        if not suggestions:
            break
        best_us.append(min([best_us[-1], *(s.predicted_us for s in suggestions)]))
        searcher.update(
            [(s, protocol.Measurement(latency_us=s.predicted_us)) for s in suggestions]
        )
        after_s.append(after_s[-1] + time.process_time() - start)
    return {
        "set": job.set,
        "name": job.name,
        "strategy": job.strategy,
        "seed": job.seed,
        "sketches": len(sketches),
        "after_s": after_s[1:],
        "best_us": best_us[1:],
    }


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--set", nargs="+", choices=tuple(SETS), default=["traces", "templates", "cpu"]
    )
    parser.add_argument("--only", nargs="+", help="tasks by name")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cpu-s", type=float, default=max(BUDGETS_S))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", action="store_true", help="run what the results file lacks")
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    parser.add_argument("--picture", type=pathlib.Path, help="SVG to write")
    args = parser.parse_args()
    head = common.header("search_ablation")
    pieces = _kept(args.out, args.cpu_s) if args.keep else []
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        for set_name in args.set:
            for name in SETS[set_name]:
                if args.only is None or name in args.only:
                    known = {(p["set"], p["name"], p["strategy"], p["seed"]) for p in pieces}
                    jobs = [
                        Job(set_name, name, strategy, seed, args.cpu_s)
                        for seed in range(args.seeds)
                        for strategy in strategies_of(set_name)
                        if strategy in args.strategies
                        and (set_name, name, strategy, seed) not in known
                    ]
                    if jobs:
                        pieces += pool.submit(of_task, jobs, args.processes).result()
                        _write(args.out, head, args.cpu_s, pieces)
                        print(set_name, name, _ends(pieces[-len(jobs) :]), flush=True)
    data = _write(args.out, head, args.cpu_s, pieces)
    print(ablation_table.render(data))
    if args.picture is not None:
        ablation_table.picture(data, args.picture)
    return 0


def _kept(path: pathlib.Path, cpu_s: float) -> list[dict[str, Any]]:
    """The pieces of a results file; none of a file of other seconds, or of none."""
    data = json.loads(path.read_text()) if path.exists() else {}
    return list(data["pieces"]) if data.get("cpu_s") == cpu_s else []


def _write(
    path: pathlib.Path, head: Mapping[str, Any], cpu_s: float, pieces: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write the results file; what it has."""
    data = {
        **head,
        "targets": TARGETS,
        "cpu_s": cpu_s,
        "pieces": pieces,
        "summary": ablation_table.summary(pieces, cpu_s),
    }
    common.write(path, data)
    return data


def _ends(pieces: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Where each strategy ended with the last seed, in us."""
    return {each["strategy"]: round(each["best_us"][-1], 2) for each in pieces}


if __name__ == "__main__":
    sys.exit(main())
