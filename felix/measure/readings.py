"""What a device says of itself now, and how it does in its pool."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import pathlib
import statistics
from collections.abc import Iterable

#: Of NVML (nvml.h).
_CLOCK_SM = 1
_LIBRARY = "libnvidia-ml.so.1"
_VERSION_BYTES = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Readings:
    """Of one device; None where it does not say."""

    clock_ghz: float | None = None
    power_w: float | None = None
    driver: str | None = None


def of(kind: str, index: int = 0) -> Readings:
    """Those of this machine's CPU, or of a GPU by its number in this process ("cuda")."""
    return _gpu(index) if kind == "cuda" else Readings(clock_ghz=_cpu_clock_ghz())


def _cpu_clock_ghz(path: pathlib.Path = pathlib.Path("/proc/cpuinfo")) -> float | None:
    """The mean of the cores."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    clocks = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return round(statistics.mean(clocks) / 1000, 3) if clocks else None


def _gpu(index: int) -> Readings:
    library = _nvml()
    handle = ctypes.c_void_p()
    if library is None or not _find(library, index, handle):
        return Readings()
    mhz, milliwatts = ctypes.c_uint(), ctypes.c_uint()
    version = ctypes.create_string_buffer(_VERSION_BYTES)
    has_clock = library.nvmlDeviceGetClockInfo(handle, _CLOCK_SM, ctypes.byref(mhz)) == 0
    has_power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == 0
    has_version = library.nvmlSystemGetDriverVersion(version, _VERSION_BYTES) == 0
    return Readings(
        mhz.value / 1000 if has_clock else None,
        milliwatts.value / 1000 if has_power else None,
        version.value.decode(errors="replace") if has_version else None,
    )


def _find(library: ctypes.CDLL, index: int, handle: ctypes.c_void_p) -> bool:
    """The GPU that CUDA counts so: NVML counts all, CUDA those that it may see."""
    visible = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    name = visible[index] if index < len(visible) and visible[index] else str(index)
    if name.isdigit():
        return bool(library.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle)) == 0)
    found = library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    return bool(found == 0)


@functools.cache
def _nvml() -> ctypes.CDLL | None:
    """NVIDIA's library, ready; None without it."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


# How a device of a pool is: what waits for it, what it measured and why it measures nothing.


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """Of one device; counts are of the last hour.

    `place` names the device among those of its tuner, like "cuda:0" or a node of a cluster.
    """

    place: str
    queue: int = 0
    n_measured: int = 0
    n_failed: int = 0
    fault: str | None = None


def merged(of_pools: Iterable[Condition]) -> list[Condition]:
    """One condition a place, of those that several pools have of their devices."""
    by_place: dict[str, Condition] = {}
    for each in of_pools:
        known = by_place.get(each.place, Condition(each.place))
        by_place[each.place] = Condition(
            each.place,
            known.queue + each.queue,
            known.n_measured + each.n_measured,
            known.n_failed + each.n_failed,
            known.fault or each.fault,
        )
    return list(by_place.values())
