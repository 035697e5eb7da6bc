"""Correction by a Gaussian process: what it learns, what it leaves alone, how it is stored."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from costmodel.online import gaussian_process
from felix import errors
from felix.search import interface

Floats = NDArray[np.float64]


class Sum(nn.Module):
    """Predicts the sum of all features."""

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """ln latency [B]."""
        return (rows * mask.unsqueeze(-1)).sum(dim=(1, 2))


def _programs(n: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32], Floats]:
    """Rows, mask, and a truth that the model misses by a shift and a smooth term."""
    draws = np.random.default_rng(seed)
    rows = draws.uniform(0, 3, (n, 2, 3)).astype(np.float32)
    mask = np.ones((n, 2), np.float32)
    predicted = rows.sum(axis=(1, 2))
    return rows, mask, predicted + 1.5 + 0.8 * np.sin(rows[:, :, 0].sum(axis=1))


def _error(model: nn.Module, seed: int) -> float:
    rows, mask, y = _programs(200, seed)
    with torch.no_grad():
        predicted = model(torch.from_numpy(rows), torch.from_numpy(mask)).numpy()
    return float(np.sqrt(np.mean((predicted - y) ** 2)))


def _corrected(
    n: int, options: gaussian_process.CorrectionOptions | None = None
) -> gaussian_process.Corrector:
    """A correction after n programs of task 0."""
    corrector = gaussian_process.Corrector(Sum(), *([] if options is None else [options]))
    corrector.update(*_programs(n, 1), np.zeros(n, np.int64))
    return corrector


def test_correction_learns_shift_and_shape() -> None:
    corrector = gaussian_process.Corrector(Sum())
    before = _error(corrector.for_task(0), 9)
    rows, mask, y = _programs(64, 1)
    outcome = corrector.update(rows, mask, y, np.zeros(64, np.int64))
    after = _error(corrector.for_task(0), 9)
    assert before > 1.4
    assert after < 0.3
    # the leave-one-out losses say about the same of unseen programs
    assert outcome.accepted
    assert outcome.after < 0.3 < 0.45 < outcome.before
    assert len(corrector) == outcome.records == 64


def test_failures_are_ignored_and_no_records_change_nothing() -> None:
    corrector = gaussian_process.Corrector(Sum())
    rows, mask, y = _programs(8, 1)
    outcome = corrector.update(rows, mask, np.full(8, math.nan), np.zeros(8, np.int64))
    assert not outcome.accepted
    assert len(corrector) == 0
    mixed = np.where(np.arange(8) % 2 == 0, y, math.nan)
    assert corrector.update(rows, mask, mixed, np.zeros(8, np.int64)).records == 4


def test_a_new_task_gets_the_shift_of_the_others_and_nothing_else() -> None:
    corrector = _corrected(64)
    rows, mask, _ = _programs(64, 1)
    with torch.no_grad():
        programs = torch.from_numpy(rows), torch.from_numpy(mask)
        shift = corrector.for_task(7)(*programs) - Sum()(*programs)
    assert torch.allclose(shift, shift[0].expand_as(shift), atol=1e-5)
    assert 0.9 < float(shift[0]) < 2.1


def test_tasks_do_not_mix() -> None:
    rows, mask, y = _programs(40, 1)
    alone, both = _corrected(40), gaussian_process.Corrector(Sum())
    both.update(
        np.tile(rows, (2, 1, 1)),
        np.tile(mask, (2, 1)),
        np.concatenate([y, 5.0 - y]),
        np.repeat([0, 1], 40),
    )
    assert _error(alone.for_task(0), 9) == _error(both.for_task(0), 9)


def test_gradient_agrees_with_differences() -> None:
    rows, mask, _ = _programs(32, 1)
    model = _corrected(32).for_task(0)
    x = torch.from_numpy(rows[:3]).double().requires_grad_(True)
    ones = torch.from_numpy(mask[:3]).double()
    # the third point is a measured one moved a little: the kernel has a peak at its points
    assert torch.autograd.gradcheck(lambda v: model(v + 0.05, ones), (x,), atol=1e-5)


def test_state_is_exact_and_checked() -> None:
    corrector, other = gaussian_process.Corrector(Sum()), gaussian_process.Corrector(Sum())
    rows, mask, y = _programs(40, 1)
    for part in (slice(0, 25), slice(25, 40)):
        n = len(y[part])
        corrector.update(rows[part], mask[part], y[part], np.zeros(n, np.int64))
    other.load_state_dict(corrector.state_dict())
    assert _error(other.for_task(0), 9) == _error(corrector.for_task(0), 9)
    broken = corrector.state_dict()
    del broken["records"]["0/y"]
    with pytest.raises(errors.CheckpointError):
        other.load_state_dict(broken)


@pytest.mark.parametrize(
    "options",
    [
        gaussian_process.CorrectionOptions(lengths=(0.05,)),
        gaussian_process.CorrectionOptions(amplitudes=(0.001,)),
        gaussian_process.CorrectionOptions(noises=(2.0,)),
        gaussian_process.CorrectionOptions(shift=1e-6),
        gaussian_process.CorrectionOptions(stretch=5.0),
        gaussian_process.CorrectionOptions(max_records=10),
    ],
    ids=["lengths", "amplitudes", "noises", "shift", "stretch", "max_records"],
)
def test_every_option_matters(options: gaussian_process.CorrectionOptions) -> None:
    usual, other = (_error(_corrected(48, each).for_task(0), 9) for each in (None, options))
    assert abs(usual - other) > 1e-4


def test_limited_records_keep_the_fastest_and_the_latest() -> None:
    y = torch.tensor([0.0, 9.0, 8.0, 1.0, 7.0, 6.0], dtype=torch.float64)
    records = gaussian_process._Records(torch.zeros(6, 2, dtype=torch.float64), torch.zeros(6), y)
    assert records.limited(4).y.tolist() == [0.0, 1.0, 7.0, 6.0]
    assert records.limited(6) is records


def _deviations(n: int, shown: Floats) -> Floats:
    """Posterior standard deviations [B]."""
    model = _corrected(n).for_task(0)
    assert isinstance(model, interface.ProbabilisticModel)
    every = torch.from_numpy(shown.astype(np.float32))
    root = model.deviations(every, torch.ones(every.shape[:2]), torch.eye(len(every)))
    deviations: Floats = np.linalg.norm(root.numpy(), axis=1)
    return deviations


def test_a_prediction_is_surer_near_measurements() -> None:
    measured, _, _ = _programs(48, 1)
    unseen, _, truth = _programs(400, 9)
    deviation, far = _deviations(48, unseen), _deviations(48, unseen + 40.0)
    assert 0 < _deviations(48, measured).mean() < deviation.mean() < far.min()
    with torch.no_grad():
        shown = torch.from_numpy(unseen)
        predicted = _corrected(48).for_task(0)(shown, torch.ones(shown.shape[:2]))
    off = np.abs(predicted.double().numpy() - truth)
    assert (off / deviation < 2).mean() > 0.9
    surest = deviation < np.median(deviation)
    assert off[surest].mean() < off[~surest].mean()


def _posterior(shown: NDArray[np.float32], n: int = 6) -> Floats:
    """Covariance of programs by conditioning a joint Gaussian of n records and them."""
    records, _, _ = _programs(n, 1)
    every = np.concatenate([records, shown]).astype(np.float64)
    z = np.concatenate([every.sum(axis=1), every.max(axis=1)], axis=1)
    scale = np.sqrt(z.shape[1]) * np.maximum(z[:n].std(axis=0), 0.5)
    points = z / scale
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    r = math.sqrt(3) * distances / np.median(distances[:n, :n][np.triu_indices(n, 1)])
    f = every.sum(axis=(1, 2))
    f -= f[:n].mean()
    joint = 4.0 + 0.05 * np.outer(f, f) + 0.2 * (1 + r) * np.exp(-r)
    across = joint[n:, :n]
    known = np.linalg.solve(joint[:n, :n] + 0.04 * np.eye(n), across.T)
    covariance: Floats = joint[n:, n:] - across @ known
    return covariance


def test_draws_have_the_covariance_of_the_posterior() -> None:
    """Of unit vectors as the random numbers, they are a root of it."""
    one = gaussian_process.CorrectionOptions(lengths=(1.0,), amplitudes=(0.2,), noises=(0.04,))
    shown, real, _ = _programs(5, 9)
    model = _corrected(6, one).for_task(0)
    assert isinstance(model, interface.ProbabilisticModel)
    root = model.deviations(torch.from_numpy(shown), torch.from_numpy(real), torch.eye(5)).numpy()
    np.testing.assert_allclose(root @ root.T, _posterior(shown), rtol=1e-3, atol=1e-5)


def test_programs_that_are_near_are_wrong_alike_before_anything_is_measured() -> None:
    model = gaussian_process.Corrector(Sum()).for_task(0)
    assert isinstance(model, interface.ProbabilisticModel)
    rows, mask, _ = _programs(40, 3)
    rows[1] = rows[0] + 0.01
    root = model.deviations(torch.from_numpy(rows), torch.from_numpy(mask), torch.eye(40)).numpy()
    covariance = root @ root.T
    amplitude = 0.2
    np.testing.assert_allclose(covariance.diagonal(), amplitude, rtol=1e-3)
    assert covariance[0, 1] > 0.99 * amplitude
    others = covariance[0, 2:]
    assert 0 < others.min() < others.max() < 0.9 * amplitude
