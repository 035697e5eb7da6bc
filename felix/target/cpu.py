"""What the operating system reports of this machine's CPU, and defaults for the rest; what LLVM's
features of a target's code are, and which of them this machine has.

Linux: caches from sysfs, features and clock from /proc/cpuinfo. Bytes and GHz.
"""

from __future__ import annotations

import os
import pathlib
import platform
import re

from tvm.target import Target, codegen

from felix import errors

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
    l1_bytes, l2_bytes, _, line = DEFAULT_CACHES
    sizes = {}
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
    return sizes.get(1, l1_bytes), sizes.get(2, l2_bytes), sizes.get(3, 0), line


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


#: LLVM feature -> flag of /proc/cpuinfo. A virtual machine may hide what its CPU model has.
FLAGS = {
    **{name: name for name in "avx avx2 fma avx512f avx512bw avx512dq avx512vl avx512cd".split()},
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vp2intersect": "avx512_vp2intersect",
    "avxvnni": "avx_vnni",
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}
#: More that LLVM uses for tensor programs; where one is missing, the program ends.
_OTHER_FLAGS = {
    **{
        name: name
        for name in (
            "sse4a ssse3 popcnt bmi2 f16c fma4 xop tbm movbe gfni avx512ifma avx512vbmi sve "
            "sve2 i8mm bf16"
        ).split()
    },
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxifma": "avx_ifma",
    "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16",
    "avxneconvert": "avx_ne_convert",
    "amx-fp16": "amx_fp16",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
}
_ALL_FLAGS = FLAGS | _OTHER_FLAGS


def of(target: Target) -> frozenset[str]:
    """LLVM features of the target's CPU model, with `mattr` applied."""
    features = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    for item in target.attrs.get("mattr", ()):
        (features.add if item.startswith("+") else features.discard)(str(item[1:]))
    return frozenset(features)


def hidden(mcpu: str) -> list[str]:
    """`mattr` items that switch off what the CPU model has and this machine hides."""
    found = flags()
    if not found:
        return []
    features = of(Target({"kind": "llvm", "mcpu": mcpu}))
    return [f"-{name}" for name, flag in FLAGS.items() if name in features and flag not in found]


def refuse_foreign(target: Target, local: Target) -> None:
    """Refuse an llvm target whose code this machine cannot run; `local` is its usual target.

    Raises:
        TargetError: the message names the instructions that are missing.
    """
    machine = str(local.attrs["mtriple"]).partition("-")[0]
    triple = str(target.attrs.get("mtriple", local.attrs["mtriple"]))
    if triple.partition("-")[0] != machine:
        raise errors.TargetError(
            f"the target is for {triple}, this machine is a {machine}: tune for 'llvm', "
            "which is this CPU"
        )
    missing = sorted(name for name in of(target) - of(local) if _is_missing(name, target))
    if missing:
        raise errors.TargetError(
            f"the CPU of this machine has no {', '.join(missing[:8])}, which the target may use: "
            "tune for 'llvm', which is this CPU, or switch them off with -mattr"
        )


def _is_missing(feature: str, target: Target) -> bool:
    """Whether this machine lacks a feature, or is not known to have one of `mattr`."""
    found = flags()
    if feature in _ALL_FLAGS:
        return bool(found) and _ALL_FLAGS[feature] not in found
    return f"+{feature}" in [str(item) for item in target.attrs.get("mattr", ())]
