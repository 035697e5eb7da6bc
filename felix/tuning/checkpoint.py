"""A run to and from its checkpoint: what `felix.database.session` stores after each round.

The state holds the searches, the allocation, the model and the time spent. Records are stored
apart, as they come; those that the state does not know yet are replayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from felix import errors
from felix.database import records, session
from felix.search import allocate
from felix.tuning import options as options_module
from felix.tuning import pacing
from felix.tuning.task_run import TaskRun

if TYPE_CHECKING:
    import torch

    from felix.tuning import online_model


class Parts:
    """What the steps of a run share; a checkpoint holds the state of the last five."""

    request: options_module.Request
    compute_guard: pacing.ComputeGuard
    task_runs: Sequence[TaskRun]
    allocator: allocate.Allocator
    learner: online_model.Learner
    clock: pacing.Clock
    limit: pacing.TimeLimit
    breakdown: pacing.Breakdown


def take(parts: Parts) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The state of a run: JSON-able values, and tensors by name."""
    model, tensors = parts.learner.state_dict()
    n_measured = sum(len(task_run.records) for task_run in parts.task_runs)
    state = {
        "elapsed_s": parts.clock.elapsed_s,
        "n_learnt": n_measured - parts.learner.n_unlearnt,
        "jobs": [task_run.state_dict() for task_run in parts.task_runs],
        "allocator": parts.allocator.state_dict(),
        "breakdown": dataclasses.asdict(parts.breakdown),
        "model": model,
    }
    return state, tensors


def restore(
    parts: Parts, journal: session.Journal, open_task: Callable[[TaskRun, bool], None]
) -> None:
    """Take over what an earlier session left, if it left anything.

    Args:
        parts: of the new run.
        journal: of the earlier one.
        open_task: makes the search of a task; the flag says whether the state knows the task.

    Raises:
        RecordError: the checkpoint is malformed or of other sketches.
        CheckpointError: its model is another one.
    """
    if not journal.records:
        return
    known = {trial.task_key for trial in journal.records}
    state = journal.state
    try:
        states = state["jobs"] if state is not None else [None] * len(parts.task_runs)
        for task_run, task_state in zip(parts.task_runs, states, strict=True):
            was_open = task_state is not None and task_state["search"] is not None
            if was_open or task_run.task.key in known:
                open_task(task_run, task_state is not None)
            if task_state is not None:
                task_run.load_state_dict(task_state)
        n_learnt, earlier_s = 0, 0.0
        if state is not None:
            n_learnt, earlier_s = int(state["n_learnt"]), float(state["elapsed_s"])
            parts.allocator.load_state_dict(state["allocator"])
            parts.breakdown.resume(pacing.Breakdown(**state["breakdown"]))
            parts.learner.load_state_dict(state["model"], journal.tensors)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.RecordError(f"the checkpoint is malformed: {error!r}") from error
    _replay(parts, journal.records, n_learnt)
    earlier_s = max(earlier_s, *(trial.elapsed_s for trial in journal.records))
    parts.clock.resume(earlier_s)
    if not parts.request.options.earlier_seconds_count:
        parts.limit.earlier_s = earlier_s


def _replay(parts: Parts, stored: Sequence[records.Trial], n_learnt: int) -> None:
    """Take all records in; those the model has not learnt are learnt next."""
    n_trials = 0
    for trial in stored:
        task_run = next((run for run in parts.task_runs if run.is_origin_of(trial)), None)
        if task_run is None:
            raise errors.RecordError("the records hold a task that is not tuned here")
        task_run.replay(trial)
        n_trials += not trial.repeat
        if trial.repeat or n_trials <= n_learnt:
            continue
        candidate = task_run.candidate(trial)
        parts.learner.remember(task_run.search, task_run.index, candidate, trial.latency_us)
