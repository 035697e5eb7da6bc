"""NVIDIA GPUs: what a device reports of itself, and public figures where there is no device.

Per chip: multiprocessors (SMs), boost clock, DRAM bandwidth, L2. Per architecture: float32
lanes, unified L1/shared memory, and residency limits of one SM.

- A card of `TABLE` has the table's figures, present or not, so that its name means the same
  everywhere. A device is one if the driver's name for it and its number of SMs are the card's.
- Any other device of this machine reports its own (`local`): attributes of its target carry them
  to processes and machines without the device. Its float32 lanes and L1 are its architecture's.
- Where there is neither, rates are those of a typical chip of the architecture; its name is not.

Sources: per-architecture rows from NVIDIA's CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"; chip rows from NVIDIA's architecture whitepapers and data
sheets named in the comments.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import tvm

_Row = TypeVar("_Row")
_MIB = 2**20
_KIB = 2**10


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One chip. Clock is the boost clock; bandwidth in 1e9 B/s; memory of its card, if known."""

    name: str
    arch: str
    sms: int
    clock_ghz: float
    dram_bandwidth_gbs: float
    l2_bytes: int
    memory_gb: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Limits of one SM of a compute capability. Registers are 32-bit ones.

    `shared_bytes_per_block` is the most dynamic shared memory that a launch may opt in to.
    """

    fp32_lanes_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    l1_bytes: int
    registers_per_sm: int = 65536


#: Short name -> chip.
TABLE: dict[str, Gpu] = {
    # Hopper whitepaper; H100 and H200 data sheets (fp32: 67 TFLOP/s)
    "h200": Gpu("NVIDIA H200", "sm_90", 132, 1.98, 4800, 50 * _MIB, 141),
    "h100": Gpu("NVIDIA H100 SXM", "sm_90", 132, 1.98, 3350, 50 * _MIB, 80),
    "h100-pcie": Gpu("NVIDIA H100 PCIe", "sm_90", 114, 1.755, 2000, 50 * _MIB, 80),
    "h100-nvl": Gpu("NVIDIA H100 NVL", "sm_90", 132, 1.785, 3900, 50 * _MIB, 94),
    # Ampere GA100 whitepaper; A100 data sheet (19.5 TFLOP/s)
    "a100": Gpu("NVIDIA A100 80GB", "sm_80", 108, 1.41, 2039, 40 * _MIB, 80),
    "a100-40gb": Gpu("NVIDIA A100 40GB", "sm_80", 108, 1.41, 1555, 40 * _MIB, 40),
    # Ampere GA102 whitepaper; A10G data sheet (35 TFLOP/s), RTX A5000 data sheet (27.8 TFLOP/s)
    "a10g": Gpu("NVIDIA A10G", "sm_86", 80, 1.71, 600, 6 * _MIB, 24),
    "rtx-a5000": Gpu("NVIDIA RTX A5000", "sm_86", 64, 1.695, 768, 6 * _MIB, 24),
    "rtx-3090": Gpu("NVIDIA GeForce RTX 3090", "sm_86", 82, 1.695, 936, 6 * _MIB, 24),
    "rtx-3080": Gpu("NVIDIA GeForce RTX 3080", "sm_86", 68, 1.71, 760, 5 * _MIB, 10),
    # Ada whitepaper; L4 and L40S data sheets
    "rtx-4090": Gpu("NVIDIA GeForce RTX 4090", "sm_89", 128, 2.52, 1008, 72 * _MIB, 24),
    "l4": Gpu("NVIDIA L4", "sm_89", 58, 2.04, 300, 48 * _MIB, 24),
    "l40s": Gpu("NVIDIA L40S", "sm_89", 142, 2.52, 864, 96 * _MIB, 48),
    # RTX Blackwell whitepaper (104.8 TFLOP/s)
    "rtx-5090": Gpu("NVIDIA GeForce RTX 5090", "sm_120", 170, 2.407, 1792, 96 * _MIB, 32),
    # Volta and Turing whitepapers; T4 data sheet (8.1 TFLOP/s)
    "v100": Gpu("NVIDIA V100 SXM2", "sm_70", 80, 1.53, 900, 6 * _MIB, 32),
    "t4": Gpu("NVIDIA T4", "sm_75", 40, 1.59, 320, 4 * _MIB, 16),
}
_ALIASES = {"a5000": "rtx-a5000", "nvidia-a100": "a100"}
TABLE |= {alias: TABLE[name] for alias, name in _ALIASES.items()}
#: Slug of the driver's name -> card, where it is not the card's short name.
_DRIVER_NAMES = {
    "h100-80gb-hbm3": "h100",
    "a100-sxm4-80gb": "a100",
    "a100-sxm4-40gb": "a100-40gb",
    "a100-pcie-40gb": "a100-40gb",
    "v100-sxm2-16gb": "v100",
    "v100-sxm2-32gb": "v100",
}

#: Compute capability (major, minor) -> limits of one SM.
_FAMILIES: dict[tuple[int, int], Family] = {
    (5, 0): Family(128, 2048, 32, 64 * _KIB, 48 * _KIB, 24 * _KIB),
    (6, 0): Family(64, 2048, 32, 64 * _KIB, 48 * _KIB, 24 * _KIB),
    (6, 1): Family(128, 2048, 32, 96 * _KIB, 48 * _KIB, 48 * _KIB),
    (7, 0): Family(64, 2048, 32, 96 * _KIB, 96 * _KIB, 128 * _KIB),
    (7, 5): Family(64, 1024, 16, 64 * _KIB, 64 * _KIB, 96 * _KIB),
    (8, 0): Family(64, 2048, 32, 164 * _KIB, 163 * _KIB, 192 * _KIB),
    (8, 6): Family(128, 1536, 16, 100 * _KIB, 99 * _KIB, 128 * _KIB),
    (8, 7): Family(128, 1536, 16, 164 * _KIB, 163 * _KIB, 192 * _KIB),
    (8, 9): Family(128, 1536, 24, 100 * _KIB, 99 * _KIB, 128 * _KIB),
    (9, 0): Family(128, 2048, 32, 228 * _KIB, 227 * _KIB, 256 * _KIB),
    (10, 0): Family(128, 2048, 32, 228 * _KIB, 227 * _KIB, 256 * _KIB),
    (12, 0): Family(128, 1536, 24, 100 * _KIB, 99 * _KIB, 128 * _KIB),
}
#: Chip whose rates are assumed when only the architecture is known (its name never is); a small
#: one, so rates are conservative.
_TYPICAL: dict[tuple[int, int], Gpu] = {
    (5, 0): Gpu("unknown sm_5x GPU", "sm_50", 16, 1.1, 200, 2 * _MIB),
    (6, 0): Gpu("unknown sm_6x GPU", "sm_60", 20, 1.3, 300, 2 * _MIB),
    (7, 0): TABLE["v100"],
    (7, 5): TABLE["t4"],
    (8, 0): TABLE["a100-40gb"],
    (8, 6): TABLE["rtx-a5000"],
    (8, 9): TABLE["l4"],
    (9, 0): TABLE["h100-pcie"],
    (10, 0): TABLE["h100"],
    (12, 0): Gpu("unknown sm_12x GPU", "sm_120", 36, 2.4, 448, 32 * _MIB),
}

# Target attributes "feature.*" are free in TVM; ours describe a device that is not in the table.
#: Target attribute -> property of TVM's device. Clocks in kHz.
_TVM_PROPERTIES = {
    "max_threads_per_block": "max_threads_per_block",
    "thread_warp_size": "warp_size",
    "l2_cache_size_bytes": "l2_cache_size_bytes",
    "feature.sms": "multi_processor_count",
    "feature.clock_khz": "max_clock_rate",
}
#: Target attribute -> `CUdevice_attribute` of cuda.h, for what TVM does not query.
_DRIVER_ATTRIBUTES = {
    "max_shared_memory_per_block": 97,  # with opt-in
    "registers_per_block": 12,
    "feature.memory_clock_khz": 36,
    "feature.memory_bus_bits": 37,
    "feature.max_threads_per_sm": 39,
    "feature.shared_bytes_per_sm": 81,
    "feature.registers_per_sm": 82,
    "feature.max_blocks_per_sm": 106,
}
#: Target attributes that are positive whole numbers; only a user sets the last two.
INTEGERS = (*_TVM_PROPERTIES, *_DRIVER_ATTRIBUTES, "feature.fp32_lanes_per_sm", "feature.l1_bytes")
#: Words of TVM's tags that the driver does not write in capitals.
_WORDS = {"geforce": "GeForce", "quadro": "Quadro", "tesla": "Tesla", "ti": "Ti"}


def capability(arch: str) -> tuple[int, int]:
    """(major, minor) of an architecture: sm_90a -> (9, 0), sm_120 -> (12, 0)."""
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])


def family(attrs: Mapping[str, Any]) -> Family:
    """Limits of one SM: what a target's attributes say, else those of its compute capability.

    A capability that is not in the table has those of the nearest older one.
    """
    row = _nearest(_FAMILIES, str(attrs["arch"]))
    names = [field.name for field in dataclasses.fields(Family)]
    limits = {name: attrs[f"feature.{name}"] for name in names if f"feature.{name}" in attrs}
    return dataclasses.replace(row, **limits)


def find(attrs: Mapping[str, Any]) -> Gpu:
    """The chip of a target's attributes: what they say, else the table's card `model`.

    What they leave open of another chip is that of a typical one of its architecture (bandwidth:
    as much for each SM); the name is its own.
    """
    model, arch = str(attrs.get("model", "")), str(attrs["arch"])
    known = TABLE.get(model)
    if known is not None and not any(key.startswith("feature.") for key in attrs):
        return known
    like = known or _nearest(_TYPICAL, arch)
    name = known.name if known is not None else model or f"unknown {arch} GPU"
    sms = attrs.get("feature.sms", like.sms)
    clock_khz = attrs.get("feature.clock_khz")
    per_sm_gbs = like.dram_bandwidth_gbs / like.sms
    return Gpu(
        name=str(attrs.get("feature.name", name)),
        arch=arch,
        sms=sms,
        clock_ghz=round(clock_khz / 1e6, 3) if clock_khz else like.clock_ghz,
        dram_bandwidth_gbs=_bandwidth_gbs(attrs) or round(per_sm_gbs * sms),
        l2_bytes=attrs.get("l2_cache_size_bytes", like.l2_bytes),
    )


def _bandwidth_gbs(attrs: Mapping[str, Any]) -> int | None:
    """Two transfers a clock over the whole bus, as CUDA's samples reckon; None if unknown."""
    clock_khz, bits = attrs.get("feature.memory_clock_khz"), attrs.get("feature.memory_bus_bits")
    return round(2 * clock_khz * bits / 8 / 1e6) if clock_khz and bits else None


def _nearest(rows: dict[tuple[int, int], _Row], arch: str) -> _Row:
    version = capability(arch)
    older = [key for key in rows if key <= version]
    return rows[max(older) if older else min(rows)]


def slug(device_name: str) -> str:
    """The table's short name for the driver's device name; a slug of it where it has none.

    Only whole names count: boards and slices of one chip ("A100 80GB PCIe", "3090 Ti", "Laptop
    GPU", "MIG 1g.18gb") differ in SMs, clock or memory.
    """
    text = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    text = text.removeprefix("nvidia-").removeprefix("geforce-").removeprefix("tesla-")
    return _DRIVER_NAMES.get(text, text)


def title(tag: str) -> str:
    """A TVM tag as a driver's name: nvidia/geforce-rtx-3070 -> NVIDIA GeForce RTX 3070."""
    words = tag.removeprefix("nvidia/").removeprefix("nvidia-").split("-")
    return " ".join(["NVIDIA", *(_WORDS.get(word, word.upper()) for word in words)])


def local(index: int) -> dict[str, Any] | None:
    """Target attributes of a CUDA device of this machine; None where there is no such device.

    The driver is queried for what TVM does not report, only of a card that is not in the table.
    """
    device = tvm.cuda(index)
    if not device.exist:
        return None
    name = str(device.device_name)
    model = slug(name)
    attributes = {
        "kind": "cuda",
        "arch": "sm_" + str(device.compute_version).replace(".", ""),
        "model": model,
    } | _attributes_of_tvm(device)
    if model in TABLE and attributes.get("feature.sms", TABLE[model].sms) == TABLE[model].sms:
        return {key: attributes[key] for key in attributes if not key.startswith("feature.")}
    return attributes | {"feature.name": name} | _attributes_of_driver(index)


def _attributes_of_tvm(device: Any) -> dict[str, Any]:
    """Attributes from TVM's properties of a device; it does not know one that is None or 0."""
    values = {key: getattr(device, name, None) for key, name in _TVM_PROPERTIES.items()}
    return {key: int(value) for key, value in values.items() if value}


def _attributes_of_driver(index: int) -> dict[str, int]:
    """Attributes from the CUDA driver, without a context; an error or 0 leaves one out."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    device, value = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), index):
        return {}
    attributes = {}
    for key, number in _DRIVER_ATTRIBUTES.items():
        error = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        if not error and value.value > 0:
            attributes[key] = value.value
    return attributes
