"""Tuning, from a task to the best schedule found: start reading here.

    result = felix.tune(task, trials=64)      # measured; result.best, result.curve
    kernel = felix.compile(result)            # a TVM runtime module: kernel(a, b, out)
    result.export("out/")                     # the artifact bundle

A run goes in rounds. The allocator says which task is next, the search chooses candidates by
descending through the task's formulas and the cost model, TVM makes their schedules, the pool
builds, checks and times them, and the cost model learns what came out:

    allocate -> search -> schedule -> build, check, time -> learn
                  ^                                           |
                  +-------------------------------------------+

At the end the fastest candidates are measured again, longer, and the fastest of those is the
result (`felix.tuning.remeasure`).

The search of a round begins when half of the candidates of the last one are measured
(`TuneOptions.lookahead`), so that builders and search work at the same time. Every measurement
is written down before anything learns of it; see `felix.tuning.session` for what a killed run
keeps.

The steps are in `felix.tuning.run`, results in `felix.tuning.results`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from felix import errors
from felix.task import Task
from felix.tuning import options as options_module
from felix.tuning import pacing, remeasure, results, run

if TYPE_CHECKING:
    import tvm

    from felix.tuning import online_model

Best = results.Best
NetworkResult = results.NetworkResult
TuneOptions = options_module.TuneOptions
TuneResult = results.TuneResult


@overload
def tune(
    task_or_tasks: Task,
    trials: int | None = ...,
    seconds: float | None = ...,
    seed: int = ...,
    strategy: str = ...,
    model: online_model.ModelLike = ...,
    options: TuneOptions | None = ...,
    out: str | os.PathLike[str] | None = ...,
    resume: bool = ...,
    on_event: run.OnEvent | None = ...,
) -> TuneResult: ...
@overload
def tune(
    task_or_tasks: Sequence[Task],
    trials: int | None = ...,
    seconds: float | None = ...,
    seed: int = ...,
    strategy: str = ...,
    model: online_model.ModelLike = ...,
    options: TuneOptions | None = ...,
    out: str | os.PathLike[str] | None = ...,
    resume: bool = ...,
    on_event: run.OnEvent | None = ...,
) -> NetworkResult: ...
def tune(
    task_or_tasks: Task | Sequence[Task],
    trials: int | None = 64,
    seconds: float | None = None,
    seed: int = 0,
    strategy: str = "gradient",
    model: online_model.ModelLike = None,
    options: TuneOptions | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_event: run.OnEvent | None = None,
) -> TuneResult | NetworkResult:
    """Find fast schedules by measuring candidates on the task's device.

    Ctrl-C ends the run and returns what was found (`reason` "interrupted").

    Args:
        task_or_tasks: one task, or several of one target: rounds then go where they promise
            the largest gain in the sum of weight x latency.
        trials: candidates to measure, over all tasks; None for no limit.
        seconds: stop after this long, start-up included; None for no limit.
        seed: everything random follows from it.
        strategy: "gradient"; "evolutionary", "random", "tvm-evolutionary" and "tvm-xgb" are
            there to compare with.
        model: a cost-model checkpoint or module; the one shipped for the target if left out.
        options: sizes and details.
        out: folder for the session (records and checkpoints, in `tuning/`).
        resume: go on with the session in `out`, if there is one; its trials and seconds count.
        on_event: called with what happens (`felix.events`).

    Returns:
        A `TuneResult` for one task, a `NetworkResult` for several.

    Raises:
        FelixError: tuning cannot start, or a file cannot be written. A task without any
            schedule that runs is no error here: `result.best` raises then.
    """
    tasks = [task_or_tasks] if isinstance(task_or_tasks, Task) else list(task_or_tasks)
    _check(tasks)
    budget = options_module.Budget(trials=trials, seconds=seconds, seed=seed, strategy=strategy)
    folder = None if out is None else pathlib.Path(out)
    current = run.Run(tasks, budget, options or TuneOptions(), model, folder, resume, on_event)
    with contextlib.closing(current):
        current.start()
        try:
            reason = _rounds(current)
            current.collect()
            remeasure.hold(current)
        except (KeyboardInterrupt, pacing.Stopped):
            reason = "interrupted"
        current.finish(reason)
        found = current.result(reason)
    return found.results[0] if isinstance(task_or_tasks, Task) else found


def _rounds(current: run.Run) -> str:
    """Rounds until a budget is spent or no task can improve; the reason why it ended."""
    current.learn()  # what a resumed session measured last
    while (reason := current.stop_reason()) is None:
        job = current.next_job()
        if job is None:
            if current.settle():  # results that were still to come may change that
                continue
            return "exhausted" if current.n_working() else "failed"
        n_candidates = current.submit(job, current.search(job))
        current.collect(leave=round(current.options.lookahead * n_candidates))
        current.end_round(job, n_candidates)
        current.learn()
        current.save()
    return reason


def compile(result: TuneResult) -> tvm.runtime.Module:
    """Build the best schedule: a module to call with the task's tensors, outputs included.

    Raises:
        TuningError: the result has no schedule that runs.
        MeasureError: it is for a GPU, and what compiles for that is not here.
    """
    from felix.measure import build

    if not isinstance(result, TuneResult):
        raise errors.TuningError("compile takes the result of one task, e.g. network.results[0]")
    return build.module(result.best.schedule.mod, result.task.target)


def _check(tasks: Sequence[Any]) -> None:
    if not tasks:
        raise errors.TuningError("there is nothing to tune: no tasks were given")
    if not all(isinstance(task, Task) for task in tasks):
        raise errors.TuningError("tune takes a felix.Task or a sequence of them")
    if len({task.key for task in tasks}) != len(tasks):
        raise errors.TuningError("a task is given twice: give it once, with a larger weight")
    if len({str(task.target) for task in tasks}) != 1:
        raise errors.TuningError("all tasks of a run must have the same target")
