"""The search of a strategy, by its name (`felix.search.strategies.NAMES`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from felix import errors
from felix.search import strategies

if TYPE_CHECKING:
    from felix.search import interface
    from felix.search.strategies import base
    from felix.sketch.sketch import Sketch
    from felix.sketch.trace_sketch import TraceSketch
    from felix.task import Task
    from felix.tuning import options as options_module

_Options = TypeVar("_Options")


def default(task: Task, options: options_module.SearchOptions | None) -> str:
    """The strategy of a run that names none: that whose sizes are given, or its target's."""
    of_target = strategies.default(task.target.kind.name)
    if options is None:
        return of_target
    from felix import search
    from felix.metaschedule import tvm_search

    of_sizes = {
        search.LocalOptions: "local",
        search.GradientOptions: "gradient",
        search.EvolutionOptions: "evolutionary",
        tvm_search.TVMEvolutionOptions: "tvm-evolutionary",
    }
    return of_sizes.get(type(options), of_target)


def make_search(
    strategy: str,
    sketches: Sequence[Sketch],
    model: interface.CostModels | None,
    options: options_module.SearchOptions | None,
    seed: int,
) -> base.BaseSearch:
    """The search of a strategy; model and options are ignored where it has none.

    Searches of TVM take trace sketches alone.

    Raises:
        TuningError: the strategy is unknown, needs a model, or takes other options.
    """
    from felix import search

    if strategy == "random":
        return search.RandomSearch(sketches, seed)
    if strategy in strategies.TRACES_ONLY:
        from felix.metaschedule import tvm_search

        sizes = _checked(strategy, options, tvm_search.TVMEvolutionOptions)
        ranking = None if strategy in strategies.WITHOUT_MODEL else model
        traces = _traces(sketches)
        return tvm_search.TVMEvolutionarySearch(traces, ranking, sizes, seed)
    if strategy not in strategies.NAMES:
        raise errors.TuningError(f"unknown strategy {strategy!r}")
    if model is None:
        raise errors.TuningError(f"the strategy {strategy} needs a cost model")
    if strategy == "evolutionary":
        evolution = _checked(strategy, options, search.EvolutionOptions)
        return search.EvolutionarySearch(sketches, model, evolution, seed)
    if strategy == "gradient":
        gradient = _checked(strategy, options, search.GradientOptions)
        return search.GradientSearch(sketches, model, gradient, seed)
    local = _checked(strategy, options, search.LocalOptions)
    return search.LocalSearch(sketches, model, local, seed)


def _traces(sketches: Sequence[Sketch]) -> list[TraceSketch]:
    from felix.sketch.template_sketch import TemplateSketch

    traces = [sketch for sketch in sketches if not isinstance(sketch, TemplateSketch)]
    if len(traces) < len(sketches):
        raise errors.TuningError("TVM's searches know no templates")
    return traces


def _checked(strategy: str, options: object, kind: type[_Options]) -> _Options | None:
    if options is None or type(options) is kind:  # those of a descent are local ones, too
        return options
    raise errors.TuningError(
        f"the strategy {strategy} takes {kind.__name__}, not {type(options).__name__}"
    )
