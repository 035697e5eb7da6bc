"""`compare` and `ablate`, who is trained and scored on what; scores after a few measurements."""

from __future__ import annotations

import dataclasses
import datetime
import fnmatch
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costmodel import __main__ as cli
from costmodel.data import dataset, features, tvm_features
from costmodel.data import features as task_features
from costmodel.online import corrected
from costmodel.training import ablate, evaluate, train, xgboost
from felix import errors
from felix.features import spec
from felix.features.kind import FeatureKind
from felix.templates import spec as template_spec
from tests.costmodel.conftest import Measured
from tests.support.costmodel_fakes import FakeFeaturizer


class FewerColumns(FakeFeaturizer):
    """Stands for TVM's features: other columns of the same schedules."""

    digest = "fewer-columns"

    def names(self) -> tuple[str, ...]:
        return tuple(f"per_store_{column}" for column in range(2))

    def rows(self, *arguments: Any) -> task_features.Rows:
        all_columns = super().rows(*arguments)
        return task_features.Rows(all_columns.values[..., [0, 3]], all_columns.mask)


def check_origin(written: dict[str, Any], data: Path) -> None:
    """Results say when, where, by what and on which data they were made."""
    assert written["command"].startswith("python -m costmodel") and "commit" in written
    assert datetime.datetime.fromisoformat(written["date"]).tzinfo is not None
    assert "torch" in written["versions"] and "apache-tvm" in written["versions"]
    assert set(written["machine"]) == {"cpu", "cores"} and written["machine"]["cores"] >= 1
    assert written["data"] == dataset.read(data).digest and written["device"] == "testcpu"


@pytest.mark.slow("trains models")
def test_dropped_features_tell_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tvm_features, "TvmFeaturizer", FewerColumns)
    monkeypatch.setattr(xgboost, "have_xgboost", lambda: False)
    pairwise = []
    for drop in ([], ["--drop", "float_ops", "buf0.*"]):
        out = tmp_path / "folds.json"
        arguments = ["compare", "--data", str(data), "--folds", "2", "--epochs", "20"]
        assert cli.main([*arguments, "--hidden", "16", *drop, "--out", str(out)]) == 0
        network, prior, _ = json.loads(out.read_text())["reports"]
        assert network["label"] == "Felix's features, network" and prior["label"] == "analytic"
        pairwise.append(network["overall"]["pairwise"])
    assert pairwise[0] > 0.7 and abs(pairwise[1] - 0.5) < 0.05
    assert cli.main([*arguments, "--drop", "no_such_*"]) == 1
    assert "no feature is called no_such_*" in capsys.readouterr().err


def test_compare_trains_and_scores_all_predictors_side_by_side(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tvm_features, "TvmFeaturizer", FewerColumns)
    out = tmp_path / "compare.json"
    arguments = ["compare", "--data", str(data), "--epochs", "20", "--hidden", "16"]
    assert cli.main([*arguments, "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    check_origin(written, data)
    overall = {r["label"]: r["overall"] for r in written["reports"]}
    networks = {"Felix's features, network", "TVM's features, network"}
    assert networks | {"analytic"} <= set(overall)
    better, worse = (
        overall[f"{name}'s features, network"]["pairwise"] for name in ("Felix", "TVM")
    )
    assert better > worse + 0.05  # the second cannot see most of what decides


@pytest.mark.slow("trains models twice")
def test_processes_train_what_one_trains(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tvm_features, "TvmFeaturizer", FewerColumns)
    monkeypatch.setattr(xgboost, "have_xgboost", lambda: False)
    arguments = ["compare", "--data", str(data), "--folds", "2", "--epochs", "1", "--hidden", "8"]
    written = []
    for jobs in ([], ["--jobs", "2", "--cache", str(tmp_path / "cache")]):
        assert cli.main([*arguments, *jobs, "--out", str(tmp_path / "folds.json")]) == 0
        written.append(json.loads((tmp_path / "folds.json").read_text()))
    assert written[0]["reports"] == written[1]["reports"]
    assert written[0]["command"] == written[1]["command"]


def test_compare_with_folds_scores_every_workload_by_what_never_saw_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted_to: list[set[str]] = []  # workloads of each predictor's training and validation
    predicted: list[tuple[int, str]] = []  # which predictor predicted which workload
    models: list[Any] = []

    def watched(predictor: evaluate.Predictor, *parts: Any) -> evaluate.Predictor:
        number = len(fitted_to)
        fitted_to.append({task.workload.key for part in parts for task in part})

        def predict(task: task_features.TaskData) -> Any:
            predicted.append((number, task.workload.key))
            return predictor(task)

        return predict

    def trained(features: Any, *arguments: Any) -> train.Trained:
        network = train_network(features, *arguments)
        models.append((network.model, arguments[:2]))
        return network

    def of_module(model: Any) -> evaluate.Predictor:
        parts = next((parts for trained, parts in models if trained is model), None)
        return as_predictor(model) if parts is None else watched(as_predictor(model), *parts)

    train_network, as_predictor, fit = train.train, evaluate.of_module, xgboost.fit_xgboost
    monkeypatch.setattr(train, "train", trained)
    monkeypatch.setattr(evaluate, "of_module", of_module)
    monkeypatch.setattr(xgboost, "fit_xgboost", lambda *args: watched(fit(*args), *args[:2]))
    monkeypatch.setattr(tvm_features, "TvmFeaturizer", FewerColumns)
    out = tmp_path / "folds.json"
    arguments = ["compare", "--data", str(data), "--epochs", "2", "--hidden", "16"]
    assert cli.main([*arguments, "--folds", "3", "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert written["part"] == "3 folds"
    assert all(len(report["tasks"]) == 24 for report in written["reports"])
    n_kinds = 4 if xgboost.have_xgboost() else 2
    assert len(fitted_to) == 3 * n_kinds and len(predicted) == 24 * n_kinds
    assert all(count == n_kinds for count in Counter(key for _, key in predicted).values())
    assert all(key not in fitted_to[number] for number, key in predicted)
    assert {number for number, _ in predicted} == set(range(3 * n_kinds))


def test_ablation_scores_what_is_left_out(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ablation.json"
    arguments = ["ablate", "--data", str(data), "--epochs", "4", "--hidden", "16", "--seeds", "2"]
    names = ["as given", "no traffic by level", "ranking weight 0"]
    assert cli.main([*arguments, "--variants", *names, "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    check_origin(written, data)
    rows = {row["variant"]["name"]: row for row in written["rows"]}
    assert list(rows) == names and all(len(row["seeds"]) == 2 for row in rows.values())
    unchanged = rows["as given"]
    assert unchanged["seeds"][0] != unchanged["seeds"][1]
    assert (
        rows["no traffic by level"]["mean"] == unchanged["mean"]
    )  # there are no such features here
    assert rows["ranking weight 0"]["mean"] != unchanged["mean"]
    assert cli.main([*arguments, "--variants", "no thing"]) == 1
    assert "no variant 'no thing'" in capsys.readouterr().err


def test_ablation_knows_the_features() -> None:
    names = {FeatureKind.TRACE: spec.NAMES, FeatureKind.TEMPLATE: template_spec.NAMES}
    for kind, variants in ablate.VARIANTS.items():
        assert len({variant.name for variant in variants}) == len(variants) >= 8
        for variant in variants:
            for pattern in variant.drop:
                assert fnmatch.filter(names[kind], pattern), pattern


def test_compare_refuses_features_of_other_schedules(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lossy(FewerColumns):
        def rows(self, *arguments: Any) -> task_features.Rows:
            rows = super().rows(*arguments)
            is_usable = np.arange(len(rows.mask)) > 0
            return task_features.Rows(rows.values, rows.mask & is_usable[:, None])

    monkeypatch.setattr(tvm_features, "TvmFeaturizer", Lossy)
    assert cli.main(["compare", "--data", str(data)]) == 1
    assert "different schedules" in capsys.readouterr().err


def test_features_of_tvm_on_measured_schedules(measured: Measured) -> None:
    stored = measured("llvm")
    owner = next(w for w in stored.workloads.values() if w.operator == "softmax")
    records = [r for r in stored.records if r.workload == owner.key][:3]
    sketch = records[0].sketch, records[0].sketch_key
    batch = np.array([r.decisions for r in records if r.sketch_key == sketch[1]])
    machine = task_features.Machine(records[0].target, records[0].device)
    rows = tvm_features.TvmFeaturizer().rows(machine, owner, sketch, batch)
    assert rows is not None and rows.values.shape[2] == tvm_features.N_FEATURES
    assert rows.mask.any(axis=1).all() and np.isfinite(rows.values).all()
    assert np.abs(rows.values[rows.mask]).sum(axis=1).min() > 0


class Wrong(torch.nn.Module):
    """Ranks by the first feature, whatever the others do."""

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return rows[:, 0, 0]


def task(n: int, n_failed: int = 0) -> features.TaskData:
    """Latency follows the second feature, which the model does not read."""
    rng = np.random.default_rng(n)
    rows = rng.uniform(0.0, 3.0, (n + n_failed, 1, 2)).astype(np.float32)
    ln_latency = rows[:, 0, 1].astype(np.float64)
    ln_latency[n:] = np.nan
    workload = dataset.Workload("key", "w", "gemm", None, None, 1, 1)
    return features.TaskData(
        workload,
        "cuda",
        "gpu",
        rows,
        np.ones((n + n_failed, 1), bool),
        ln_latency,
        (None,) * n + ("build",) * n_failed,
        ("random",) * (n + n_failed),
    )


def test_measurements_correct_the_ranking_of_the_others() -> None:
    before, after = corrected.reports(Wrong(), [task(60, n_failed=3), task(80)], 16)
    assert [each.count for each in after.tasks] == [44, 64]
    assert [each.count for each in before.tasks] == [44, 64]
    assert after.overall.pairwise > before.overall.pairwise + 0.15
    assert after.overall.top5 > before.overall.top5


def test_tasks_with_few_schedules_are_left_out() -> None:
    before, _ = corrected.reports(Wrong(), [task(12), task(13)], 8)
    assert [each.count for each in before.tasks] == [5]
    with pytest.raises(errors.RecordError, match="no task to score"):
        corrected.reports(Wrong(), [task(12)], 8)


def test_half_of_the_measured_are_the_best_predicted() -> None:
    predicted = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 6.0, 7.0])
    for seed in range(5):
        chosen = corrected._warm_up(predicted, 4, np.random.default_rng(seed))
        assert chosen[:2].tolist() == [1, 3] and len(set(chosen.tolist())) == 4


class Smooth(torch.nn.Module):
    """Reads the second feature, which is what the latency follows."""

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return rows[:, 0, 1]


@pytest.mark.parametrize(("noise_of", "noise"), [(0.0, 0.0012), (0.2, 0.04)])
def test_the_process_of_a_model_s_errors_is_found(noise_of: float, noise: float) -> None:
    """A smooth error of known size, and noise of a known one."""
    rng = np.random.default_rng(0)
    every = task(corrected.N_OF_PROCESS + 60)
    smooth = 0.6 * np.sin(1.5 * every.rows[:, 0, 0])
    latencies = every.ln_latency + smooth + noise_of * rng.standard_normal(len(smooth))
    wrong = dataclasses.replace(every, ln_latency=latencies)
    process = corrected.process_of_errors(Smooth(), [wrong, task(corrected.N_OF_PROCESS - 1)])
    assert process is not None and process.tasks == 1 and process.noise == noise
    assert f"noise {noise:g} (1 tasks)" in str(process)
    assert 0.05 <= process.amplitude <= 0.8 and process.length >= 0.5
    assert corrected.process_of_errors(Smooth(), [task(5)]) is None
