"""Smooth formulas of real sketches: their limits and gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from felix import task, workloads
from felix.features import spec
from felix.space import sketch as sketching
from tests.support import legal_rows, share

torch.set_num_threads(1)

TASKS: dict[str, Callable[..., task.Task]] = {
    "gemm": partial(workloads.gemm, 128, 96, 64, epilogue=("bias", "relu")),
    "conv2d": partial(workloads.conv2d, 1, 14, 14, 16, 32, 3, stride=2, padding=1),
    "softmax": partial(workloads.softmax, (48, 197)),
    "max_pool2d": partial(workloads.pool2d, 1, 15, 15, 16, 3, stride=2, padding=1),
    "sum": partial(workloads.reduce, (64, 96), (1,)),
}
TARGETS = ["llvm", "cuda"]
TEMPERATURES = (1e-5, 1e-7, 1e-9)


@functools.cache
def sketches(name: str, target: str) -> list[sketching.Sketch]:
    """Those with decisions: formulas without variables are constants."""
    return [s for s in sketching.trace_sketches(TASKS[name](target=target)) if s.variables]


@pytest.mark.parametrize(("name", "target"), share.crossed(TASKS, TARGETS))
def test_smooth_tends_to_exact_at_legal_points(name: str, target: str) -> None:
    for sketch in sketches(name, target):
        formulas = sketch.formulas
        rows = legal_rows.draw(sketch, 6, seed=3)
        x = formulas.space.encode(rows)
        exact = formulas.exact(rows)
        errors = [np.abs(formulas.smooth(x, t).numpy() - exact) for t in TEMPERATURES]
        worst = [e.max() for e in errors]
        at = np.unravel_index(errors[-1].argmax(), exact.shape)
        where = f"{spec.NAMES[at[2]]} of {formulas.rows[at[1]]} at {rows[at[0]].tolist()}"
        assert worst[2] < 5e-3, where
        assert worst[2] <= max(worst[1], 1e-6) and worst[2] <= max(worst[0], 1e-6), where
        limits = formulas.constraints_exact(rows)
        smooth = formulas.constraints(x, temperature=1e-9).numpy()
        np.testing.assert_allclose(smooth, limits, atol=1e-5)
        assert (limits <= 0).all()


def jacobian(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> np.ndarray:
    """d outputs / d x [n_outputs, n_free] at one point, by one reverse pass of a batch that
    holds the point once for every output."""
    n = f(x[None]).numel()
    points = x.repeat(n, 1).requires_grad_()
    torch.diagonal(f(points).reshape(n, n)).sum().backward()
    assert points.grad is not None
    return points.grad.numpy()


def differences(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> np.ndarray:
    """The same by central differences; cold formulas of a GPU bend within 1e-6."""
    h = 1e-8
    steps = h * torch.eye(len(x), dtype=x.dtype)
    high, low = f(x + steps).reshape(len(x), -1), f(x - steps).reshape(len(x), -1)
    return ((high - low) / (2 * h)).T.numpy()


def between(sketch: sketching.Sketch, seed: int) -> torch.Tensor:
    """A point inside the bounds that is not a legal one."""
    space = sketch.formulas.space
    x = space.encode(legal_rows.draw(sketch, 1, seed)[:1])
    generator = torch.Generator().manual_seed(seed)
    noise = 0.3 * torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return space.project(x + torch.where(space.trainable, noise, 0.0))[0]


@pytest.mark.parametrize(
    ("name", "target", "temperature"),
    share.crossed(["gemm", "conv2d", "softmax"], TARGETS, [1.0, 0.3, 0.1]),
)
def test_gradients_agree_with_differences(name: str, target: str, temperature: float) -> None:
    sketch = sketches(name, target)[0]
    formulas = sketch.formulas
    x = between(sketch, seed=5)
    kinds = [formulas.smooth, *([formulas.constraints] if sketch.is_gpu else [])]
    for kind in kinds:
        f = partial(kind, temperature=temperature)
        with torch.no_grad():
            expected = differences(f, x)
        gradients = jacobian(f, x)
        assert np.isfinite(gradients).all()
        assert (np.abs(gradients) > 1e-3).sum() >= (20 if kind == formulas.smooth else 1)
        gap = np.abs(gradients - expected)
        allowed = 1e-3 * (np.abs(gradients) + np.abs(expected)) + 1e-4
        output, free = np.unravel_index((gap / allowed).argmax(), gap.shape)
        feature = spec.NAMES[output % len(spec.NAMES)]
        assert gap[output, free] <= allowed[output, free], (
            f"{feature} by coordinate {free}: {gradients[output, free]}, {expected[output, free]}"
        )


def test_structural_decisions_have_no_gradient() -> None:
    sketch = sketches("conv2d", "llvm")[0]
    space = sketch.formulas.space
    gradients = jacobian(partial(sketch.formulas.smooth, temperature=0.3), between(sketch, seed=6))
    structural = np.logical_not(space.trainable.numpy())
    assert structural.any()
    assert (gradients[:, structural] == 0).all()
