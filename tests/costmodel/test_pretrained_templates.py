"""The shipped sm_90 checkpoint of templates: it fits the table, its data and its scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import tensor_cores
from costmodel import __main__ as cli
from costmodel import registry
from costmodel.data import dataset
from costmodel.models import checkpoint, within_training
from costmodel.training import model_card
from felix import target, workloads
from felix.features.kind import FeatureKind
from felix.search import cost_model

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data" / "templates"
SHIPPED = ROOT / "costmodel" / "pretrained" / "cuda-sm_90" / "templates"
SCORED = ROOT / "data" / "pretrained" / "cuda-sm_90-templates"


@pytest.fixture(scope="module")
def measured() -> dataset.Dataset:
    return dataset.read(DATA)


def test_tuning_for_an_h200_starts_from_it() -> None:
    loaded = cost_model.load(None, target.parse("h200"), 0, FeatureKind.TEMPLATE)
    assert loaded.info is not None and loaded.info.source == "checkpoint", loaded.message
    assert loaded.info.path == SHIPPED / registry.FILE_NAME and loaded.info.replay is not None
    assert isinstance(loaded.module, within_training.WithinTraining)


def test_data_are_those_of_the_checkpoint_and_small(measured: dataset.Dataset) -> None:
    timed = [record for record in measured.records if record.error is None]
    assert not measured.torn and len(timed) >= 15_000
    assert len({record.workload for record in timed}) >= 300
    _, metadata = checkpoint.load(SHIPPED / registry.FILE_NAME)
    assert metadata.data["digest"] == measured.digest
    assert sum(path.stat().st_size for path in DATA.rglob("*.parquet")) < 3 << 20


def test_no_benchmark_is_in_the_data(measured: dataset.Dataset) -> None:
    keys = {(w.operator, w.name) for w in measured.workloads.values()}
    for members in tensor_cores.SETS.values():
        for text in members.values():
            operator = text.partition(":")[0]
            assert (operator, workloads.parse(text, target="h200").name) not in keys


def test_recorded_scores_come_out_again(tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    held_out = SCORED / model_card.HELD_OUT
    arguments = ["evaluate", "--kind", "template", "--data", str(DATA), "--model", str(held_out)]
    assert cli.main([*arguments, "--out", str(out)]) == 0
    again = json.loads(out.read_text())["reports"][0]
    recorded = json.loads((SCORED / model_card.SCORES).read_text())["reports"][0]
    assert again["overall"] == pytest.approx(recorded["overall"], abs=1e-3)
    assert again["overall"]["near_best"] > 0.9
