"""What the operating system reports of this machine's CPU, and defaults for the rest.

Linux: caches from sysfs, features and clock from /proc/cpuinfo. Bytes and GHz.
"""

from __future__ import annotations

import os
import pathlib
import platform
import re

#: Where Linux lists the caches of the first CPU.
CACHE_FOLDER = pathlib.Path("/sys/devices/system/cpu/cpu0/cache")
#: Data caches of an unknown CPU: (L1 per core, L2 per core, L3 of the chip, line), in bytes.
DEFAULT_CACHES = (32 * 1024, 1024 * 1024, 16 * 1024 * 1024, 64)
DEFAULT_GHZ = 2.5


def available_cores() -> int:
    """CPU cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpuinfo() -> str:
    path = pathlib.Path("/proc/cpuinfo")
    return path.read_text(errors="replace") if path.exists() else ""


def flags() -> frozenset[str]:
    """Feature flags of the CPU; empty where the OS lists none."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", _cpuinfo(), re.MULTILINE)
    return frozenset(match.group(1).split()) if match else frozenset()


def caches() -> tuple[int, int, int, int]:
    """(L1 data, L2, L3, line) bytes from sysfs; the default where a level is not listed."""
    sizes, line = {}, DEFAULT_CACHES[3]
    for folder in sorted(CACHE_FOLDER.glob("index*")):
        try:
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            level = int((folder / "level").read_text())
            sizes[level] = _bytes((folder / "size").read_text().strip())
            line = int((folder / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue
    if not sizes:
        return DEFAULT_CACHES
    return (
        sizes.get(1, DEFAULT_CACHES[0]),
        sizes.get(2, DEFAULT_CACHES[1]),
        sizes.get(3, 0),
        line,
    )


def _bytes(text: str) -> int:
    """A size as sysfs writes it: 32K, 1024K, 32M."""
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1], 1)
    return int(text.rstrip("KMG")) * scale


def clock_ghz() -> float:
    """The nominal clock of this machine's CPU, the same at every call."""
    highest = pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if highest.exists():
        return int(highest.read_text()) / 1e6
    info = _cpuinfo()
    if match := re.search(r"@ ([\d.]+)GHz", info):
        return float(match.group(1))
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    if is_x86 and (match := re.search(r"^bogomips\s*:\s*([\d.]+)", info, re.M | re.I)):
        return round(float(match.group(1)) / 2000, 2)
    return DEFAULT_GHZ
