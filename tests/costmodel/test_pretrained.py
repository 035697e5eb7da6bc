"""The shipped `llvm` checkpoint: it fits these features, its data and its recorded scores.

What holds of the files of every checkpoint is here, too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import costmodel
from costmodel import registry
from costmodel.data import dataset, felix_bridge, replay
from costmodel.data import features as task_features
from costmodel.models import checkpoint
from costmodel.training import evaluate, metrics, model_card
from felix.features import spec

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data" / "llvm"
SHIPPED = ROOT / "costmodel" / "pretrained" / "llvm"
SCORED = ROOT / "data" / "pretrained" / "llvm"
_ALL, _SCORES = ROOT / "costmodel" / "pretrained", ROOT / "data" / "pretrained"
#: Folders of the shipped checkpoints, and those of their scores.
CHECKPOINTS = {
    SHIPPED: SCORED,
    _ALL / "cuda-sm_90": _SCORES / "cuda-sm_90",
    _ALL / "cuda-sm_90" / "templates": _SCORES / "cuda-sm_90-templates",
}
#: Test workloads whose features are quick to compute.
FEW = ("gemm_16x1376x512_bias", "global_avg_pool2d_1x7x7x2048", "reduce_max_128x1009_over1")


@functools.cache
def measured() -> dataset.Dataset:
    return dataset.read(DATA)


def test_checkpoint_fits_the_features_of_today() -> None:
    model, info = costmodel.load_for("llvm", spec.NAMES, spec.FEATURES_VERSION)
    assert info.source == "checkpoint", info.message
    assert info.metadata is not None and info.metadata.device == "llvm"
    assert info.replay is not None and len(set(info.replay.task_ids.tolist())) >= 40
    rows, mask = torch.from_numpy(info.replay.rows), torch.from_numpy(info.replay.mask)
    predicted = model(rows, mask)
    error = predicted.detach() - torch.from_numpy(info.replay.ln_latency)
    assert error.square().mean().sqrt() < 0.5


def test_data_are_enough_and_are_those_of_the_checkpoint() -> None:
    data = measured()
    ran = [record for record in data.records if record.latency_us is not None]
    assert len(ran) >= 3000 and len({record.workload for record in ran}) >= 40
    assert not data.torn
    _, metadata = checkpoint.load(SHIPPED / "model.safetensors")
    assert metadata.data["digest"] == data.digest
    machines = [felix_bridge.hardware_of(record.device) for record in data.records[:1]]
    assert machines[0].l1_bytes > 0 and machines[0].peak_fp32_gflops > 0


@pytest.mark.parametrize("shipped", CHECKPOINTS)
def test_shipped_files_are_few_and_small(shipped: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in shipped.iterdir() if path.is_file()}
    assert set(sizes) == {registry.FILE_NAME, replay.FILE_NAME, model_card.FILE_NAME}
    assert max(sizes.values()) <= 1 << 20


@pytest.mark.parametrize("shipped", CHECKPOINTS)
def test_card_tells_where_the_scores_are(shipped: Path) -> None:
    model, metadata = checkpoint.load(shipped / registry.FILE_NAME)
    folder = f"{CHECKPOINTS[shipped].relative_to(ROOT)}/"
    card = (shipped / model_card.FILE_NAME).read_text()
    assert card == model_card.render(registry.FILE_NAME, model, metadata, folder)


def test_recorded_scores_come_out_again() -> None:
    data = measured()
    keys = {w.key for w in data.workloads.values() if w.name in FEW}
    records = tuple(record for record in data.records if record.workload in keys)
    few = dataclasses.replace(data, records=records)
    features = task_features.load_features(few, felix_bridge.FelixFeaturizer())
    assert features.skipped == 0
    model, metadata = checkpoint.load(
        SCORED / model_card.HELD_OUT, features.names, features.version
    )
    report = evaluate.evaluate("held out", evaluate.of_module(model), features.tasks)
    content = json.loads((SCORED / model_card.SCORES).read_text())
    assert evaluate.without_workloads(content) == metadata.scores
    for each in content["reports"]:
        mean = np.mean([task["top1"] for task in each["tasks"]])
        assert mean == pytest.approx(each["overall"]["top1"], abs=1e-4)
    recorded = {score["name"]: score for score in content["reports"][0]["tasks"]}
    again = {score["name"]: score for score in report.as_json()["tasks"]}
    assert set(again) == set(FEW)
    for name in FEW:
        scored = recorded[name].keys() & set(evaluate.COLUMNS)
        assert len(scored) >= 8
        assert again[name]["near_best"] == float(recorded[name]["top1"] >= 1 / metrics.NEAR_BEST)
        for column in scored:
            assert again[name][column] == pytest.approx(recorded[name][column], abs=1e-3)
