"""The models of templates' features: a formula until there is a checkpoint; corrected alike."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch

from costmodel import registry
from costmodel.models import analytic_time, checkpoint, segment_mlp, within_training
from costmodel.online import finetune, gaussian_process
from felix import errors, target
from felix.features.kind import FeatureKind
from felix.search import cost_model
from felix.templates import spec
from tests.support.templates import naive_gemm

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
