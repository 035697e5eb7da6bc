"""The shipped checkpoints: they fit the features, their data, and their recorded scores."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import costmodel
from benchmarks import tensor_cores
from benchmarks.support import subgraphs
from costmodel import __main__ as cli
from costmodel import registry
from costmodel.data import features as task_features
from costmodel.data import felix_bridge, replay
from costmodel.models import checkpoint, within_training
from costmodel.training import evaluate, metrics, model_card
from felix import target, workloads
from felix.features import spec
from felix.features.kind import FeatureKind
from felix.search import cost_model
from tests.costmodel.conftest import Measured
from tests.support import share

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Shipped:
    """A shipped checkpoint: its folder, that of its scores, its data, and their most megabytes."""

    folder: str
    scored: str
    data: str
    most_mb: int
    #: Test workloads whose features are quick to compute.
    few: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return ROOT / "costmodel" / "pretrained" / self.folder

    @property
    def scores(self) -> Path:
        return ROOT / "data" / "pretrained" / self.scored


LLVM = Shipped(
    "llvm",
    "llvm",
    "llvm",
    20,
    ("gemm_16x1376x512_bias", "global_avg_pool2d_1x7x7x2048", "reduce_max_128x1009_over1"),
)
CUDA = Shipped(
    "cuda-sm_90",
    "cuda-sm_90",
    "cuda",
    20,
    ("gemm_12x197x197x64_nt", "layer_norm_16x512x768_over2", "softmax_32x128x128_axis2"),
)
TEMPLATES = Shipped("cuda-sm_90/templates", "cuda-sm_90-templates", "templates", 3)
EVERY = pytest.mark.parametrize("shipped", [LLVM, CUDA, TEMPLATES], ids=lambda each: each.scored)


@pytest.mark.parametrize(
    "shipped, text", [(LLVM, "llvm"), (CUDA, felix_bridge.target_text("h200"))]
)
def test_tuning_starts_from_it(shipped: Shipped, text: str) -> None:
    model, info = costmodel.load_for(text, spec.NAMES, spec.FEATURES_VERSION)
    assert info.source == "checkpoint", info.message
    assert info.metadata is not None and info.metadata.device == shipped.folder
    assert info.replay is not None and len(set(info.replay.task_ids.tolist())) >= 40
    rows, mask = torch.from_numpy(info.replay.rows), torch.from_numpy(info.replay.mask)
    error = model(rows, mask).detach() - torch.from_numpy(info.replay.ln_latency)
    assert error.square().mean().sqrt() < 0.5


def test_tuning_templates_starts_from_theirs() -> None:
    loaded = cost_model.load(None, target.parse("h200"), 0, FeatureKind.TEMPLATE)
    assert loaded.info is not None and loaded.info.source == "checkpoint", loaded.message
    assert loaded.info.path == TEMPLATES.path / registry.FILE_NAME
    assert loaded.info.replay is not None
    assert isinstance(loaded.module, within_training.WithinTraining)


@pytest.mark.parametrize(
    "shipped", share.of([LLVM, TEMPLATES, CUDA], 1), ids=lambda each: each.scored
)
def test_data_are_those_of_the_checkpoint_and_small(shipped: Shipped, measured: Measured) -> None:
    data = measured(shipped.data)
    assert not data.torn
    _, metadata = checkpoint.load(shipped.path / registry.FILE_NAME)
    assert metadata.data["digest"] == data.digest
    files = (ROOT / "data" / shipped.data).rglob("*.parquet")
    assert sum(path.stat().st_size for path in files) < shipped.most_mb << 20


@pytest.mark.slow("reads all data of the models")
def test_data_are_enough(measured: Measured) -> None:
    for name, n_records, n_workloads in (("llvm", 3000, 40), ("templates", 15_000, 300)):
        ran = [record for record in measured(name).records if record.latency_us is not None]
        assert len(ran) >= n_records
        assert len({record.workload for record in ran}) >= n_workloads
    cuda = measured("cuda")
    assert len(cuda.workloads) >= 250
    assert {record.source for record in cuda.records} == {"random", "neighbour", "descent"}
    machine = felix_bridge.hardware_of(measured("llvm").records[0].device)
    assert machine.l1_bytes > 0 and machine.peak_fp32_gflops > 0


@EVERY
def test_shipped_files_are_few_and_small(shipped: Shipped) -> None:
    sizes = {path.name: path.stat().st_size for path in shipped.path.iterdir() if path.is_file()}
    assert set(sizes) == {registry.FILE_NAME, replay.FILE_NAME, model_card.FILE_NAME}
    assert max(sizes.values()) <= 1 << 20


@EVERY
def test_card_tells_where_the_scores_are(shipped: Shipped) -> None:
    model, metadata = checkpoint.load(shipped.path / registry.FILE_NAME)
    card = (shipped.path / model_card.FILE_NAME).read_text()
    folder = f"{shipped.scores.relative_to(ROOT)}/"
    assert card == model_card.render(registry.FILE_NAME, model, metadata, folder)


@pytest.mark.slow("reads all data of two models")
def test_no_benchmark_is_in_the_data(measured: Measured) -> None:
    of_traces = [subgraphs.SUBGRAPHS, subgraphs.AWKWARD, subgraphs.CONFIRMING]
    for name, sets in (("cuda", of_traces), ("templates", [*tensor_cores.SETS.values()])):
        keys = {(w.operator, w.name) for w in measured(name).workloads.values()}
        for text in (text for members in sets for text in members.values()):
            operator = text.partition(":")[0]
            assert (operator, workloads.parse(text, target="h200").name) not in keys


@pytest.mark.parametrize("shipped", share.of([LLVM, CUDA], 1), ids=lambda each: each.scored)
def test_recorded_scores_come_out_again(shipped: Shipped, measured: Measured) -> None:
    data = measured(shipped.data)
    keys = {w.key for w in data.workloads.values() if w.name in shipped.few}
    records = tuple(record for record in data.records if record.workload in keys)
    few = dataclasses.replace(data, records=records)
    features = task_features.load_features(few, felix_bridge.FelixFeaturizer())
    assert features.skipped == 0
    held_out = shipped.scores / model_card.HELD_OUT
    model, metadata = checkpoint.load(held_out, features.names, features.version)
    report = evaluate.evaluate("held out", evaluate.of_module(model), features.tasks)
    content = json.loads((shipped.scores / model_card.SCORES).read_text())
    assert evaluate.without_workloads(content) == metadata.scores
    for each in content["reports"]:
        mean = np.mean([task["top1"] for task in each["tasks"]])
        assert mean == pytest.approx(each["overall"]["top1"], abs=1e-4)
    recorded = {score["name"]: score for score in content["reports"][0]["tasks"]}
    again = {score["name"]: score for score in report.as_json()["tasks"]}
    assert set(again) == set(shipped.few)
    for name in shipped.few:
        scored = recorded[name].keys() & set(evaluate.COLUMNS)
        assert len(scored) >= 8
        assert again[name]["near_best"] == float(recorded[name]["top1"] >= 1 / metrics.NEAR_BEST)
        for column in scored:
            assert again[name][column] == pytest.approx(recorded[name][column], abs=1e-3)


@pytest.mark.slow("reads all data of templates")
def test_recorded_scores_of_templates_come_out_again(tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    held_out = TEMPLATES.scores / model_card.HELD_OUT
    arguments = ["evaluate", "--kind", "template", "--data", str(ROOT / "data" / "templates")]
    assert cli.main([*arguments, "--model", str(held_out), "--out", str(out)]) == 0
    again = json.loads(out.read_text())["reports"][0]
    recorded = json.loads((TEMPLATES.scores / model_card.SCORES).read_text())["reports"][0]
    assert again["overall"] == pytest.approx(recorded["overall"], abs=1e-3)
    assert again["overall"]["near_best"] > 0.9
