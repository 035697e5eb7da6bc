"""What rules of selection find among measured schedules, with the cost model's own errors.

    python benchmarks/selection_replay.py --cache FOLDER [--set traces templates cpu] [--part test]

Of each workload of a part of a data set that its cost model was not trained on, candidates are
chosen among the schedules that were measured: three rounds of eight, each by the model corrected
by those before, as in a run. So latencies and errors are real, and no GPU is needed; but there
are some fifty schedules to choose from, not a space, and no polishing.

*mean* takes the lowest predictions, a quarter of the first round and a tenth of the others at
random; *few-random*, as searches do, a tenth of each round. *draws-S* takes what is lowest in
draws of the correction's posterior, whose deviations are scaled by S, after the lowest prediction
(`SelectionOptions.draw_scale`).

*best / n*: the lowest latency of the first n candidates over the lowest of all schedules.
*over mean*: that latency over that of the rule *mean*; below 1 where this rule is ahead. Geometric
means over workloads and seeds, with the interval that holds 95 % of such means over workloads and
seeds drawn anew. Workloads with fewer than 32 schedules that ran are left out. Writes
benchmarks/results/cost-model/selection_replay.json after each set.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.support import common, paired
from felix.features.kind import FeatureKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from costmodel.data import features as task_features
    from costmodel.data import split as splitting

#: Set -> its data, the model that never saw the parts below, and its features.
SETS = {
    "traces": ("data/cuda", "data/pretrained/cuda-sm_90", FeatureKind.TRACE),
    "templates": ("data/templates", "data/pretrained/cuda-sm_90-templates", FeatureKind.TEMPLATE),
    "cpu": ("data/llvm", "data/pretrained/llvm", FeatureKind.TRACE),
}
PARTS = ("validation", "test")
ROUNDS, N_LEAST = (8, 8, 8), 32
#: Numbers of candidates after which rules are compared.
AFTER, SAID = (4, 8, 16, 24), (8, 16)
OUT = common.RESULTS / "cost-model" / "selection_replay.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How candidates are chosen: by what draws, and the shares that are random."""

    draw_scale: float = 0.0
    first_random_share: float = 0.25
    random_share: float = 0.1


FIRST = "mean"
RULES = {
    FIRST: Rule(),
    "few-random": Rule(first_random_share=0.1),
    "draws-0.25": Rule(0.25),
    "draws-0.25-few-random": Rule(0.25, first_random_share=0.1),
    "draws-0.5": Rule(0.5),
    "draws-1": Rule(1.0),
}


def parts_of(set_name: str, cache: pathlib.Path, n_jobs: int) -> tuple[Any, splitting.Split]:
    """The cost model of a set, and its workloads with features, split as for training."""
    from costmodel.data import dataset as datasets
    from costmodel.data import features as task_features
    from costmodel.data import felix_bridge, parallel_features
    from costmodel.data import split as splitting
    from costmodel.models import checkpoint

    folder, model, kind = SETS[set_name]
    dataset = datasets.read(str(common.ROOT / folder))
    make: Callable[[], task_features.Featurizer] = (
        felix_bridge.TemplateFeaturizer
        if kind is FeatureKind.TEMPLATE
        else felix_bridge.FelixFeaturizer
    )
    parallel_features.fill_cache(dataset, make, cache, n_jobs)
    features = task_features.load_features(dataset, make(), cache)
    path = common.ROOT / model / "held_out.safetensors"
    module, _ = checkpoint.load(str(path), features.names, features.version)
    return module, splitting.split(features.tasks, splitting.SplitOptions())


def replay(module: Any, task: task_features.TaskData, rule: Rule, seed: int) -> list[float]:
    """Ln of the lowest latency of the first n candidates over the lowest of all, for each n."""
    import numpy as np

    from costmodel.online import gaussian_process

    ran = task.only(np.flatnonzero(task.measured))
    rng, corrector = np.random.default_rng(seed), gaussian_process.Corrector(module)
    left, chosen = np.arange(len(ran.ln_latency)), np.zeros(0, np.intp)
    for number, count in enumerate(ROUNDS):
        share = rule.random_share if number else rule.first_random_share
        order = ranked(corrector.for_task(0), ran.only(left), rule.draw_scale, rng)
        n_random = round(share * count)
        others = rng.permutation(order[count - n_random :])[:n_random]
        picks = left[np.concatenate([order[: count - n_random], others])]
        corrector.update(
            ran.rows[picks], ran.mask[picks], ran.ln_latency[picks], np.zeros(count, np.int64)
        )
        chosen, left = np.concatenate([chosen, picks]), np.setdiff1d(left, picks)
    best: NDArray[np.float64] = np.minimum.accumulate(ran.ln_latency[chosen])
    return [float(each) for each in best - ran.ln_latency.min()]


def ranked(
    module: Any, task: task_features.TaskData, draw_scale: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Positions of schedules, those that are to be measured first."""
    import numpy as np
    import torch

    from felix.search import selection

    rows = torch.from_numpy(task.rows)
    mask = torch.from_numpy((task.mask != 0).astype(np.float32))
    with torch.no_grad():
        predicted = module(rows, mask).double().numpy()
    order: NDArray[np.intp] = np.argsort(predicted, kind="stable")
    if not draw_scale:
        return order
    normals = torch.from_numpy(rng.standard_normal((len(rows), selection.N_DRAWS)))
    deviations = draw_scale * module.deviations(rows, mask, normals).numpy()
    first = selection.best_of_draws(predicted, deviations)
    return np.concatenate([first, order[~np.isin(order, first)]])


def over_first(pieces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each set, rule and number of candidates: to the best of all, and over the first rule."""
    of = {(p["set"], p["rule"], p["name"]): p["ln_over_best"] for p in pieces}
    rows = []
    for set_name, rule in dict.fromkeys((p["set"], p["rule"]) for p in pieces):
        names = [p["name"] for p in pieces if (p["set"], p["rule"]) == (set_name, rule)]
        for at, after in enumerate(AFTER):
            own = [[seed[at] for seed in of[set_name, rule, name]] for name in names]
            first = [[seed[at] for seed in of[set_name, FIRST, name]] for name in names]
            ratio = [
                [a - b for a, b in zip(*pair, strict=True)]
                for pair in zip(own, first, strict=True)
            ]
            rows.append(
                {
                    "set": set_name,
                    "rule": rule,
                    "workloads": len(names),
                    "after": after,
                    "best": paired.mean(own),
                    "over": paired.mean(ratio),
                }
            )
    return rows


def render(data: Mapping[str, Any]) -> str:
    """One table."""
    rows = over_first(data["pieces"])
    head = [
        "set",
        "rule",
        "workloads",
        *(f"best / {after}" for after in AFTER),
        *(f"over {FIRST} / {after}" for after in AFTER),
    ]
    cells = []
    for set_name, rule in dict.fromkeys((row["set"], row["rule"]) for row in rows):
        own = [row for row in rows if (row["set"], row["rule"]) == (set_name, rule)]
        over = [
            ""
            if rule == FIRST
            else f"{row['over'].mean:.3f} ({row['over'].low:.3f} to {row['over'].high:.3f})"
            for row in own
        ]
        best = [f"{row['best'].mean:.3f}" for row in own]
        cells.append([set_name, rule, own[0]["workloads"], *best, *over])
    return str(common.table(head, cells))


def says(data: Mapping[str, Any]) -> str:
    """The lowest latency of each rule over that of the first, after 8 and 16 candidates."""
    rows = over_first(data["pieces"])
    sentences = []
    for set_name in dict.fromkeys(row["set"] for row in rows):
        for after in SAID:
            own = [row for row in rows if (row["set"], row["after"]) == (set_name, after)]
            others = ", ".join(f"`{r['rule']}` {r['over']}" for r in own if r["rule"] != FIRST)
            sentences.append(
                f"On {set_name}, {own[0]['workloads']} {data['part']} workloads, the lowest "
                f"latency after {after} candidates over that of `{FIRST}` is: {others}."
            )
    return " ".join(sentences)


def main() -> int:
    """Replay, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", nargs="+", choices=tuple(SETS), default=list(SETS))
    parser.add_argument("--part", choices=PARTS, default="test")
    parser.add_argument("--cache", type=pathlib.Path, required=True, help="folder of features")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rules", nargs="+", choices=tuple(RULES), default=list(RULES))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    args = parser.parse_args()
    rules = dict.fromkeys([FIRST, *args.rules])
    data: dict[str, Any] = common.header("selection_replay") | {"part": args.part, "pieces": []}
    for set_name in args.set:
        module, parts = parts_of(set_name, args.cache, args.processes)
        tasks = getattr(parts, args.part)
        known = [task for task in tasks if task.measured.sum() >= N_LEAST]
        for rule in rules:
            of_task = functools.partial(_of_seeds, module, RULES[rule], args.seeds)
            data["pieces"] += [
                {"set": set_name, "rule": rule, "name": task.name, "ln_over_best": of_task(task)}
                for task in known
            ]
        common.write(args.out, data)
        print(set_name, f"{len(known)} of {len(tasks)} workloads", flush=True)
    print(render(data))
    return 0


def _of_seeds(
    module: Any, rule: Rule, n_seeds: int, task: task_features.TaskData
) -> list[list[float]]:
    """`replay` of each seed, after as many candidates as `AFTER` says."""
    curves = [replay(module, task, rule, seed) for seed in range(n_seeds)]
    return [[round(curve[after - 1], 6) for after in AFTER] for curve in curves]


if __name__ == "__main__":
    sys.exit(main())
