"""Fine-tuning during a run, and the replay sample, on data whose law is known."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costmodel.data import features as task_features
from costmodel.data import replay
from costmodel.models import analytic, segment_mlp
from costmodel.online import finetune
from costmodel.training import evaluate, metrics, train
from felix import errors
from tests.support.synthetic_task_data import NAMES, SMALL, features, quick, task


@functools.cache
def _pretrained() -> segment_mlp.SegmentSumMLP:
    all_tasks = [task(i, 60) for i in range(10)]
    return train.train(features(all_tasks), all_tasks, (), quick(epochs=50)).model


def pretrained_model() -> segment_mlp.SegmentSumMLP:
    return copy.deepcopy(_pretrained())


def arrays(
    t: task_features.TaskData, task_id: int = 0, part: slice = slice(None)
) -> tuple[Any, ...]:
    ids = np.full(len(t.ln_latency), task_id)
    return t.rows[part], t.mask[part], t.ln_latency[part], ids[part]


def changed_law(t: task_features.TaskData, shift: float = 0.0) -> task_features.TaskData:
    """Another machine: all slower by a factor, and one feature matters more."""
    y = t.ln_latency + shift + 0.25 * t.rows[..., 4].sum(axis=1)
    return dataclasses.replace(t, ln_latency=y)


def simple_law(t: task_features.TaskData) -> task_features.TaskData:
    return dataclasses.replace(t, ln_latency=0.3 * t.rows[..., :2].sum(axis=(1, 2)))


def replay_of(all_tasks: list[task_features.TaskData]) -> replay.Replay:
    stacked = task_features.stack(task_features.Rows(t.rows, t.mask) for t in all_tasks)
    ids = np.concatenate([np.full(len(t.ln_latency), i) for i, t in enumerate(all_tasks)])
    y = np.concatenate([t.ln_latency for t in all_tasks])
    return replay.Replay(stacked.values, stacked.mask, y, ids)


def pairwise(module: torch.nn.Module, t: task_features.TaskData) -> float:
    p = evaluate.of_module(module)(t)
    return metrics.pairwise_accuracy(p, t.ln_latency)


@pytest.mark.slow("trains two models for many rounds")
def test_fine_tuning_follows_the_new_machine_and_replay_keeps_the_old_ranking() -> None:
    here, unseen_here = changed_law(task(20, 160), 2.0), changed_law(task(22, 160), 2.0)
    old = [task(i, 30) for i in range(10)]
    old_ranking: dict[bool, float] = {}
    for with_replay in (False, True):
        network = pretrained_model()
        before = pairwise(network, unseen_here)
        tuner = finetune.FineTuner(network, replay_of(old) if with_replay else None)
        outcomes = [tuner.update(*arrays(here, 5, slice(i, i + 32))) for i in range(0, 160, 32)]
        assert any(o.accepted for o in outcomes) and outcomes[-1].records == 160
        assert pairwise(network, unseen_here) > before + 0.03
        old_ranking[with_replay] = pairwise(network, task(8, 60))
    assert old_ranking[True] > max(old_ranking[False] + 0.05, 0.88)


@pytest.mark.slow("trains a model for many rounds")
def test_offset_absorbs_a_slower_machine_without_moving_the_model_for_others() -> None:
    network = pretrained_model()
    here = task(20, 60, shift=3.0)
    tuner = finetune.FineTuner(network, options=finetune.FineTuneOptions(steps=6))
    tuner.update(*arrays(here, 9))
    error = evaluate.of_module(tuner.for_task(9))(here) - here.ln_latency
    assert abs(error.mean()) < 0.4 and tuner.offsets[9] > 1.5
    assert tuner.for_task(1).offset == 0.0  # type: ignore[comparison-overlap]


def test_update_that_does_not_help_is_rolled_back() -> None:
    network = pretrained_model()
    options = finetune.FineTuneOptions(lr=3.0, anchor=0.0, clip=1e9)
    tuner = finetune.FineTuner(network, replay_of([task(i, 30) for i in range(6)]), options)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    outcome = tuner.update(*arrays(task(20, 200)))
    assert not outcome.accepted and outcome.after == outcome.before
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert not network.training


def test_few_records_failures_and_nothing_at_all() -> None:
    tuner = finetune.FineTuner(pretrained_model())
    here = task(20, 3)
    rows, mask, y, ids = arrays(here)
    assert tuner.update(rows, mask, np.full(3, math.nan), ids).records == 0
    y = y.copy()
    y[1] = math.nan
    outcome = tuner.update(rows, mask, y, ids)
    assert outcome.records == 2 == len(tuner) and math.isfinite(outcome.after)


def test_programs_with_more_rows_may_come_later() -> None:
    tuner = finetune.FineTuner(pretrained_model(), options=finetune.FineTuneOptions(steps=3))
    tuner.update(*arrays(task(20, 20), 0))
    assert tuner.update(*arrays(task(21, 20), 1)).records == 40
    assert set(tuner.offsets) == {0, 1}


def test_fine_tuning_is_deterministic_and_resumes_exactly() -> None:
    here = changed_law(task(20, 96))
    straight, resumed = (finetune.FineTuner(pretrained_model()) for _ in range(2))
    for part in (slice(0, 32), slice(32, 64), slice(64, 96)):
        straight.update(*arrays(here, 0, part))
    resumed.update(*arrays(here, 0, slice(0, 32)))
    resumed.update(*arrays(here, 0, slice(32, 64)))
    state = resumed.state_dict()
    fresh = finetune.FineTuner(pretrained_model())
    fresh.load_state_dict(state)
    fresh.update(*arrays(here, 0, slice(64, 96)))
    expected = straight.model.state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in fresh.model.state_dict().items())
    assert fresh.offsets == straight.offsets


def test_state_of_another_model_is_refused() -> None:
    tuner = finetune.FineTuner(pretrained_model())
    other = finetune.FineTuner(segment_mlp.seeded(NAMES[:5], SMALL))
    with pytest.raises(errors.CheckpointError, match="another cost model"):
        tuner.load_state_dict(other.state_dict())
    with pytest.raises(errors.CheckpointError):
        tuner.load_state_dict({})


def test_analytic_prior_hands_over_to_the_network() -> None:
    options = analytic.AnalyticOptions((analytic.Term("work", ("f5",), 1.0),))
    both = analytic.corrected(NAMES, options, SMALL, seed=1)
    here, unseen = simple_law(task(20, 120)), simple_law(task(22, 120))
    before = pairwise(both, unseen)
    tuner = finetune.FineTuner(both)
    for i in range(0, 120, 30):
        tuner.update(*arrays(here, 0, slice(i, i + 30)))
    assert bool(both.correction.normaliser.fitted)
    assert before < 0.6 and pairwise(both, unseen) > 0.8


def test_update_is_quick() -> None:
    names = tuple(f"f{i}" for i in range(180))
    network = segment_mlp.seeded(names, segment_mlp.ModelOptions())
    draws = np.random.default_rng(0)
    rows = draws.uniform(0, 10, (300, 8, 180)).astype(np.float32)
    tuner = finetune.FineTuner(network)
    start = time.process_time()
    tuner.update(rows, np.ones((300, 8)), draws.normal(0, 1, 300), np.zeros(300, dtype=np.int64))
    assert time.process_time() - start < 4.0  # 0.7 s alone on one core; others may share it


def test_replay_sample_is_even_and_survives_the_disk(tmp_path: Path) -> None:
    short = task(3, 10)
    ln = short.ln_latency.copy()
    ln[:4] = math.nan
    short = dataclasses.replace(short, ln_latency=ln)
    sample = replay.sample([task(1, 40), task(2, 40), short], 24, seed=1)
    assert np.bincount(sample.task_ids).tolist() == [8, 8, 6]
    assert np.isfinite(sample.ln_latency).all() and sample.rows.shape[1] == 3
    replay.save(tmp_path / "r", sample, NAMES, 4)
    loaded = replay.load(tmp_path / "r", NAMES, 4)
    np.testing.assert_allclose(loaded.rows, sample.rows, atol=5e-3)
    assert np.array_equal(loaded.ln_latency, sample.ln_latency)
    assert np.array_equal(loaded.mask, sample.mask)
    with pytest.raises(errors.CheckpointError, match="features version 4"):
        replay.load(tmp_path / "r", NAMES, 5)
    with pytest.raises(errors.CheckpointError, match="damaged"):
        (tmp_path / "r").write_text("x")
        replay.load(tmp_path / "r", NAMES, 4)
