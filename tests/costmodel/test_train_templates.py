"""Training and scoring the model of generated kernels on made-up latencies, then loading it."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import torch

from costmodel import __main__ as cli
from costmodel import registry
from costmodel.data import replay
from costmodel.models import analytic_time, checkpoint, segment_mlp, within_training
from costmodel.online import finetune
from costmodel.training import metrics, model_card
from felix import target
from felix.features.kind import FeatureKind
from felix.search import cost_model
from felix.templates import spec
from tests.support.templates import made_up_data

SHAPES = [
    f"gemm:{m},{n},{k},dtype=bfloat16"
    for m, n, k in (
        (128, 512, 256),
        (1024, 64, 512),
        (333, 777, 128),
        (2048, 2048, 512),
        (197, 768, 768),
        (16, 4096, 1024),
        (512, 512, 2048),
        (96, 96, 8192),
        (640, 1280, 320),
        (1000, 1000, 1000),
        (256, 3072, 768),
        (48, 640, 640),
    )
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Folder with the data set, the models of devices, and the scores."""
    folder = tmp_path_factory.mktemp("templates")
    made_up_data.write(folder / "data", SHAPES, 48)
    out = folder / "pretrained" / "cuda-sm_90" / "templates" / registry.FILE_NAME
    arguments = ["train", "--kind", "template", "--data", f"{folder}/data", "--out", str(out)]
    arguments += ["--scores", f"{folder}/scores", "--epochs", "60", "--hidden", "32", "--final"]
    assert cli.main([*arguments, "--test", "0.25", "--replay", "60"]) == 0
    return folder


def test_the_network_beats_the_formula_on_workloads_it_never_saw(trained: pathlib.Path) -> None:
    content = json.loads((trained / "scores" / model_card.SCORES).read_text())
    reports = {report["label"]: report["overall"] for report in content["reports"]}
    network, formula = reports["network"], reports["analytic"]
    assert network["pairwise"] > max(0.85, formula["pairwise"] + 0.02)
    assert network["rmse"] < 0.35 < formula["rmse"]
    assert network["top1"] > 0.8 and network["top5"] >= network["top1"]
    tasks = content["reports"][0]["tasks"]
    assert len(tasks) == 3
    near = [float(task["top1"] >= 1 / metrics.NEAR_BEST) for task in tasks]
    assert network["near_best"] == pytest.approx(np.mean(near), abs=1e-4)
    assert network["near_best"] >= formula["near_best"]


def test_the_search_loads_it(trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "PRETRAINED", trained / "pretrained")
    h200 = target.parse("h200")
    loaded = cost_model.load(None, h200, 0, FeatureKind.TEMPLATE)
    assert isinstance(loaded.module, within_training.WithinTraining)
    network = loaded.module.network
    assert isinstance(network, segment_mlp.SegmentSumMLP) and "shipped" in loaded.message
    assert network.options.prior == "analytic_us"
    assert network.options.prior_reduce == "sum"
    assert loaded.info is not None and loaded.info.replay is not None
    sample = loaded.info.replay
    predicted = loaded.module(torch.from_numpy(sample.rows), torch.from_numpy(sample.mask))
    error = predicted.detach().numpy() - sample.ln_latency
    assert len(sample.ln_latency) == 60 and np.sqrt(np.mean(error**2)) < 0.3
    tuner = cost_model.online(loaded, finetune.FineTuneOptions(steps=2), FeatureKind.TEMPLATE)
    assert isinstance(tuner, finetune.FineTuner)
    other = cost_model.load(None, h200, 0, FeatureKind.TRACE)
    assert other.info is not None and other.info.source == "analytic"


def test_checkpoint_card_and_replay_lie_together(trained: pathlib.Path) -> None:
    folder = trained / "pretrained" / "cuda-sm_90" / "templates"
    assert {path.name for path in folder.iterdir()} == {
        registry.FILE_NAME,
        replay.FILE_NAME,
        model_card.FILE_NAME,
    }
    _, metadata = checkpoint.load(folder / registry.FILE_NAME, spec.NAMES, spec.VERSION)
    assert metadata.device == "cuda-sm_90" and metadata.data["workloads"] == len(SHAPES)
    assert metadata.data["kind"] == "template" and "gemm-wgmma" in metadata.data["templates"]
    card = (folder / model_card.FILE_NAME).read_text()
    for text in ("features per kernel", "near_best", "evaluate --kind template", "analytic"):
        assert text in card


def test_evaluating_again_gives_the_same_scores(
    trained: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = trained / "scores" / model_card.HELD_OUT
    arguments = ["evaluate", "--kind", "template", "--data", f"{trained}/data", "--test", "0.25"]
    out = trained / "again.json"
    assert cli.main([*arguments, "--model", str(model), "--baselines", "--out", str(out)]) == 0
    assert "near_best" in capsys.readouterr().out
    again = json.loads(out.read_text())["reports"]
    before = json.loads((trained / "scores" / model_card.SCORES).read_text())["reports"]
    assert again[0]["overall"] == before[0]["overall"] and len(again) == len(before)


def test_data_of_the_other_kind_are_refused_by_name(
    trained: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--data", f"{trained}/data", "--baselines"]
    assert cli.main(arguments) == 1
    assert "--kind" in capsys.readouterr().err


def test_an_ablation_says_what_the_prior_is_worth(
    trained: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["ablate", "--kind", "template", "--data", f"{trained}/data", "--epochs", "2"]
    assert cli.main([*arguments, "--hidden", "8", "--variants", "as given", "no prior"]) == 0
    table = capsys.readouterr().out
    assert "as given" in table and "no prior" in table


def test_a_prior_is_the_sum_over_kernels_until_it_is_trained() -> None:
    options = segment_mlp.ModelOptions(hidden=8, prior="analytic_us", prior_reduce="sum")
    network = segment_mlp.seeded(spec.NAMES, options, 0)
    network.zero_head()
    rows = torch.zeros(2, 3, len(spec.NAMES))
    rows[:, :2, spec.NAMES.index("analytic_us")] = torch.tensor([[4.0, 3.0], [6.0, 2.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    formula = analytic_time.AnalyticTime(spec.NAMES, "analytic_us")
    torch.testing.assert_close(network(rows, mask), formula(rows, mask), atol=1e-3, rtol=1e-3)
    described = network.describe()
    again = segment_mlp.SegmentSumMLP.from_description(spec.NAMES, described)
    assert again.options.prior_reduce == "sum"
    with pytest.raises(ValueError, match="max or sum"):
        segment_mlp.ModelOptions(prior_reduce="mean")
