"""The network, the analytic prior and their checkpoints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from costmodel import registry
from costmodel.models import analytic, checkpoint, feature_columns, segment_mlp
from felix import errors, tensorfile

NAMES = (
    "trip_count",
    "float_ops",
    "buf0.bytes",
    "buf0.unique_bytes",
    "buf1.bytes",
    "buf1.unique_bytes",
    "grid_blocks",
    "roofline_us",
    *registry.ANALYTIC_TIMES,
)
META = checkpoint.Metadata(features_version=3, feature_names=NAMES, device="llvm")


def batch(n: int = 6, n_rows: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    rows = torch.rand(n, n_rows, len(NAMES), generator=draws) * 20
    mask = torch.ones(n, n_rows, dtype=torch.bool)
    mask[n // 2 :, -1] = False
    return rows, mask


def fitted(options: segment_mlp.ModelOptions | None = None) -> segment_mlp.SegmentSumMLP:
    module = segment_mlp.seeded(NAMES, options or segment_mlp.ModelOptions(hidden=16), seed=1)
    module.normaliser.fit(*batch(64, seed=5))
    return module.eval()


def test_masked_rows_and_padding_change_nothing() -> None:
    module = fitted(segment_mlp.ModelOptions(hidden=16, prior="roofline_us"))
    rows, mask = batch()
    expected = module(rows, mask)
    garbage = torch.where(mask[..., None], rows, torch.full_like(rows, 33.0))
    padded = torch.nn.functional.pad(garbage, (0, 0, 0, 3), value=7.0)
    wider = torch.nn.functional.pad(mask, (0, 3))
    torch.testing.assert_close(module(padded, wider), expected)
    torch.testing.assert_close(module(rows, mask.double()), expected)


def test_order_of_rows_does_not_matter() -> None:
    module = fitted()
    rows, mask = batch()
    torch.testing.assert_close(module(rows.flip(1), mask.flip(1)), module(rows, mask))


def test_gradient_is_finite_at_zero_features() -> None:
    module = fitted(segment_mlp.ModelOptions(hidden=16, prior="roofline_us"))
    rows = torch.zeros(2, 3, len(NAMES), requires_grad=True)
    module(rows, torch.ones(2, 3)).sum().backward()
    assert rows.grad is not None and torch.isfinite(rows.grad).all()


def test_normaliser_standardises_real_rows_and_mutes_constants() -> None:
    rows, mask = batch(200, seed=3)
    rows[..., 6] = 11.0
    rows[~mask] = 1e6
    module = segment_mlp.seeded(NAMES, segment_mlp.ModelOptions(hidden=8, squash=None))
    module.normaliser.fit(rows, mask)
    z = module.normaliser(rows)[mask]
    torch.testing.assert_close(z.mean(0)[:6], torch.zeros(6), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0)[:6], torch.ones(6), atol=1e-3, rtol=0)
    assert (z[:, 6] == 0).all()
    moved = rows.clone()
    moved[..., 6] = 50.0
    torch.testing.assert_close(module(moved, mask), module(rows, mask))


def test_squash_bounds_predictions_far_from_training_data() -> None:
    rows, mask = batch()
    bounded, free = fitted(), fitted(segment_mlp.ModelOptions(hidden=16, squash=None))
    near = bounded(rows, mask).abs().max()
    assert bounded(rows * 1e4, mask).abs().max() < 20 * near
    assert free(rows * 1e4, mask).abs().max() > 100 * near


def test_prior_is_the_prediction_while_the_head_is_zero() -> None:
    module = fitted(segment_mlp.ModelOptions(hidden=16, prior="roofline_us"))
    module.zero_head()
    rows, mask = batch()
    rows[..., 7] = math.log2(1 + 250.0)
    torch.testing.assert_close(module(rows, mask), torch.full((6,), math.log(250.0)))


def test_unknown_prior_is_a_checkpoint_error() -> None:
    with pytest.raises(errors.CheckpointError, match="'nope'"):
        segment_mlp.SegmentSumMLP(NAMES, segment_mlp.ModelOptions(prior="nope"))


def test_initial_weights_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    first, again, other = (segment_mlp.seeded(NAMES, seed=s) for s in (4, 4, 5))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.head.weight, again.head.weight)
    assert not torch.equal(first.head.weight, other.head.weight)


def test_ln_value_undoes_the_transform_over_the_whole_range() -> None:
    values = torch.tensor([0.05, 1.0, 3.0, 1e3, 1e9, 1e15], dtype=torch.float64)
    torch.testing.assert_close(feature_columns.ln_value(torch.log2(1 + values)), values.log())


def test_over_rows_sums_and_takes_maxima_of_real_rows() -> None:
    ln = torch.tensor([[10.0, 20.0, 1e9]]).log()
    mask = torch.tensor([[1, 1, 0]])
    assert feature_columns.over_rows(ln, mask, "sum").exp().item() == pytest.approx(30.0, abs=0.1)
    assert feature_columns.over_rows(ln, mask, "max").exp().item() == pytest.approx(20.0)
    assert torch.isfinite(feature_columns.over_rows(ln, torch.zeros(1, 3), "sum")).all()


def options() -> analytic.AnalyticOptions:
    return analytic.AnalyticOptions(
        terms=(
            analytic.Term("compute", ("float_ops",), 1e3),
            analytic.Term("memory", ("buf0.unique_bytes", "buf1.unique_bytes"), 1e2),
        ),
        overhead_us=2.0,
        power=4.0,
    )


def test_analytic_model_follows_its_formula() -> None:
    rows = torch.zeros(1, 2, len(NAMES))
    quantities = {
        "float_ops": (4e5, 1e5),
        "buf0.unique_bytes": (1e4, 0),
        "buf1.unique_bytes": (0, 3e4),
    }
    for name, values in quantities.items():
        rows[0, :, NAMES.index(name)] = torch.log2(1 + torch.tensor(values))
    latency_us = analytic.AnalyticModel(NAMES, options())(rows, torch.ones(1, 2)).exp().item()
    compute, memory = 5e5 / 1e3, 4e4 / 1e2
    assert latency_us == pytest.approx((compute**4 + memory**4) ** 0.25 + 2.0, rel=1e-4)


@pytest.mark.parametrize(
    "module",
    [
        fitted(),
        fitted(segment_mlp.ModelOptions(hidden=16, prior="roofline_us")),
        analytic.AnalyticModel(NAMES, options()),
    ],
    ids=["network", "prior", "analytic"],
)
def test_gradient_in_rows_agrees_with_finite_differences(module: torch.nn.Module) -> None:
    rows, mask = batch(3)
    rows = rows.double().requires_grad_()
    module = module.double()
    assert torch.autograd.gradcheck(lambda x: module(x, mask), (rows,), eps=1e-6, atol=1e-5)


def test_analytic_scales_can_be_calibrated() -> None:
    module = analytic.AnalyticModel(NAMES, options())
    rows, mask = batch(64)
    target = (module(rows, mask) * 0.9 + 1.5).detach()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(300):
        loss = (module(rows, mask) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 1e-3


def test_missing_analytic_feature_is_named() -> None:
    with pytest.raises(errors.CheckpointError, match="'float_ops'"):
        analytic.AnalyticModel(("trip_count",), options())


@pytest.mark.parametrize("bad", [{"per_us": 0.0}, {"reduce": "mean"}, {"features": ()}])
def test_malformed_terms_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(errors.CheckpointError, match="malformed"):
        dataclasses.replace(options().terms[0], **bad)


def test_correction_starts_at_the_formula() -> None:
    rows, mask = batch()
    both = analytic.corrected(NAMES, options(), seed=2)
    alone = analytic.AnalyticModel(NAMES, options())
    torch.testing.assert_close(both(rows, mask), alone(rows, mask))


@pytest.mark.parametrize(
    "module",
    [
        fitted(segment_mlp.ModelOptions(hidden=8, blocks=1, squash=None, prior="roofline_us")),
        analytic.AnalyticModel(NAMES, options()),
        analytic.corrected(NAMES, options()),
    ],
    ids=lambda m: m.kind,
)
def test_checkpoint_round_trip(module: checkpoint.Predictor, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.safetensors"
    metadata = dataclasses.replace(META, scores={"rmse": 0.2}, data={"digest": "ab"}, date="d")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.125)
    checkpoint.save(path, module, metadata)
    loaded, read = checkpoint.load(path, NAMES, 3)
    rows, mask = batch()
    assert read == metadata
    assert torch.equal(loaded(rows, mask), module.eval()(rows, mask))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("names", "version", "message"),
    [
        (NAMES, 4, "features version 3, this is version 4"),
        (NAMES[:-1], 3, "15 features, these are 14"),
        (("trips", *NAMES[1:]), 3, "feature 0 named 'trip_count', here it is 'trips'"),
    ],
)
def test_checkpoint_of_other_features_is_refused_in_one_line(
    names: tuple[str, ...], version: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    checkpoint.save(path, fitted(), META)
    with pytest.raises(errors.CheckpointError, match=message) as caught:
        checkpoint.load(path, names, version)
    assert "\n" not in str(caught.value)


def rewrite(path: Path, tensors: dict[str, torch.Tensor] | None, texts: dict[str, str]) -> None:
    tensorfile.write(path, tensorfile.read(path)[0] if tensors is None else tensors, texts)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "text": lambda path: path.write_text("hello"),
    "empty": lambda path: path.write_bytes(b""),
    "huge header": lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
    "pickle": lambda path: torch.save({"a": torch.zeros(3)}, path),
    "no metadata": lambda path: rewrite(path, None, {}),
    "other weights": lambda path: rewrite(path, {"w": torch.zeros(2)}, tensorfile.read(path)[1]),
    "not an object": lambda path: rewrite(path, None, {"felix": "[1]"}),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_checkpoints_give_one_line(how: str, tmp_path: Path) -> None:
    path = tmp_path / "m"
    checkpoint.save(path, fitted(), META)
    DAMAGES[how](path)
    with pytest.raises(errors.CheckpointError) as caught:
        checkpoint.load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_unwritable_folder_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.OutputError):
        checkpoint.save(tmp_path / "file" / "m", fitted(), META)


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("llvm", "llvm"),
        ('{"kind": "cuda", "arch": "sm_80"}', "cuda-sm_80"),
        ('{"kind": "llvm", "arch": "x"}', "llvm"),
    ],
)
def test_device_key(target: str, key: str) -> None:
    assert registry.device_key(target) == key


def test_load_for_prefers_the_shipped_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "llvm" / registry.FILE_NAME
    checkpoint.save(path, fitted(), META)
    module, info = registry.load_for("llvm", NAMES, 3, root=tmp_path)
    assert info.source == "checkpoint" and info.path == path and info.metadata == META
    assert isinstance(module, segment_mlp.SegmentSumMLP)
    assert registry.pretrained('{"kind":"cuda","arch":"sm_80"}', tmp_path) is None


def test_load_for_falls_back_to_the_analytic_prior_and_says_why(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "llvm" / registry.FILE_NAME, fitted(), META)
    module, info = registry.load_for("llvm", NAMES, 4, root=tmp_path)
    assert info.source == "analytic" and "features version 3" in info.message
    rows, mask = batch()
    assert torch.isfinite(module(rows, mask)).all()
    _, info = registry.load_for("llvm", NAMES, 4, root=tmp_path / "none")
    assert "no pretrained model for llvm" in info.message


def test_load_for_refuses_a_named_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "m", fitted(), META)
    with pytest.raises(errors.CheckpointError, match="features version 3"):
        registry.load_for("llvm", NAMES, 4, path=tmp_path / "m")


def test_analytic_prior_follows_the_slowest_resource() -> None:
    module, _ = registry.load_for("llvm", NAMES, 1, root=Path("/nonexistent"))
    rows = torch.zeros(3, 2, len(NAMES))
    for name, times_us in {
        "analytic.compute_us": (100.0, 100.0, 100.0),
        "analytic.dram_us": (10.0, 20.0, 1000.0),
        "analytic.launch_us": (5.0, 5.0, 5.0),
    }.items():
        rows[..., NAMES.index(name)] = torch.log2(1 + torch.tensor(times_us))[:, None]
    near, same, slow = module(rows, torch.ones(3, 2)).exp().tolist()
    assert near == pytest.approx(100, rel=0.02) and same == pytest.approx(100, rel=0.02)
    assert slow == pytest.approx(1000, rel=0.02)


def test_missing_analytic_times_are_named() -> None:
    with pytest.raises(errors.CheckpointError, match=r"analytic\.l1_us"):
        registry.analytic_options(("trip_count", "analytic.compute_us"))


def test_rows_as_numpy_floats_are_accepted() -> None:
    rows, mask = batch()
    doubled = torch.from_numpy(rows.numpy().astype(np.float64))
    torch.testing.assert_close(fitted()(doubled, mask), fitted()(rows, mask))
