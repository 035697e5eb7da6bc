"""A run to and from its checkpoint: what `felix.tuning.session` stores after each round.

The state holds the searches, the allocation, the model and the time spent. Records are stored
apart, as they come; those that the state does not know yet are replayed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from felix import errors, records
from felix.tuning import pacing

if TYPE_CHECKING:
    import torch

    from felix.tuning.run import Run


def take(run: Run) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The run's state: JSON-able values, and tensors by name."""
    plain: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    if run.learner is not None:
        plain, tensors = run.learner.state_dict()
    state = {
        "elapsed_s": run.elapsed_s,
        "n_learnt": run.n_measured - len(run.fresh),
        "jobs": [job.state_dict() for job in run.jobs],
        "allocator": run.allocator.state_dict(),
        "breakdown": dataclasses.asdict(run.breakdown),
        "model": plain,
    }
    return state, tensors


def restore(run: Run) -> None:
    """Take over what an earlier session left, if it left anything.

    Raises:
        RecordError: the checkpoint is malformed or of other sketches.
        CheckpointError: its model is another one.
    """
    if run.session is None or not run.session.records:
        return
    stored, state = run.session.records, run.session.state
    saved = state["jobs"] if state is not None else [None] * len(run.jobs)
    try:
        for job, own in zip(run.jobs, saved, strict=True):
            is_known = any(record.task_key == job.task.key for record in stored)
            if is_known or (own is not None and own["search"] is not None):
                run.open(job, is_resumed=own is not None)
            if own is not None:
                job.load_state_dict(own)
        n_learnt, before_s = 0, 0.0
        if state is not None:
            n_learnt, before_s = int(state["n_learnt"]), float(state["elapsed_s"])
            run.allocator.load_state_dict(state["allocator"])
            run.breakdown = run.compute_guard.resume(pacing.Breakdown(**state["breakdown"]))
            if run.learner is not None:
                run.learner.load_state_dict(state["model"], run.session.tensors)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise errors.RecordError(f"the checkpoint is malformed: {error!r}") from error
    _replay(run, stored, n_learnt)
    run.before_s = max(before_s, *(record.elapsed_s for record in stored))
    run.started_s = time.monotonic()


def _replay(run: Run, stored: Sequence[records.Record], n_learnt: int) -> None:
    """All records into the books; those the model has not seen are learnt next."""
    number = 0  # of the trial
    for record in stored:
        job = next((job for job in run.jobs if job.owns(record)), None)
        if job is None:
            raise errors.RecordError("the records hold a task that is not tuned here")
        job.keep(record)
        if record.repeat:
            continue
        job.n_rounds = max(job.n_rounds, record.round + 1)
        number += 1
        if number > n_learnt:
            run.fresh.append((job, job.suggestion(record), record.measurement))
