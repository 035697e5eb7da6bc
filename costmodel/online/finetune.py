"""Online fine-tuning: the cost model follows the measurements of one tuning run.

After each round of measurements `FineTuner.update` trains a few dozen steps on everything
measured so far plus a replayed sample of the pretraining data, from the current weights.

- Another machine or state of it shifts all latencies of a task by a factor. Each task therefore
  has an offset in ln latency (shrunk towards 0 while it has few records), and replayed data are
  compared within their tasks only (mean error removed): they hold the ranking, not the scale.
- A fixed eighth of the records (by position) is held out. The weights of the best step check are
  taken; if none beats the weights before the update, those stay
  (`LearningReport.accepted` is False).
- Weights are pulled towards the pretrained ones, so that ten records cannot undo them.

Notation: N records, rows [N, R, F], mask [N, R], ln_latency [N] of us (NaN for failures, which
are ignored), task_ids [N] any integers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from costmodel.data import replay as replaying
from costmodel.models import segment_mlp
from costmodel.training import metrics, train
from felix import errors

#: Learning rate of a network that was never pretrained.
_FRESH_LR = 5e-3
#: One record in so many is held out.
_HOLD_OUT = 8
#: Records a task needs before its offset counts half; small, since machines differ by more than
#: the errors of one task spread.
_SHRINKAGE = 0.5


@dataclass(frozen=True, slots=True)
class FineTuneOptions:
    """How to fine-tune.

    Attributes:
        steps: gradient steps of an update.
        checks: how many times within them the held-out loss is taken.
        batch: records of a step; replay: replayed schedules of a step.
        anchor: weight of the squared distance to the pretrained weights.
        lr: learning rate of a pretrained network.
        rank_weight, clip, seed: as in training.
    """

    steps: int = 60
    checks: int = 6
    batch: int = 64
    replay: int = 32
    lr: float = 1e-3
    anchor: float = 1e-3
    rank_weight: float = 0.5
    clip: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LearningReport:
    """What an update did.

    Attributes:
        records: measured so far.
        before, after: held-out loss; of the training where there are too few records.
        accepted: whether the new weights are taken.
    """

    records: int
    before: float
    after: float
    accepted: bool


@dataclass(slots=True)
class _Records:
    """Everything measured so far, as tensors; R grows by padding."""

    rows: Tensor
    mask: Tensor
    y: Tensor
    tasks: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Tensor) -> _Records:
        return _Records(self.rows[index], self.mask[index], self.y[index], self.tasks[index])


class OffsetModel(nn.Module):
    """A cost model with the offset of one task added; same call as the model itself."""

    def __init__(self, model: nn.Module, offset: float) -> None:
        super().__init__()
        self.model = model
        self.offset = offset

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Predicted ln(latency_us) [B] on this machine."""
        out: Tensor = self.model(rows, mask) + self.offset
        return out


class FineTuner:
    """Owns the model during a tuning run; `model` is updated in place.

    The same calls in the same order with the same seed and thread count give the same weights.
    """

    def __init__(
        self,
        model: nn.Module,
        replay: replaying.Replay | None = None,
        options: FineTuneOptions | None = None,
    ) -> None:
        self.model = model
        self.options = options or FineTuneOptions()
        self.offsets: dict[int, float] = {}
        self._replay = None if replay is None else _replay_records(replay)
        self._records: _Records | None = None
        self._updates = 0
        self._is_fresh = False
        self._anchor: dict[str, Tensor] = {}
        self._set_anchor()

    def __len__(self) -> int:
        """Records measured so far."""
        return 0 if self._records is None else len(self._records)

    def for_task(self, task_id: int) -> nn.Module:
        """The model for one task, calibrated by its offset."""
        return OffsetModel(self.model, self.offsets.get(task_id, 0.0)).eval()

    def update(
        self,
        rows: NDArray[np.floating[Any]],
        mask: NDArray[np.generic],
        ln_latency: NDArray[np.floating[Any]],
        task_ids: NDArray[np.integer[Any]],
    ) -> LearningReport:
        """Add records and train on all of them; the old weights stay if that does not help."""
        self._append(_records(rows, mask, ln_latency, task_ids))
        records = self._records
        if records is None or len(records) == 0:
            return LearningReport(0, math.nan, math.nan, False)
        if segment_mlp.fit_normalisers(self.model, records.rows, records.mask):
            self._is_fresh = True
            self._set_anchor()
        training, held_out = self._hold_out(records)
        self.offsets = self._fit_offsets(training)
        before = self._held_out_loss(held_out)
        start = (copy.deepcopy(self.model.state_dict()), dict(self.offsets))
        best, best_loss = self._train(training, held_out, before, start)
        self.model.load_state_dict(best[0])
        self.offsets = self._fit_offsets(records)
        self.model.eval()
        self._updates += 1
        return LearningReport(len(records), before, best_loss, best is not start)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: weights, anchor, offsets, records, counter."""
        records = self._records
        return {
            "model": {k: v.clone() for k, v in self.model.state_dict().items()},
            "anchor": {k: v.clone() for k, v in self._anchor.items()},
            "offsets": dict(self.offsets),
            "updates": self._updates,
            "fresh": self._is_fresh,
            "records": None
            if records is None
            else {n: getattr(records, n).clone() for n in ("rows", "mask", "y", "tasks")},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned; raises CheckpointError if it does not fit."""
        try:
            self.model.load_state_dict(state["model"])
            self._anchor = dict(state["anchor"])
            self.offsets = {int(k): float(v) for k, v in state["offsets"].items()}
            self._updates, self._is_fresh = int(state["updates"]), bool(state["fresh"])
            records = state["records"]
            self._records = None if records is None else _Records(**records)
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise errors.CheckpointError(
                "the fine-tuning state belongs to another cost model"
            ) from error

    def _set_anchor(self) -> None:
        """Make the current weights those that training is pulled towards."""
        self._anchor = {n: p.detach().clone() for n, p in self.model.named_parameters()}

    def _append(self, new: _Records) -> None:
        old = self._records
        if old is None or len(old) == 0:
            self._records = new
        elif len(new):
            self._records = _concatenate(old, new)

    def _hold_out(self, records: _Records) -> tuple[_Records, _Records]:
        """Training and held-out records; with few records all of them serve as both."""
        position = torch.arange(len(records))
        held_out = position % _HOLD_OUT == _HOLD_OUT - 1
        if int(held_out.sum()) < 4:
            return records, records
        return records.take(~held_out), records.take(held_out)

    @torch.no_grad()
    def _fit_offsets(self, records: _Records) -> dict[int, float]:
        """Shrunk mean error of every task."""
        self.model.eval()
        error = records.y - train.predict(self.model, records.rows, records.mask)
        offsets = {}
        for task in torch.unique(records.tasks).tolist():
            errors_of_task = error[records.tasks == task]
            count = len(errors_of_task) + _SHRINKAGE
            offsets[int(task)] = float(errors_of_task.sum() / count)
        return offsets

    def _centres(self, tasks: Tensor) -> Tensor:
        return torch.tensor([self.offsets.get(int(t), 0.0) for t in tasks])

    @torch.no_grad()
    def _held_out_loss(self, held_out: _Records) -> float:
        """Loss of the current weights and offsets on the held-out records and the replay."""
        self.model.eval()
        p = train.predict(self.model, held_out.rows, held_out.mask)
        loss = float(self._loss(p + self._centres(held_out.tasks), held_out))
        if self._replay is not None:
            p = train.predict(self.model, self._replay.rows, self._replay.mask)
            loss += 0.5 * float(self._relative_loss(p, self._replay))
        return loss

    def _loss(self, p: Tensor, records: _Records) -> Tensor:
        """Regression plus ranking within tasks of calibrated predictions."""
        loss = functional.huber_loss(p, records.y)
        return loss + self.options.rank_weight * _ranking(p, records)

    def _relative_loss(self, p: Tensor, records: _Records) -> Tensor:
        """The loss after removing each task's mean error."""
        _, group = torch.unique(records.tasks, return_inverse=True)
        counts = torch.bincount(group).clamp(min=1)
        error = records.y - p
        means = torch.zeros(len(counts)).index_add(0, group, error) / counts
        return self._loss(p + means.detach()[group], records)

    def _train(
        self,
        training: _Records,
        held_out: _Records,
        before: float,
        start: tuple[dict[str, Tensor], dict[int, float]],
    ) -> tuple[tuple[dict[str, Tensor], dict[int, float]], float]:
        """Train; the best weights and offsets by the held-out loss, `start` if none is better."""
        options = self.options
        draws = torch.Generator().manual_seed(options.seed + self._updates)
        lr = _FRESH_LR if self._is_fresh else options.lr
        optimiser = torch.optim.Adam(self.model.parameters(), lr=lr)
        best, best_loss = start, before
        every = max(1, options.steps // options.checks)
        for step in range(1, options.steps + 1):
            self.model.train()
            index = torch.randperm(len(training), generator=draws)[: options.batch]
            loss = self._step_loss(training.take(index), draws)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
            optimiser.step()
            if step % every == 0:
                self.offsets = self._fit_offsets(training)
                now = self._held_out_loss(held_out)
                if now < best_loss:
                    state = copy.deepcopy(self.model.state_dict())
                    best, best_loss = (state, dict(self.offsets)), now
        return best, best_loss

    def _step_loss(self, batch: _Records, draws: torch.Generator) -> Tensor:
        p = self.model(batch.rows, batch.mask)
        loss = self._loss(p + self._centres(batch.tasks), batch)
        if self._replay is not None:
            # neighbouring records belong to one task, so a window has pairs to rank
            first = torch.randint(len(self._replay), (4,), generator=draws)
            index = (first[:, None] + torch.arange(self.options.replay // 4)) % len(self._replay)
            replayed = self._replay.take(index.flatten())
            p = self.model(replayed.rows, replayed.mask)
            loss = loss + 0.5 * self._relative_loss(p, replayed)
        pull = sum((p - self._anchor[n]).square().sum() for n, p in self.model.named_parameters())
        return loss + self.options.anchor * pull


def _ranking(p: Tensor, records: _Records) -> Tensor:
    """The ranking loss over pairs of the same task, all tasks at once."""
    same = records.tasks.unsqueeze(-1) == records.tasks.unsqueeze(-2)
    gap = (records.y.unsqueeze(-2) - records.y.unsqueeze(-1)) * same
    weight = gap.clamp(max=1.0) * (gap > metrics.NOISE)
    cost = functional.softplus(p.unsqueeze(-1) - p.unsqueeze(-2)) * weight
    return cost.sum() / weight.sum().clamp(min=1e-6)


def _records(
    rows: NDArray[np.floating[Any]],
    mask: NDArray[np.generic],
    ln_latency: NDArray[np.floating[Any]],
    task_ids: NDArray[np.integer[Any]],
) -> _Records:
    measured = np.isfinite(ln_latency)
    return _Records(
        torch.from_numpy(np.asarray(rows, np.float32)[measured]),
        torch.from_numpy(np.asarray(mask)[measured] != 0),
        torch.from_numpy(np.asarray(ln_latency, np.float32)[measured]),
        torch.from_numpy(np.asarray(task_ids, np.int64)[measured]),
    )


def _replay_records(replay: replaying.Replay) -> _Records:
    records = _records(replay.rows, replay.mask, replay.ln_latency, replay.task_ids)
    if len(records) == 0:
        raise errors.RecordError("the replay sample has no schedule that ran")
    return records.take(torch.argsort(records.tasks, stable=True))


def _concatenate(a: _Records, b: _Records) -> _Records:
    """Append records, padding the shorter row dimension."""
    n_rows = max(a.mask.shape[1], b.mask.shape[1])
    rows = [functional.pad(x.rows, (0, 0, 0, n_rows - x.mask.shape[1])) for x in (a, b)]
    masks = [functional.pad(x.mask, (0, n_rows - x.mask.shape[1])) for x in (a, b)]
    return _Records(
        torch.cat(rows), torch.cat(masks), torch.cat([a.y, b.y]), torch.cat([a.tasks, b.tasks])
    )
