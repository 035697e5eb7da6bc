"""Agreement with TVM's own feature extractor, in the columns that are well defined.

PerStoreFeature has a row per destination buffer: the last store to it, in the place of the first
that does not store a constant. It counts if_then_else as a math function, and it sorts the
buffers of a store, so bytes are compared as a multiset.

What is counted by enumeration, compared with sets of tuples.

Features of a block that covers more than is read, because its readers' threads overhang."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from tvm import te, topi

from felix import task, workloads
from felix.features import iterators, spec
from felix.sketch import sketch as sketching
from felix.symbolic import index_expr, ir
from felix.symbolic.expr import FloorDiv, FloorMod
from felix.task import Task
from felix.tir import design_space
from tests.support import legal_rows
from tests.support.oracle import features

TASKS: dict[str, Callable[..., task.Task]] = {
    "gemm_512": partial(workloads.gemm, 512, 512, 512),
    "gemm_bias_gelu": partial(workloads.gemm, 128, 768, 197, epilogue=("bias", "gelu")),
    "conv2d_56": partial(workloads.conv2d, 1, 56, 56, 64, 64, 3, padding=1),
    "depthwise_28": partial(workloads.depthwise_conv2d, 1, 28, 28, 96, 3, padding=1),
    "softmax_1000": partial(workloads.softmax, (64, 1000)),
    "layer_norm_768": partial(workloads.layer_norm, (197, 768)),
    "add_relu": partial(workloads.elementwise, (512, 1000)),
}
#: Feature -> column of TVM's vector, both log2(1 + value).
COLUMNS = {
    "float_add": 1,
    "float_mul": 2,
    "float_div": 3,
    "float_cmp": 4,
    "trip_count": 161,
    "alloc_bytes": 157,
}
MATH = 5
LAUNCH = {"grid_blocks": 50, "block_threads": 53, "vthreads": 56}
BYTES = [60 + 18 * slot for slot in range(spec.SLOTS)]
COLUMN = {name: i for i, name in enumerate(spec.NAMES)}


def extracted(sketch: sketching.Sketch, schedule: Any) -> np.ndarray:
    """TVM's rows, back from log2(1 + value)."""
    from tvm.s_tir import meta_schedule as ms

    context = design_space.tune_context(sketch.task.mod, sketch.task.target)
    extractor = ms.feature_extractor.PerStoreFeature()
    (rows,) = extractor.extract_from(context, [ms.MeasureCandidate(schedule, [])])
    return np.exp2(rows.numpy()) - 1


def described(sketch: sketching.Sketch, raw: np.ndarray) -> dict[str, np.ndarray]:
    """Felix's row of the last store to each buffer, by the first that is not an init."""
    last_stores: dict[str, np.ndarray] = {}
    for row, values in zip(sketch.formulas.rows, raw, strict=True):
        if values[COLUMN["trip_count"]] > 0 and not values[COLUMN["is_init"]]:
            last_stores[row.buffer] = values
    return last_stores


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize("name", TASKS)
def test_well_defined_columns_agree(name: str, kind: str) -> None:
    compared = 0
    for sketch in sketching.trace_sketches(TASKS[name](target=kind)):
        rows = sketch.sample(3, seed=1)
        for row, raw in zip(rows, sketch.formulas.raw(rows), strict=True):
            if raw[:, COLUMN["thread_reduce"]].max() > 1:
                continue  # lowering adds buffers of its own to a cross-thread reduction
            theirs = extracted(sketch, sketch.schedule(row))
            ours = described(sketch, raw)
            assert len(theirs) == len(ours)
            for a, (buffer, b) in zip(theirs, ours.items(), strict=True):
                compare(a, b, kind == "cuda", f"{name} {row.tolist()} {buffer}")
                compared += 1
    assert compared >= 3


def compare(theirs: np.ndarray, ours: np.ndarray, is_gpu: bool, where: str) -> None:
    columns = COLUMNS | (LAUNCH if is_gpu else {})
    for feature, column in columns.items():
        np.testing.assert_allclose(
            ours[COLUMN[feature]], theirs[column], rtol=1e-9, err_msg=f"{feature} {where}"
        )
    calls = ours[COLUMN["float_math"]]
    if ours[COLUMN["select_ops"]] == 0:
        np.testing.assert_allclose(calls, theirs[MATH], rtol=1e-9, err_msg=f"math {where}")
    mine = sorted(ours[COLUMN[f"buf{slot}.bytes"]] for slot in range(spec.SLOTS))
    np.testing.assert_allclose(mine, sorted(theirs[BYTES]), rtol=1e-9, err_msg=f"bytes {where}")


X, Y = index_expr.iter_symbol("i"), index_expr.iter_symbol("j")
VISITED = {X: iterators.Visited(0, 7, 7), Y: iterators.Visited(2, 9, 9)}


def below(left: sympy.Expr, right: int) -> ir.Value:
    sides = (
        ir.Value("iter", False, expr=left),
        ir.Value("iter", False, expr=sympy.Integer(right)),
    )
    return ir.Value("lt", False, sides)


ACCESSES: dict[str, list[iterators.Touching]] = {
    "rows": [((X, Y), ())],
    "neighbours": [((X, Y), ()), ((X, Y + 1), ()), ((X - 1, Y), ())],
    "diagonal": [((X + Y,), ()), ((X - Y,), ())],
    "quotients": [((FloorDiv(X, 2), FloorMod(Y, 4)), ())],
    "guarded": [((X, Y), (below(X + Y, 9),)), ((Y, X), (below(X, 3), below(Y, 5)))],
    "nowhere": [((X, Y), (below(X, 0),))],
    "constant": [((sympy.Integer(3), Y), ()), ((sympy.Integer(3), sympy.Integer(4)), ())],
    "far apart": [((X * (1 << 40), Y), ()), ((X, Y * (1 << 40)), ())],
    "sparse": [((X * (1 << 20), Y * (1 << 12)), ())],
}


@pytest.mark.parametrize("name", ACCESSES)
def test_touched_elements_are_those_of_sets(name: str) -> None:
    touched = set()
    for i, j in itertools.product(range(7), range(2, 11)):
        grid = {X: np.array([i]), Y: np.array([j])}
        for indices, conditions in ACCESSES[name]:
            if all(iterators.can_hold(each, grid).all() for each in conditions):
                touched.add(tuple(index_expr.evaluate(index, grid).item() for index in indices))
    assert iterators.n_touched(ACCESSES[name], [X, Y], VISITED) == len(touched)


@pytest.mark.parametrize(
    ("sketch", "rows"), [(1, [[4, 0], [64, 0]]), (3, [[4, 8, 0], [32, 4, 0]])]
)
def test_predicates_keep_it_in_its_domain(sketch: int, rows: list[list[int]]) -> None:
    """All but active_trips: the least of the domain's 4 values that pass is 2, the bound is 4."""
    x = te.placeholder((1, 1, 6, 6), name="x")
    y = topi.nn.pool2d(x, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), "max")
    y = topi.nn.pool2d(y, (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), "max")
    chosen = sketching.trace_sketches(Task.from_te([x, y], "cuda"))[sketch]
    stores = [(row.block, row.buffer) for row in chosen.formulas.rows]
    for row in rows:
        counted = features.features(chosen, row)
        for store, values in zip(stores, chosen.formulas.raw(np.array([row]))[0], strict=True):
            formula = dict(zip(spec.NAMES, values.tolist(), strict=True))
            active = counted[store].pop("active_trips")
            assert active <= formula.pop("active_trips") <= 2 * active
            assert formula == pytest.approx(counted[store])


# ---------------------------------------------------------------- smooth formulas of real sketches


torch.set_num_threads(1)

SMOOTH_TASKS: dict[str, Callable[..., task.Task]] = {
    "gemm": partial(workloads.gemm, 128, 96, 64, epilogue=("bias", "relu")),
    "conv2d": partial(workloads.conv2d, 1, 14, 14, 16, 32, 3, stride=2, padding=1),
    "softmax": partial(workloads.softmax, (48, 197)),
    "max_pool2d": partial(workloads.pool2d, 1, 15, 15, 16, 3, stride=2, padding=1),
    "sum": partial(workloads.reduce, (64, 96), (1,)),
}
TEMPERATURES = (1e-5, 1e-7, 1e-9)


def sketches(name: str, target: str) -> list[sketching.Sketch]:
    """Those with decisions: formulas without variables are constants."""
    return [s for s in sketching.trace_sketches(SMOOTH_TASKS[name](target=target)) if s.variables]


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("name", SMOOTH_TASKS)
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


@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("name", SMOOTH_TASKS)
def test_constraints_tend_to_exact_at_legal_points(name: str, target: str) -> None:
    for sketch in sketches(name, target):
        formulas = sketch.formulas
        rows = legal_rows.draw(sketch, 6, seed=4)
        exact = formulas.constraints_exact(rows)
        smooth = formulas.constraints(formulas.space.encode(rows), temperature=1e-9).numpy()
        np.testing.assert_allclose(smooth, exact, atol=1e-5)
        assert (exact <= 0).all()


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


@pytest.mark.parametrize("temperature", [1.0, 0.3, 0.1])
@pytest.mark.parametrize("target", ["llvm", "cuda"])
@pytest.mark.parametrize("name", ["gemm", "conv2d", "softmax"])
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
