"""Tuning, from a task to the best schedule found: start reading here.

    result = felix.tune(task, trials=64)      # measured; result.best, result.curve
    kernel = felix.compile(result)            # a TVM runtime module: kernel(a, b, out)
    result.export("out/")                     # the artifact bundle

A run goes in rounds. The allocator says which task is next, the search chooses candidates by
the task's formulas and the cost model, TVM makes their schedules, the pool
builds, checks and times them, and the cost model learns what came out:

    allocate -> search -> schedule -> build, check, time -> learn
                  ^                                           |
                  +-------------------------------------------+

At the end the fastest candidates are measured again, longer, and the fastest of those is the
result (`felix.tuning.remeasure`).

The search of a round begins when half of the candidates of the last one are measured
(`TuneOptions.lookahead`), so that builders and search work at the same time; with several devices
more rounds are on their way. Rounds of several tasks on a GPU are searched side by side, in
processes of their own (`felix.tuning.searching`). Every measurement is stored before anything
learns of it; see `felix.database.session` for what a killed run leaves.

The loop is `felix.tuning.loop`, its steps are in `felix.tuning.run`, results in
`felix.tuning.results`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, cast, overload

from felix import errors
from felix.database import session
from felix.measure import limits
from felix.task import Task
from felix.tuning import loop, pacing, results
from felix.tuning import options as options_module
from felix.tuning import run as run_module
from felix.tuning.searching import searcher

if TYPE_CHECKING:
    import tvm

    from felix.search import cost_model

_Arguments = ParamSpec("_Arguments")


class _Tune(Protocol[_Arguments]):
    """One task gives a `TuneResult`, several give a `NetworkResult`."""

    @overload
    def __call__(
        self, task_or_tasks: Task, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> results.TuneResult: ...
    @overload
    def __call__(
        self, task_or_tasks: Sequence[Task], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> results.NetworkResult: ...


def _result_by_argument(
    function: Callable[
        Concatenate[Task | Sequence[Task], _Arguments], results.TuneResult | results.NetworkResult
    ],
) -> _Tune[_Arguments]:
    """Say to type checkers what `_Tune` says; the function stays as it is."""
    return cast("_Tune[_Arguments]", function)


@_result_by_argument
def tune(
    task_or_tasks: Task | Sequence[Task],
    trials: int | None = 64,
    seconds: float | None = None,
    seed: int = 0,
    strategy: str | None = None,
    model: cost_model.ModelLike = None,
    options: options_module.TuneOptions | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_event: options_module.OnEvent | None = None,
) -> results.TuneResult | results.NetworkResult:
    """Find fast schedules by measuring candidates on the task's device.

    Ctrl-C ends the run and returns what was found (`reason` "interrupted").

    Args:
        task_or_tasks: one task, or several of one target: rounds then go where they promise
            the largest gain in the sum of weight x latency.
        trials: candidates to measure, over all tasks; None for no limit.
        seconds: how long the call takes; None for no limit. What is on its way then is lost, so
            the last fifth, 20 s at most, is for measuring the fastest candidates again.
        seed: everything random follows from it. Of several tasks on a GPU the order of rounds
            depends on the machine's speed, too (`TuneOptions.search_processes`).
        strategy: "gradient", or "local", which takes no gradients. If left out that of the session
            that is resumed, else that of `options`, else "gradient".
        model: a cost-model checkpoint or module; the one shipped for the target if left out.
        options: sizes and details.
        out: folder for the session (records and checkpoints, in `tuning/`).
        resume: go on with the session in `out`, if there is one; its trials and seconds count.
        on_event: called with what happens (`felix.events`).

    Returns:
        A `TuneResult` for one task, a `NetworkResult` for several. One of several tasks that
        cannot be tuned is skipped: `events.Skipped` and `TuneResult.skipped` say why.

    Raises:
        WorkloadError: the only task is too large to be measured on this machine.
        FelixError: tuning cannot start, or a file cannot be written. A task without any
            schedule that runs is no error here: `result.best` raises then.
    """
    begun_s = time.monotonic()
    is_one = isinstance(task_or_tasks, Task)
    tasks = (task_or_tasks,) if isinstance(task_or_tasks, Task) else tuple(task_or_tasks)
    options_module.check(tasks)
    chosen = options or options_module.TuneOptions()
    folder = None if out is None else pathlib.Path(out)
    if strategy is not None and chosen.make_search is not None:
        raise errors.TuningError("give a strategy or a function that makes the search, not both")
    if strategy is None and resume and folder is not None:
        strategy = session.strategy_of(folder)
    if strategy is None:
        strategy = chosen.default_strategy(tasks[0])
    request = options_module.Request(
        tasks=tasks,
        budget=options_module.Budget(trials=trials, seconds=seconds, seed=seed, strategy=strategy),
        options=chosen,
        model=model,
        out=folder,
        resume=resume,
        on_event=on_event or (lambda event: None),
        begun_s=begun_s,
    )
    if len(request.tasks) == 1:  # before anything is opened; one of several is skipped later
        limits.check(request.tasks[0], limits.of_this_machine(request.tasks[0]))
    with _gradients(), contextlib.closing(run_module.Run(request)) as run:
        run.start()
        try:
            with searcher.of_run(run) as searches:
                reason = loop.Loop(run, searches).until_end()
            run.collect()
            if reason != "interrupted":
                run.remeasure()
        except (KeyboardInterrupt, pacing.Stopped):
            reason = "interrupted"
        except pacing.TimeUp:
            reason = "seconds"
        result = run.finish(reason)
    return result.results[0] if is_one else result


@contextlib.contextmanager
def _gradients() -> Iterator[None]:
    """Search and learning compute gradients, whatever mode the caller has PyTorch in."""
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        yield


def compile(result: results.TuneResult) -> tvm.runtime.Module:
    """Build the best program: a module to call with the task's tensors, outputs included.

    On a CPU it runs on PyTorch's threads (`felix.runner.cpu.openmp`).

    Raises:
        TuningError: the result has no program that runs.
        MeasureError: it is for a GPU, and what compiles for that is not here; or a template
            generated it, and there is no GPU's driver here.
    """
    from felix.builder import build
    from felix.runner.cpu import openmp

    if not isinstance(result, results.TuneResult):
        raise errors.TuningError("compile takes the result of one task, e.g. network.results[0]")
    if result.task.target.kind.name == "llvm":
        openmp.use()
    return build.module_of_task(result.best.program, result.task)
