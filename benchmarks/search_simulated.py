"""What searches find where the cost model is wrong as it is about workloads that it never saw.

    python benchmarks/search_simulated.py [--set traces mixed] [--seeds 3]

As `search_ablation`, but a candidate that is proposed is "measured": its latency is what the model
predicts and an error on top, drawn of the process that the model's errors on held-out workloads
are most likely of (`python -m costmodel evaluate --measured`, `support/drawn_errors.py`). The
correction learns it, as in a run: rounds of 8, 24, 24 and 16 candidates, where a round is searched
while half of the one before is still being measured. So it says, without a GPU, how well a search
copes with a model that is sure and wrong; it knows nothing of build times and of kernels that
fail. Errors of one task and seed are the same for all searches.

*felix* and *gradient* are the defaults on a GPU and on a CPU. felix takes candidates by draws of
the model's posterior (`SelectionOptions.draw_scale`), *mean* by its mean, *thompson* by draws
twice as wide. *near-parents* polishes the best however near each other, *each-kind* generated
kernels and schedules apart, *resample-all* has new samples of all sketches in each round,
*less-polish* and *more-polish* half and twice the samples and generations. *exact-evolution* is
evolution on the same formulas, *evolution-mean* the same with candidates taken by the mean.
*lower-bound* and *gradient-lower-bound* are *mean* and *gradient* on predictions less 0.7 standard
deviations of the correction; a first round has no correction.

*other / felix*: the lowest latency that this search found after so many candidates, over felix's;
above 1 where felix is ahead. Geometric means over tasks and seeds, with the interval that holds 95
% of such means over tasks and seeds drawn anew. Writes
benchmarks/results/gpu-search/search_simulated.json after each task.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeAlias

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import search_ablation
from benchmarks.support import common, paired
from benchmarks.support.searches import tuned

if TYPE_CHECKING:
    from felix.features.kind import FeatureKind

#: Cost models, or what measures, of each kind of features.
Models: TypeAlias = "Mapping[FeatureKind, Any]"
FELIX = "felix"
#: Searches of another name on lowered predictions.
LOWERED = {"lower-bound": "mean", "gradient-lower-bound": "gradient"}
STRATEGIES = (
    FELIX,
    "gradient",
    *tuned.SELECTED,
    *tuned.LOCAL,
    "exact-evolution",
    "evolution-mean",
    *LOWERED,
)
ROUNDS = (8, 24, 24, 16)
#: Results files that say what the errors of a model are like: of a target and kind of features.
ERRORS = {
    ("h200", "trace"): "costmodel-evaluate-cuda",
    ("h200", "template"): "costmodel-evaluate-templates",
    ("llvm", "trace"): "costmodel-evaluate-llvm",
}
OUT = common.RESULTS / "gpu-search" / "search_simulated.json"


def piece(sketches: Sequence[Any], models: Models, job: search_ablation.Job) -> dict[str, Any]:
    """One search: the lowest latency after each round, and the CPU seconds of each."""
    from benchmarks.support import drawn_errors

    latencies = {
        kind: drawn_errors.DrawnErrors(
            [sketch for sketch in sketches if sketch.formulas.kind is kind],
            model,
            *errors_of(job.set, kind),
            seed=job.seed,
        )
        for kind, model in models.items()
    }
    searching = search_ablation.make_search(
        LOWERED.get(job.strategy, job.strategy), sketches, models, job.seed
    )
    lowered_by = tuned.LOWERED_BY if job.strategy in LOWERED else 0.0
    run = Run(searching, models, latencies, lowered_by)
    best_us, cpu_s = [math.inf], []
    for number, count in enumerate(ROUNDS):
        start = time.process_time()
        suggestions = run.search.suggest(count)
        cpu_s.append(time.process_time() - start)
        measured_us = run.measure(suggestions, later=count // 2 if number else 0)
        best_us.append(min([best_us[-1], *measured_us]))
    return {
        "set": job.set,
        "name": job.name,
        "strategy": job.strategy,
        "seed": job.seed,
        "best_us": best_us[1:],
        "cpu_s": cpu_s,
    }


def errors_of(set_name: str, kind: FeatureKind) -> tuple[float, float, float]:
    """Length, amplitude and noise of the process of the errors of a cost model of a set."""
    name = ERRORS[search_ablation.TARGETS[set_name], str(kind)]
    path = common.RESULTS / "cost-model" / f"{name}.json"
    errors = json.loads(path.read_text())["errors"]
    return errors["length"], errors["amplitude"], errors["noise"]


class Run:
    """A search, the corrections of its models, and what measures for it."""

    def __init__(
        self, search: Any, models: Models, latencies: Models, lowered_by: float = 0.0
    ) -> None:
        from costmodel.online import gaussian_process

        self.search, self._latencies = search, latencies
        options = gaussian_process.CorrectionOptions(lowered_by=lowered_by)
        self._correctors = {
            kind: gaussian_process.Corrector(model, options) for kind, model in models.items()
        }
        self._pending: list[tuple[Any, float]] = []
        self._correct()

    def _correct(self) -> None:
        self.search.model = {
            kind: corrector.for_task(0) for kind, corrector in self._correctors.items()
        }

    def measure(self, suggestions: Sequence[Any], later: int) -> list[float]:
        """Latencies in us of suggestions; the search learns all but the last so many of them, and
        what it did not learn before."""
        if not suggestions:
            return []
        ln_latency = {}
        for kind, own in self._of_kinds(suggestions):
            features = self.search.scorer.padded_features([each.key for each in own])
            ln_latency |= dict(
                zip(
                    [each.key for each in own],
                    self._latencies[kind].ln_latency(features).tolist(),
                    strict=True,
                )
            )
        known = [*self._pending, *((each, ln_latency[each.key]) for each in suggestions)]
        n_known = len(known) - later
        self._learn(known[:n_known])
        self._pending = known[n_known:]
        return [math.exp(ln_latency[each.key]) for each in suggestions]

    def _of_kinds(self, suggestions: Sequence[Any]) -> list[tuple[FeatureKind, list[Any]]]:
        """Suggestions by the kind of their features."""
        groups: dict[FeatureKind, list[Any]] = {}
        for each in suggestions:
            kind = self.search.scorer.kind_of(each.sketch_index)
            groups.setdefault(kind, []).append(each)
        return list(groups.items())

    def _learn(self, known: Sequence[tuple[Any, float]]) -> None:
        import numpy as np
        import torch

        from felix.measure import protocol
        from felix.search import scoring

        of = {suggestion.key: each for suggestion, each in known}
        for kind, own in self._of_kinds([suggestion for suggestion, _ in known]):
            rows = self.search.scorer.padded_features([each.key for each in own])
            mask = scoring.row_mask(torch.from_numpy(rows)).numpy()
            ln_latency = np.array([of[each.key] for each in own])
            self._correctors[kind].update(rows, mask, ln_latency, np.zeros(len(own), np.int64))
        self._correct()
        self.search.update(
            [
                (suggestion, protocol.Measurement(latency_us=math.exp(each)))
                for suggestion, each in known
            ]
        )


def over_felix(pieces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each set and strategy: its lowest latency after each round over felix's."""
    ends = {(p["set"], p["strategy"], p["name"], p["seed"]): p for p in pieces}
    rows = []
    for set_name, strategy in dict.fromkeys((p["set"], p["strategy"]) for p in pieces):
        own = [p for p in pieces if (p["set"], p["strategy"]) == (set_name, strategy)]
        names = dict.fromkeys(p["name"] for p in own)
        ratios = []
        for after in range(len(ROUNDS)):
            by_task = [
                [
                    math.log(p["best_us"][after] / felix["best_us"][after])
                    for p in own
                    if p["name"] == name
                    and (felix := ends.get((set_name, FELIX, name, p["seed"]))) is not None
                ]
                for name in names
            ]
            if both := [logs for logs in by_task if logs]:
                ratios.append(paired.mean(both))
        if ratios:
            cpu_s = sum(sum(p["cpu_s"]) for p in own) / len(own)
            rows.append(
                {
                    "set": set_name,
                    "strategy": strategy,
                    "searches": len(own),
                    "ratios": ratios,
                    "cpu_s": cpu_s,
                }
            )
    return rows


def render(data: Mapping[str, Any]) -> str:
    """One table."""
    after = [sum(ROUNDS[: number + 1]) for number in range(len(ROUNDS))]
    head = ["set", "strategy", "searches", "CPU s", *(f"after {count}" for count in after), "95 %"]
    rows = [
        [
            row["set"],
            row["strategy"],
            row["searches"],
            row["cpu_s"],
            *(ratio.mean for ratio in row["ratios"]),
            f"{row['ratios'][-1].low:.3f} to {row['ratios'][-1].high:.3f}",
        ]
        for row in over_felix(data["pieces"])
    ]
    return str(common.table(head, rows))


def says(data: Mapping[str, Any]) -> str:
    """The latency that each search ends with, over felix's."""
    every = over_felix(data["pieces"])
    sentences = []
    for set_name in dict.fromkeys(row["set"] for row in every):
        others = ", ".join(
            f"`{row['strategy']}` {row['ratios'][-1]}"
            for row in every
            if row["set"] == set_name and row["strategy"] != FELIX
        )
        sentences.append(
            f"On {set_name}, after {sum(ROUNDS)} candidates, the lowest latency over felix's is: "
            f"{others}."
        )
    return " ".join(sentences)


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--set", nargs="+", choices=tuple(search_ablation.SETS), default=["traces", "mixed"]
    )
    parser.add_argument("--only", nargs="+", help="tasks by name")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    data: dict[str, Any] = common.header("search_simulated") | {
        "errors": {
            set_name: {
                str(kind): errors_of(set_name, kind) for kind in search_ablation.kinds_of(set_name)
            }
            for set_name in args.set
        },
        "pieces": [],
    }
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        for set_name in args.set:
            for name in search_ablation.SETS[set_name]:
                if args.only is None or name in args.only:
                    jobs = [
                        search_ablation.Job(set_name, name, strategy, seed, 0.0)
                        for seed in range(args.seeds)
                        for strategy in args.strategies
                    ]
                    of_task = pool.submit(search_ablation.of_task, jobs, args.processes, piece)
                    data["pieces"] += of_task.result()
                    common.write(args.out, data)
                    print(set_name, name, flush=True)
    print(render(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
