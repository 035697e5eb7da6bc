"""What the cost model of generated kernels chooses for a workload before anything is measured.

A search descends on the model alone, and the kernel that it predicts to be fastest is the first
choice. It is built, checked and timed by a pool, as thoroughly as the fastest candidates of a run;
`winners` has its program, so that it is timed in turns with the best of a run.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.support.searches import winners

if TYPE_CHECKING:
    from felix.search import interface
    from felix.space.template_sketch import TemplateSketch
    from felix.task import Task

#: Candidates of the search, of which the best predicted one is the choice.
CANDIDATES = 16


def piece(request: dict[str, Any]) -> dict[str, Any]:
    """Results of the strategy "first": its latency, where there is a choice and it runs."""
    from felix import workloads
    from felix.measure import local

    task = workloads.parse(request["workload"], target=request["target"])
    chosen = choose(task, request["seed"])
    path = pathlib.Path(request["path"])
    if chosen is None:
        winners.write(path, task, [])
        return {}
    sketch, candidate = chosen
    program = sketch.program(candidate.decisions)
    with local.LocalPool(task, local.LocalOptions(builders=1)) as pool:
        measured = pool.submit(program, thorough=True).result()
    winners.write(path, task, [program] if measured.ok else [])
    return {"us": measured.latency_us}


def choose(task: Task, seed: int) -> tuple[TemplateSketch, interface.Candidate] | None:
    """Sketch and candidate that the model of templates prefers.

    None where the task has no template.
    """
    from felix.features.kind import FeatureKind
    from felix.search import cost_model, gradient
    from felix.space import sketch as sketching

    sketches = sketching.of_templates(task)
    if not sketches:
        return None
    loaded = cost_model.load(None, task.target, seed, FeatureKind.TEMPLATE)
    options = gradient.GradientOptions(n_warm_rounds=0)
    search = gradient.GradientSearch(list(sketches), loaded.module, options, seed=seed)
    best = preferred(search.ask(CANDIDATES))
    return None if best is None else (sketches[best.sketch_index], best)


def preferred(candidates: Sequence[interface.Candidate]) -> interface.Candidate | None:
    """The one that is predicted to be fastest."""
    predicted = [(s.predicted_us, s) for s in candidates if s.predicted_us is not None]
    return min(predicted, key=lambda pair: pair[0])[1] if predicted else None
