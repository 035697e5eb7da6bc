"""Schedules are right on a GPU: row chains, groups of rows, more than 48 KiB of shared memory."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

import felix
from felix import workloads
from felix.measure import build
from felix.measure.pool import local
from felix.sketch.trace_sketch import TraceSketch
from felix.task import Task
from tests.support import row_chains

HAS_GPU = tvm.runtime.device("cuda", 0).exist
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU"),
]
PATIENT = local.LocalOptions(builders=4, build_timeout_s=60.0, max_source_bytes=1 << 30)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1536, 128), (197, 768), (100, 4096), (64, 61)])
@pytest.mark.parametrize("name", row_chains.PROGRAMS)
def test_random_schedules_of_row_chains_are_right(
    name: str, shape: tuple[int, int], dtype: str
) -> None:
    task = row_chains.PROGRAMS[name](*shape, "cuda", dtype)
    (sketch,) = (s for s in felix.trace_sketches(task) if s.variant.name == "row_chain")
    mods = [sketch.schedule(row).mod for row in sketch.sample(16, seed=3)]
    with local.LocalPool(task, PATIENT) as opened:
        results = opened.measure(mods)
    assert all(result.ok and result.checked for result in results), [
        result.message for result in results if not result.ok
    ]


# Groups of rows on a GPU: every kind of reduction over threads gives the right results.


@pytest.mark.parametrize(
    "text",
    [
        "softmax:1536x128",
        "softmax:12x197x197",
        "layer_norm:394x768",
        "rms_norm:2364x96",
        "reduce:12x200x197,axes=2,kind=max",
        "softmax:1536x128,dtype=float16",
    ],
)
def test_random_schedules_of_row_groups_are_right(text: str) -> None:
    """Rows of a part of a warp, of a warp and of several warps."""
    task = felix.workloads.parse(text, target="cuda")
    (sketch,) = (s for s in felix.trace_sketches(task) if s.variant.name == "row_groups")
    mods = [sketch.schedule(row).mod for row in sketch.sample(24, seed=3)]
    with local.LocalPool(task, PATIENT) as opened:
        results = opened.measure(mods)
    assert all(result.ok and result.checked for result in results), [
        result.message for result in results if not result.ok
    ]


# Kernels with more than 48 KiB of shared memory on a GPU: measured, compiled and shipped.

STATIC_BYTES = 48 * 1024


def _large(sketch: TraceSketch, n: int) -> list[tvm.IRModule]:
    """Schedules with more than the static limit, the one that needs most first."""
    rows = sketch.sample(200, seed=1)
    used = sketch.formulas.shared_bytes(rows)
    order = [i for i in np.argsort(-used) if used[i] > STATIC_BYTES][:n]
    assert len(order) == n
    return [sketch.schedule(rows[i]).mod for i in order]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_are_right_in_every_sketch(dtype: str) -> None:
    task = workloads.gemm(512, 512, 512, dtype=dtype, target="cuda")
    mods = [mod for sketch in felix.trace_sketches(task) for mod in _large(sketch, 3)]
    with local.LocalPool(task, PATIENT) as opened:
        results = opened.measure(mods)
    assert all(result.ok and result.checked for result in results), [
        result.message for result in results if not result.ok
    ]


def test_a_convolution_is_right() -> None:
    task: Task = workloads.conv2d(1, 28, 28, 128, 128, 3, padding=1, target="cuda")
    mods = [mod for sketch in felix.trace_sketches(task)[:3] for mod in _large(sketch, 2)]
    with local.LocalPool(task, PATIENT) as opened:
        results = opened.measure(mods)
    assert all(result.ok and result.checked for result in results), [
        result.message for result in results if not result.ok
    ]


def test_what_ships_runs_by_tvm_s_runtime() -> None:
    task = workloads.gemm(256, 256, 256, target="cuda")
    (mod,) = _large(felix.trace_sketches(task)[-1], 1)
    rng = np.random.default_rng(0)
    a, b = (rng.random((256, 256), dtype=np.float32) for _ in range(2))
    tensors = [tvm.runtime.tensor(x, tvm.cuda(0)) for x in (a, b, np.zeros_like(a))]
    build.module(mod, task.target)["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), a @ b, rtol=1e-4)
