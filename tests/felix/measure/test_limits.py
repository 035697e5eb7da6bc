"""What is refused before it is measured, how devices are, and calls that are timed in turns."""

from __future__ import annotations

import ctypes
import pathlib
import time
from typing import Any

import pytest
from tvm import te, tirx

import felix
from felix import errors, target, workloads
from felix.measure import device_thread, limits, readings
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
    begun = time.process_time()
    with pytest.raises(errors.WorkloadError, match="too large"):
        felix.tune(workloads.gemm(200_000, 200_000, 10), trials=1)
    assert time.process_time() - begun < 5


def test_a_history_forgets_after_an_hour() -> None:
    now = [1000.0]
    made = device_thread.History(lambda: now[0])
    for failed in (False, True, False):
        made.add(failed)
    now[0] += 1800
    made.add(True)
    assert made.counts() == (4, 2)
    now[0] += 1830
    assert made.counts() == (1, 1)
    now[0] += 3600
    assert made.counts() == (0, 0)


def test_pools_of_a_device_are_put_together() -> None:
    first = readings.Condition("cpu:0", 1, 10, 1)
    second = readings.Condition("cpu:0", 2, 5, 0, "busy")
    other = readings.Condition("cuda:0")
    assert readings.merged([first, other, second]) == [
        readings.Condition("cpu:0", 3, 15, 1, "busy"),
        other,
    ]


def test_the_clock_of_a_cpu_is_the_mean_of_its_cores(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("cpu MHz\t\t: 2000.5\nmodel\t: x\ncpu MHz\t\t: 3000.5\n")
    assert readings._cpu_clock_ghz(path) == 2.501
    path.write_text("model\t: x\n")
    assert (
        readings._cpu_clock_ghz(path) is None and readings._cpu_clock_ghz(tmp_path / "no") is None
    )


class _Nvml:
    """NVIDIA's library with two GPUs, the second of which says no power."""

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0 if index < 2 else 6

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        handle._obj.value = 2
        return 0 if name == b"GPU-b" else 6

    def nvmlDeviceGetClockInfo(self, handle: ctypes.c_void_p, kind: int, value: Any) -> int:
        value._obj.value = 1000 * (handle.value or 0) + kind
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, value: Any) -> int:
        value._obj.value = 250_500
        return 0 if handle.value == 1 else 3

    def nvmlSystemGetDriverVersion(self, text: Any, length: int) -> int:
        text.value = b"550.54"
        return 0


@pytest.mark.parametrize(
    ("visible", "index", "expected"),
    [
        ("", 0, readings.Readings(1.001, 250.5, "550.54")),
        ("1", 0, readings.Readings(2.001, None, "550.54")),
        ("GPU-a,GPU-b", 1, readings.Readings(2.001, None, "550.54")),
        ("", 7, readings.Readings()),
    ],
)
def test_a_gpu_says_clock_power_and_driver(
    visible: str, index: int, expected: readings.Readings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(readings, "_nvml", _Nvml)
    assert readings.of("cuda", index) == expected


def test_without_a_driver_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "_nvml", lambda: None)
    assert readings.of("cuda") == readings.Readings()
