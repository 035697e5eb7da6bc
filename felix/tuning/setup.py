"""Parts of a run that need no run: pool, session, floors of latency, convergence."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from felix import errors, records, target
from felix.search import allocate
from felix.tuning import options as options_module
from felix.tuning import session

if TYPE_CHECKING:
    from felix.task import Task


def local_pool(task: Task) -> options_module.Pool:
    """Measuring processes on this machine."""
    from felix.measure.pool import local

    return local.LocalPool(task)


def open_session(
    tasks: Sequence[Task],
    budget: options_module.Budget,
    out: pathlib.Path | None,
    resume: bool,
    journal: Callable[[Sequence[Task], session.Identity], session.Journal] | None = None,
) -> session.Journal | None:
    """The session in an output folder or the caller's journal; None without either."""
    if out is None and journal is None:
        if resume:
            raise errors.TuningError("resuming needs the output folder of the earlier run")
        return None
    from felix.features import spec

    identity = session.Identity(
        task_keys=tuple(task.key for task in tasks),
        strategy=budget.strategy,
        seed=budget.seed,
        features_version=spec.FEATURES_VERSION,
        versions=records.versions(),
    )
    if journal is not None:
        return journal(tasks, identity)
    assert out is not None
    return session.Session(out / session.FOLDER, tasks, identity, resume)


def floor_us(task: Task) -> float:
    """A latency that no schedule of the task can go below, for the allocation of rounds.

    Half the time at the device's peak rates, which are estimates.
    """
    hardware = target.hardware(task.target)
    compute_us = task.flops / (hardware.peak_fp32_gflops * 1e3)
    memory_us = task.min_bytes / (hardware.dram_bandwidth_gbs * 1e3)
    return 0.5 * max(compute_us, memory_us) if math.isfinite(compute_us + memory_us) else 0.0


def has_converged(allocator: allocate.Allocator, options: options_module.TuneOptions) -> bool:
    """Whether no task that is still open gained enough over its last rounds."""
    patience = options.patience_rounds
    if patience is None:
        return False
    progress = [p for i, p in enumerate(allocator.tasks) if allocator.is_open(i)]
    return bool(progress) and all(
        _is_flat(p.best_us, patience, options.min_improvement) for p in progress
    )


def _is_flat(best_us: Sequence[float | None], patience: int, min_improvement: float) -> bool:
    if len(best_us) <= patience:
        return False
    before, now = best_us[-1 - patience], best_us[-1]
    if before is None or now is None:
        return False
    return now > before * (1.0 - min_improvement)
