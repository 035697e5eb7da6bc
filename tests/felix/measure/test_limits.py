"""What is too large to be measured is refused before anything is computed for it."""

from __future__ import annotations

import time

import pytest
from tvm import te, tirx

import felix
from felix import errors, target, workloads
from felix.measure import limits
from felix.task import Task
from felix.tir import cost

H200 = limits.Capacity(141 * 10**9, target.hardware("h200").peak_fp32_gflops)
SMALL = limits.Capacity(24 << 30, 300.0)


def test_sizes_are_those_of_the_program() -> None:
    task = workloads.gemm(8, 16, 32, epilogue=("relu",))
    assert cost.buffer_bytes(task.func) == 4 * (8 * 32 + 32 * 16 + 2 * 8 * 16)
    assert cost.executions(task.func) == 8 * 16 * 32 + 8 * 16


@pytest.mark.parametrize(
    "name, params, capacity, reason",
    [
        ("gemm", {"m": 60_000, "n": 60_000, "k": 60_000}, SMALL, "its buffers have 43.2 GB"),
        ("gemm", {"m": 60_000, "n": 60_000, "k": 60_000}, H200, "its buffers have 43.2 GB"),
        ("gemm", {"m": 60_000, "n": 60_000, "k": 1}, SMALL, "its buffers have 14.4 GB"),
        ("gemm", {"m": 16_000, "n": 16_000, "k": 16_000}, SMALL, "one run has 8.19e[+]12"),
        ("gemm", {"m": 40_000, "n": 40_000, "k": 200_000}, H200, "its buffers have"),
        ("elementwise", {"shape": [2**33], "ops": ["relu"]}, SMALL, "its buffers have"),
    ],
)
def test_too_large_a_workload_is_refused_with_its_figures(
    name: str, params: dict[str, object], capacity: limits.Capacity, reason: str
) -> None:
    task = workloads.build(name, params)
    with pytest.raises(errors.WorkloadError, match=reason):
        limits.check(task, capacity)


def test_usual_workloads_fit() -> None:
    for n in (512, 4096, 8192):
        limits.check(workloads.gemm(n, n, n), SMALL)
    limits.check(workloads.gemm(16_384, 16_384, 16_384), H200)
    limits.check(workloads.gemm(8192, 28_672, 8192), H200)


def test_copies_and_sums_of_integers_count() -> None:
    n, depth = tirx.IntImm("int64", 60_000), tirx.IntImm("int64", 1000)
    a, b = (te.placeholder((n, depth), dtype="int8", name=name) for name in "ab")
    k = te.reduce_axis((tirx.IntImm("int64", 0), depth))
    out = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k))
    task = Task.from_te([a, b, out])
    assert task.flops == 0
    with pytest.raises(errors.WorkloadError, match=r"one run has 3.6e\+12 operations"):
        limits.check(task, limits.Capacity(1 << 50, 300.0))


def test_tuning_refuses_it_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(errors.WorkloadError, match="too large"):
        felix.tune(workloads.gemm(200_000, 200_000, 10), trials=1)
    assert time.monotonic() - begun < 5
