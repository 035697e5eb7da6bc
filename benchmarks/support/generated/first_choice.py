"""What the cost model of generated kernels chooses for a workload before anything is measured.

A search descends on the model alone, and the kernel that it predicts to be fastest is the first
choice. It is built, checked and timed by a pool, as thoroughly as the fastest candidates of a run;
`winners` has its program, so that it is timed in turns with the best of a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.support import winners

if TYPE_CHECKING:
    from felix.measure import protocol
    from felix.search import interface
    from felix.sketch.template_sketch import TemplateSketch
    from felix.task import Task

#: Suggestions of the search, of which the best predicted one is the choice.
SUGGESTIONS = 16


def piece(
    request: dict[str, Any], measurer: Callable[[Task], protocol.Measurer] | None = None
) -> dict[str, Any]:
    """Results of the strategy "first": the choice, its latency or error, and what it took.

    It is measured by a task's `measurer`; None: by a pool of its own.
    """
    from felix import workloads
    from felix.measure.pool import local

    task = workloads.parse(request["workload"], target=request["target"])
    start = time.perf_counter()
    chosen = choose(task, request["seed"])
    wall_s = time.perf_counter() - start
    path = pathlib.Path(request["path"])
    if chosen is None:
        winners.write(path, task, [])
        return {"wall_s": wall_s}
    sketch, suggestion, model = chosen
    program = sketch.program(suggestion.decisions)
    opened = measurer or (lambda task: local.LocalPool(task, local.LocalOptions(builders=1)))
    with contextlib.closing(opened(task)) as pool:
        measured = pool.submit(program, thorough=True).result()
    winners.write(path, task, [program] if measured.ok else [])
    return {
        "wall_s": wall_s,
        "variant": sketch.variant,
        "model": model,
        "decisions": list(suggestion.decisions),
        "predicted_us": suggestion.predicted_us,
        "us": measured.latency_us,
        "error": None if measured.error is None else f"{measured.error}: {measured.message}",
    }


def choose(task: Task, seed: int) -> tuple[TemplateSketch, interface.Suggestion, str] | None:
    """Sketch and suggestion that the model of templates prefers, and which model it is.

    None where the task has no template.
    """
    from felix.features.kind import FeatureKind
    from felix.search import cost_model
    from felix.search.strategies import local
    from felix.sketch import sketch as sketching

    sketches = sketching.of_templates(task)
    if not sketches:
        return None
    loaded = cost_model.load(None, task.target, seed, FeatureKind.TEMPLATE)
    options = dataclasses.replace(local.LocalOptions(), n_warm_rounds=0)
    search = local.LocalSearch(list(sketches), loaded.module, options, seed=seed)
    best = preferred(search.suggest(SUGGESTIONS))
    return None if best is None else (sketches[best.sketch_index], best, loaded.message)


def preferred(suggestions: Sequence[interface.Suggestion]) -> interface.Suggestion | None:
    """The one that is predicted to be fastest."""
    predicted = [(s.predicted_us, s) for s in suggestions if s.predicted_us is not None]
    return min(predicted, key=lambda pair: pair[0])[1] if predicted else None
