"""Training a cost model on measured schedules.

Each step draws T tasks and K schedules of each, so tasks count equally however many schedules
they have; the loss is a Huber regression of ln latency plus a ranking term within tasks. The
best epoch on the validation tasks (workloads never trained on) is taken; on request a line fitted
on them is folded into its weights (`calibration`). The same data, options, seed and thread count
give the same weights.

Notation: as `losses`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from costmodel.data import features as task_features
from costmodel.models import segment_mlp
from costmodel.training import calibration, losses, metrics
from felix import errors


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train.

    Attributes:
        epochs: at most; one epoch draws about as many schedules as there are.
        patience: epochs without a better validation loss before stopping.
        lr: learning rate of AdamW at the start; falls to 0 over `epochs` along a cosine.
        tasks_per_step: T.
        per_task: K.
        rank_weight: weight of the ranking term.
        clip: largest gradient norm.
        failures: "exclude", or "slow": schedules that failed to build or timed out are taken
            as at least twice as slow as the slowest that ran.
        calibrate: fold a line fitted on the validation tasks into the weights; with few of them
            it may fit nothing else.
        seed: of initial weights and draws.
        shape: architecture.
    """

    epochs: int = 20
    patience: int = 30
    lr: float = 2e-3
    weight_decay: float = 1e-4
    tasks_per_step: int = 8
    per_task: int = 32
    rank_weight: float = 0.5
    clip: float = 1.0
    failures: str = "exclude"
    calibrate: bool = False
    seed: int = 0
    shape: segment_mlp.ModelOptions = field(default_factory=segment_mlp.ModelOptions)

    def __post_init__(self) -> None:
        if self.failures not in ("exclude", "slow"):
            raise errors.RecordError(f"failures are {self.failures!r}: use exclude or slow")
        if min(self.epochs, self.patience, self.tasks_per_step) < 1 or self.per_task < 2:
            raise errors.RecordError("epochs, patience and tasks per step must be positive")


#: Error classes that say something about a schedule's speed.
SLOW_ERRORS = ("build", "timeout")


@dataclass(frozen=True, slots=True)
class Examples:
    """Tensors of one task: rows [N, R, F], mask [N, R], y [N], failed [N]."""

    rows: Tensor
    mask: Tensor
    y: Tensor
    failed: Tensor


@dataclass(frozen=True, slots=True)
class Epoch:
    """Progress of the training."""

    epoch: int
    train_loss: float
    validation_loss: float


@dataclass(frozen=True, slots=True)
class Trained:
    """The best model seen, and how it got there; `line` is folded into its weights."""

    model: segment_mlp.SegmentSumMLP
    history: tuple[Epoch, ...]
    best_epoch: int
    line: calibration.Line


def examples(task: task_features.TaskData, failures: str, n_rows: int | None = None) -> Examples:
    """A task's schedules as tensors, failed ones excluded or given a lower bound of latency."""
    measured = task.measured
    slow = np.array([e in SLOW_ERRORS for e in task.errors])
    keep = measured | slow if failures == "slow" else measured
    bound = task.ln_latency[measured].max() + math.log(2.0)
    y = np.where(measured, task.ln_latency, bound)[keep]
    pad = (n_rows or task.mask.shape[1]) - task.mask.shape[1]
    return Examples(
        torch.from_numpy(np.pad(task.rows[keep], ((0, 0), (0, pad), (0, 0)))),
        torch.from_numpy(np.pad(task.mask[keep], ((0, 0), (0, pad)))),
        torch.from_numpy(y).float(),
        torch.from_numpy(~measured[keep]),
    )


def train(
    features: task_features.Features,
    training: Sequence[task_features.TaskData],
    validation: Sequence[task_features.TaskData],
    options: TrainOptions,
    progress: Callable[[Epoch], None] | None = None,
    line: calibration.Line | None = None,
) -> Trained:
    """Train on `training`, take the epoch that is best on `validation`.

    Without validation tasks all epochs are run and the last one is taken.

    Args:
        line: calibrates instead of one fitted on `validation`.

    Raises:
        RecordError: there is nothing to train on, or to calibrate on where the options say so.
    """
    if not training:
        raise errors.RecordError("no training tasks: measure more workloads or shrink the shares")
    if options.calibrate and line is None and not validation:
        raise errors.RecordError(
            "nothing to calibrate on: give --validation a share or leave out --calibrate"
        )
    n_rows = max(task.mask.shape[1] for task in training)
    parts = [examples(task, options.failures, n_rows) for task in training]
    held_out = [examples(task, options.failures) for task in validation]
    model = _fresh(features.names, parts, options)
    history, best, best_loss = [], copy.deepcopy(model.state_dict()), math.inf
    best_epoch = 0
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=options.lr, weight_decay=options.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=options.epochs)
    draws = torch.Generator().manual_seed(options.seed)
    for epoch in range(1, options.epochs + 1):
        train_loss = _train_epoch(model, optimiser, parts, draws, options)
        loss = validation_loss(model, held_out, options) if held_out else train_loss
        schedule.step()
        history.append(Epoch(epoch, train_loss, loss))
        if progress is not None:
            progress(history[-1])
        if loss < best_loss or not held_out:
            best, best_loss, best_epoch = copy.deepcopy(model.state_dict()), loss, epoch
        elif epoch - best_epoch >= options.patience:
            break
    model.load_state_dict(best)
    model.eval()
    line = line or _line(model, held_out if options.calibrate else ())
    model.rescale(line.slope, line.intercept)
    return Trained(model, tuple(history), best_epoch, line)


def _line(model: nn.Module, parts: Sequence[Examples]) -> calibration.Line:
    """What calibrates `model` on the schedules of `parts` that ran."""
    if not parts:
        return calibration.Line()
    return calibration.fit(
        [
            (p[~part.failed].double().numpy(), part.y[~part.failed].double().numpy())
            for part in parts
            for p in [predict(model, part.rows, part.mask)]
        ]
    )


def _fresh(
    names: tuple[str, ...], parts: Sequence[Examples], options: TrainOptions
) -> segment_mlp.SegmentSumMLP:
    """A model with fitted normaliser whose first predictions average to the mean of y."""
    model = segment_mlp.seeded(names, options.shape, options.seed)
    rows, mask = torch.cat([p.rows for p in parts]), torch.cat([p.mask for p in parts])
    model.normaliser.fit(rows, mask)
    y = torch.cat([p.y for p in parts])
    with torch.no_grad():
        model.head.weight.mul_(0.1)
        model.head.bias.copy_((y - model.prior(rows, mask)).mean())
    return model


def _train_epoch(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    parts: Sequence[Examples],
    draws: torch.Generator,
    options: TrainOptions,
) -> float:
    """One pass over about as many schedules as there are; mean loss of the steps."""
    model.train()
    n_tasks = min(options.tasks_per_step, len(parts))
    n_steps = max(1, round(sum(len(p.y) for p in parts) / (n_tasks * options.per_task)))
    order = torch.cat(
        [
            torch.randperm(len(parts), generator=draws)
            for _ in range(-(-n_steps * n_tasks // len(parts)))
        ]
    )
    total = 0.0
    for step in range(n_steps):
        chosen = [parts[int(i)] for i in order[step * n_tasks : (step + 1) * n_tasks]]
        batch = _draw(chosen, options.per_task, draws)
        p = model(batch.rows, batch.mask).view(n_tasks, options.per_task)
        y, failed = batch.y.view_as(p), batch.failed.view_as(p)
        loss = losses.regression(p, y, failed).mean()
        loss = loss + options.rank_weight * losses.ranking(p, y, failed, metrics.NOISE).mean()
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimiser.step()
        total += float(loss.detach())
    return total / n_steps


def _draw(chosen: Sequence[Examples], per_task: int, draws: torch.Generator) -> Examples:
    """`per_task` schedules of each task, without repeats while there are enough."""
    picked = []
    for part in chosen:
        n = len(part.y)
        repeats = -(-per_task // n)
        index = torch.cat([torch.randperm(n, generator=draws) for _ in range(repeats)])
        index = index[:per_task]
        picked.append(
            Examples(part.rows[index], part.mask[index], part.y[index], part.failed[index])
        )
    return Examples(
        torch.cat([p.rows for p in picked]),
        torch.cat([p.mask for p in picked]),
        torch.cat([p.y for p in picked]),
        torch.cat([p.failed for p in picked]),
    )


@torch.no_grad()
def validation_loss(model: nn.Module, parts: Sequence[Examples], options: TrainOptions) -> float:
    """The training loss on whole tasks, averaged over tasks."""
    model.eval()
    total = 0.0
    for part in parts:
        p, y, failed = (
            predict(model, part.rows, part.mask).unsqueeze(0),
            part.y.unsqueeze(0),
            part.failed.unsqueeze(0),
        )
        total += float(losses.regression(p, y, failed).mean())
        total += options.rank_weight * float(losses.ranking(p, y, failed, metrics.NOISE).mean())
    return total / len(parts)


@torch.no_grad()
def predict(model: nn.Module, rows: Tensor, mask: Tensor, batch: int = 4096) -> Tensor:
    """Predictions [N] in batches."""
    pieces = [model(rows[i : i + batch], mask[i : i + batch]) for i in range(0, len(rows), batch)]
    return torch.cat(pieces) if pieces else rows.new_zeros(0)


def train_all(
    features: task_features.Features,
    options: TrainOptions,
    progress: Callable[[Epoch], None] | None = None,
    line: calibration.Line | None = None,
) -> Trained:
    """Train afresh on every task, the same number of epochs along the same schedule.

    Args:
        line: fitted by the same training with a validation part; there is none left here.
    """
    return train(features, features.tasks, (), options, progress, line)
