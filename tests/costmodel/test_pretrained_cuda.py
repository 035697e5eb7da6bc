"""The shipped sm_90 checkpoint: it fits these features, its data and its recorded scores."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest

import costmodel
from benchmarks.support import subgraphs
from costmodel.data import dataset, felix_bridge
from costmodel.data import features as task_features
from costmodel.models import checkpoint
from costmodel.training import evaluate, metrics, model_card
from felix import workloads
from felix.features import spec

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data" / "cuda"
SHIPPED = ROOT / "costmodel" / "pretrained" / "cuda-sm_90"
SCORED = ROOT / "data" / "pretrained" / "cuda-sm_90"
#: Test workloads whose features are quick to compute.
FEW = ("gemm_12x197x197x64_nt", "layer_norm_16x512x768_over2", "softmax_32x128x128_axis2")


@functools.cache
def measured() -> dataset.Dataset:
    return dataset.read(DATA)


def test_tuning_for_an_h200_starts_from_it() -> None:
    target = felix_bridge.target_text("h200")
    _, info = costmodel.load_for(target, spec.NAMES, spec.FEATURES_VERSION)
    assert info.source == "checkpoint", info.message
    assert info.metadata is not None and info.metadata.device == "cuda-sm_90"
    assert info.replay is not None


def test_data_are_those_of_the_checkpoint_and_small() -> None:
    data = measured()
    assert not data.torn and len(data.workloads) >= 250
    _, metadata = checkpoint.load(SHIPPED / "model.safetensors")
    assert metadata.data["digest"] == data.digest
    assert sum(path.stat().st_size for path in DATA.rglob("*.parquet")) < 20 << 20
    assert {record.source for record in data.records} == {"random", "neighbour", "descent"}


def test_benchmarked_subgraphs_are_not_in_the_data() -> None:
    keys = {(w.operator, w.name) for w in measured().workloads.values()}
    every = subgraphs.SUBGRAPHS | subgraphs.AWKWARD | subgraphs.CONFIRMING
    for text in every.values():
        operator = text.partition(":")[0]
        assert (operator, workloads.parse(text, target="h200").name) not in keys


def test_recorded_scores_come_out_again() -> None:
    data = measured()
    keys = {w.key for w in data.workloads.values() if w.name in FEW}
    records = tuple(record for record in data.records if record.workload in keys)
    few = dataclasses.replace(data, records=records)
    features = task_features.load_features(few, felix_bridge.FelixFeaturizer())
    assert features.skipped == 0
    held_out = SCORED / model_card.HELD_OUT
    model, metadata = checkpoint.load(held_out, features.names, features.version)
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
