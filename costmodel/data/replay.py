"""A small sample of the training data that travels with a checkpoint, for fine-tuning.

A tuning run replays it, so that following one machine's few measurements does not undo what
pretraining learnt. It holds the same number of schedules of each task in it. The real rows are
stored as 16-bit floats (log features, 3 digits).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from costmodel.data import features as task_features
from costmodel.models import checkpoint
from felix import errors, tensorfile

FILE_NAME = "replay.safetensors"


@dataclass(frozen=True, slots=True)
class Replay:
    """M schedules: rows [M, R, F], mask [M, R], ln_latency [M] of us, task_ids [M]."""

    rows: NDArray[np.float32]
    mask: NDArray[np.bool_]
    ln_latency: NDArray[np.float64]
    task_ids: NDArray[np.int64]


def sample(tasks: Sequence[task_features.TaskData], count: int, seed: int) -> Replay:
    """About `count` schedules that ran, as many of each task; of many tasks, two of some each."""
    draws = np.random.default_rng(seed)
    most = max(1, count // 2)
    if len(tasks) > most:
        tasks = [tasks[i] for i in sorted(draws.permutation(len(tasks))[:most].tolist())]
    per_task = max(2, count // len(tasks))
    parts, y, ids = [], [], []
    for number, task in enumerate(tasks):
        measured = np.flatnonzero(task.measured)
        index = np.sort(draws.permutation(measured)[:per_task])
        parts.append(task_features.Rows(task.rows[index], task.mask[index]))
        y.append(task.ln_latency[index])
        ids.append(np.full(len(index), number, dtype=np.int64))
    stacked = task_features.stack(parts)
    return Replay(stacked.values, stacked.mask, np.concatenate(y), np.concatenate(ids))


def save(path: Path, replay: Replay, names: Sequence[str], version: int) -> None:
    """Write the sample, atomically."""
    tensors = {
        "real_rows": torch.from_numpy(replay.rows[replay.mask]).half(),
        "mask": torch.from_numpy(replay.mask),
        "ln_latency": torch.from_numpy(replay.ln_latency),
        "task_ids": torch.from_numpy(replay.task_ids),
    }
    header = {"features_version": version, "feature_names": list(names)}
    tensorfile.write(path, tensors, {"replay": json.dumps(header)})


def load(path: Path, names: Sequence[str], version: int) -> Replay:
    """Read a sample; raises CheckpointError unless it has exactly these features."""
    tensors, texts = tensorfile.read(path)
    try:
        header = json.loads(texts["replay"])
        made_for = (header["features_version"], tuple(header["feature_names"]))
        checkpoint.check_features(str(path), made_for, names, version)
        mask = tensors["mask"].numpy()
        rows = np.zeros((*mask.shape, len(names)), dtype=np.float32)
        rows[mask] = tensors["real_rows"].float().numpy()
        replay = Replay(rows, mask, tensors["ln_latency"].numpy(), tensors["task_ids"].numpy())
    except (KeyError, TypeError, ValueError) as error:
        raise errors.CheckpointError(f"{path} is not a replay sample") from error
    if not len(mask) == len(replay.ln_latency) == len(replay.task_ids):
        raise errors.CheckpointError(f"{path} is not a replay sample: its shapes disagree")
    return replay
