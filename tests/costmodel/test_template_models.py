"""Models of templates' features: a formula until there is a checkpoint, trained and scored."""

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
from costmodel.online import finetune, gaussian_process
from costmodel.training import metrics, model_card
from felix import errors, target
from felix.features.kind import FeatureKind
from felix.search import cost_model
from felix.templates import spec
from tests.support.templates import made_up_data, naive_gemm

TARGET = "cuda -arch sm_90"


def _rows(n: int = 24) -> torch.Tensor:
    sketch = naive_gemm.sketch()
    return torch.from_numpy(sketch.formulas.exact(sketch.sample(n, seed=2)).astype(np.float32))


def _model() -> analytic_time.AnalyticTime:
    return analytic_time.AnalyticTime(spec.NAMES, "analytic_us")


def test_the_formula_is_the_sum_over_kernels() -> None:
    rows = _rows()
    mask = (rows != 0).any(dim=-1).float()
    time_us = torch.exp2(rows[..., spec.NAMES.index("analytic_us")].double()) - 1
    expected = torch.log(time_us.sum(dim=1))
    torch.testing.assert_close(_model()(rows, mask).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_formula_has_a_gradient_in_its_column_alone() -> None:
    rows = _rows().requires_grad_(True)
    (gradient,) = torch.autograd.grad(_model()(rows, torch.ones(rows.shape[:2])).sum(), rows)
    column = spec.NAMES.index("analytic_us")
    assert (gradient[:, 0, column] > 0).all()
    gradient[..., column] = 0
    assert not gradient.any()


def test_features_without_a_time_are_refused() -> None:
    with pytest.raises(errors.CheckpointError, match="analytic_us"):
        analytic_time.AnalyticTime(("a", "b"), "analytic_us")


def _load(root: pathlib.Path | None = None) -> tuple[registry.Predictor, registry.ModelInfo]:
    return registry.load_for(
        target.parse(TARGET), spec.NAMES, spec.VERSION, root=root, kind=FeatureKind.TEMPLATE
    )


def test_a_checkpoint_is_found_by_device_and_kind(tmp_path: pathlib.Path) -> None:
    module, info = _load(tmp_path)
    assert isinstance(module, analytic_time.AnalyticTime) and info.source == "analytic"
    folder = tmp_path / "cuda-sm_90"
    network = segment_mlp.seeded(spec.NAMES, segment_mlp.ModelOptions(hidden=8, blocks=1), 0)
    metadata = checkpoint.Metadata(spec.VERSION, spec.NAMES, "cuda-sm_90")
    folder.mkdir()
    checkpoint.save(folder / "model.safetensors", network, metadata)
    assert _load(tmp_path)[1].source == "analytic"  # that one is for traces
    (folder / "templates").mkdir()
    checkpoint.save(folder / "templates" / "model.safetensors", network, metadata)
    module, info = _load(tmp_path)
    assert isinstance(module, within_training.WithinTraining) and info.source == "checkpoint"
    assert isinstance(module.network, segment_mlp.SegmentSumMLP)
    assert "cuda-sm_90" in info.message
    of_traces = registry.pretrained(TARGET.split()[0], tmp_path)
    assert of_traces is None


def test_products_without_tensor_cores_have_the_formula() -> None:
    network = segment_mlp.seeded(spec.NAMES, segment_mlp.ModelOptions(hidden=8, blocks=1), 0)
    both = within_training.WithinTraining(network, _model(), spec.NAMES)
    rows, mask = torch.rand(3, 2, len(spec.NAMES)), torch.tensor([[1.0, 1.0], [1, 1], [1, 0]])
    multiplies, on_cores = (spec.NAMES.index(n) for n in ("problem_ops", "tensor_instructions"))
    rows[0, 1, [multiplies, on_cores]] = torch.zeros(2)  # a kernel that adds partial sums
    rows[1, 1, on_cores] = 0.0
    rows[2, 1, on_cores] = 0.0  # of a row that is not there
    rows.requires_grad_(True)
    predicted = both(rows, mask)
    assert predicted[1] == _model()(rows, mask)[1]
    torch.testing.assert_close(predicted[[0, 2]], network(rows, mask)[[0, 2]])
    (gradient,) = torch.autograd.grad(predicted.sum(), rows)
    assert gradient.isfinite().all() and gradient[0].count_nonzero() > gradient[1].count_nonzero()


def test_kinds_follow_the_target() -> None:
    assert cost_model.kinds(target.parse("llvm")) == (FeatureKind.TRACE,)
    assert cost_model.kinds(target.parse(TARGET)) == (FeatureKind.TRACE, FeatureKind.TEMPLATE)


def test_a_given_model_is_for_traces() -> None:
    callers = torch.nn.Linear(1, 1)
    loaded = cost_model.load(callers, target.parse(TARGET), 0, FeatureKind.TEMPLATE)
    assert loaded.module is not callers
    assert cost_model.load(callers, target.parse(TARGET), 0).module is callers


def test_a_formula_is_corrected_even_where_weights_are_trained() -> None:
    loaded = cost_model.Loaded(_model(), "")
    options = finetune.FineTuneOptions(steps=2)
    assert cost_model.online(loaded, options) is None
    online = cost_model.online(loaded, options, FeatureKind.TEMPLATE)
    assert isinstance(online, gaussian_process.Corrector)
    rows = _rows().numpy()
    mask = (rows != 0).any(axis=-1)
    with torch.no_grad():
        predicted = _model()(torch.from_numpy(rows), torch.from_numpy(mask)).numpy()
    measured = predicted + np.log(3.0)  # three times as slow as the formula says
    outcome = online.update(rows, mask, measured, np.zeros(len(rows), np.int64))
    assert outcome.accepted and outcome.records == len(rows)
    corrected = online.for_task(0)(torch.from_numpy(rows), torch.from_numpy(mask).float())
    np.testing.assert_allclose(corrected.detach().numpy(), measured, atol=0.1)


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


@pytest.mark.slow("trains a model for 60 epochs")
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


@pytest.mark.slow("trains a model and searches with it")
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
