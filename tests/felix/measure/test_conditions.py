"""How devices are: counts of the last hour, and what hardware says of itself."""

from __future__ import annotations

import ctypes
import pathlib
from typing import Any

import pytest

from felix.measure import readings
from felix.measure.pool.stages import device_stage


def test_a_history_forgets_after_an_hour() -> None:
    now = [1000.0]
    made = device_stage.History(lambda: now[0])
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
