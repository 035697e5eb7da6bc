"""Public figures of NVIDIA GPUs: what a target's name alone cannot tell.

Per chip: multiprocessors (SMs), boost clock, DRAM bandwidth, L2. Per architecture: float32
lanes, unified L1/shared memory, and residency limits of one SM. Sources: per-architecture rows
from NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute Capability";
chip rows from NVIDIA's architecture whitepapers and data sheets named in the comments.
Reads nothing; feeds `felix.target`.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TypeVar

_Row = TypeVar("_Row")
_MIB = 2**20
_KIB = 2**10


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One chip. Clock is the boost clock; bandwidth in 1e9 B/s."""

    name: str
    arch: str
    sms: int
    clock_ghz: float
    dram_bandwidth_gbs: float
    l2_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Limits of one SM of a compute capability."""

    fp32_lanes_per_sm: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    shared_bytes_per_sm: int
    l1_bytes: int


#: Short name -> chip.
TABLE: dict[str, Gpu] = {
    # Hopper whitepaper; H100 and H200 data sheets (fp32: 67 TFLOP/s)
    "h200": Gpu("NVIDIA H200", "sm_90", 132, 1.98, 4800, 50 * _MIB),
    "h100": Gpu("NVIDIA H100 SXM", "sm_90", 132, 1.98, 3350, 50 * _MIB),
    "h100-pcie": Gpu("NVIDIA H100 PCIe", "sm_90", 114, 1.755, 2000, 50 * _MIB),
    # Ampere GA100 whitepaper; A100 data sheet (19.5 TFLOP/s)
    "a100": Gpu("NVIDIA A100 80GB", "sm_80", 108, 1.41, 2039, 40 * _MIB),
    "a100-40gb": Gpu("NVIDIA A100 40GB", "sm_80", 108, 1.41, 1555, 40 * _MIB),
    # Ampere GA102 whitepaper; A10G data sheet (35 TFLOP/s), RTX A5000 data sheet (27.8 TFLOP/s)
    "a10g": Gpu("NVIDIA A10G", "sm_86", 80, 1.71, 600, 6 * _MIB),
    "rtx-a5000": Gpu("NVIDIA RTX A5000", "sm_86", 64, 1.695, 768, 6 * _MIB),
    "rtx-3090": Gpu("NVIDIA GeForce RTX 3090", "sm_86", 82, 1.695, 936, 6 * _MIB),
    "rtx-3080": Gpu("NVIDIA GeForce RTX 3080", "sm_86", 68, 1.71, 760, 5 * _MIB),
    # Ada whitepaper; L4 and L40S data sheets
    "rtx-4090": Gpu("NVIDIA GeForce RTX 4090", "sm_89", 128, 2.52, 1008, 72 * _MIB),
    "l4": Gpu("NVIDIA L4", "sm_89", 58, 2.04, 300, 48 * _MIB),
    "l40s": Gpu("NVIDIA L40S", "sm_89", 142, 2.52, 864, 96 * _MIB),
    # RTX Blackwell whitepaper (104.8 TFLOP/s)
    "rtx-5090": Gpu("NVIDIA GeForce RTX 5090", "sm_120", 170, 2.407, 1792, 96 * _MIB),
    # Volta and Turing whitepapers; T4 data sheet (8.1 TFLOP/s)
    "v100": Gpu("NVIDIA V100 SXM2", "sm_70", 80, 1.53, 900, 6 * _MIB),
    "t4": Gpu("NVIDIA T4", "sm_75", 40, 1.59, 320, 4 * _MIB),
}
_ALIASES = {"a5000": "rtx-a5000", "nvidia-a100": "a100", "h100-nvl": "h100-pcie"}
TABLE |= {alias: TABLE[name] for alias, name in _ALIASES.items()}

#: Compute capability (major, minor) -> limits of one SM.
_FAMILIES: dict[tuple[int, int], Family] = {
    (5, 0): Family(128, 2048, 32, 64 * _KIB, 24 * _KIB),
    (6, 0): Family(64, 2048, 32, 64 * _KIB, 24 * _KIB),
    (6, 1): Family(128, 2048, 32, 96 * _KIB, 48 * _KIB),
    (7, 0): Family(64, 2048, 32, 96 * _KIB, 128 * _KIB),
    (7, 5): Family(64, 1024, 16, 64 * _KIB, 96 * _KIB),
    (8, 0): Family(64, 2048, 32, 164 * _KIB, 192 * _KIB),
    (8, 6): Family(128, 1536, 16, 100 * _KIB, 128 * _KIB),
    (8, 7): Family(128, 1536, 16, 164 * _KIB, 192 * _KIB),
    (8, 9): Family(128, 1536, 24, 100 * _KIB, 128 * _KIB),
    (9, 0): Family(128, 2048, 32, 228 * _KIB, 256 * _KIB),
    (10, 0): Family(128, 2048, 32, 228 * _KIB, 256 * _KIB),
    (12, 0): Family(128, 1536, 24, 100 * _KIB, 128 * _KIB),
}
#: Chip assumed when only the architecture is known; a small one, so rates are conservative.
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


def capability(arch: str) -> tuple[int, int]:
    """(major, minor) of an architecture: sm_90a -> (9, 0), sm_120 -> (12, 0)."""
    digits = re.sub(r"\D", "", arch)
    return int(digits[:-1]), int(digits[-1])


def family(arch: str) -> Family:
    """Limits of one SM; those of the nearest older capability where it is not in the table."""
    return _nearest(_FAMILIES, arch)


def find(model: str, arch: str) -> Gpu:
    """The chip of that model name; a typical one of the architecture where it is not known."""
    return TABLE[model] if model in TABLE else _nearest(_TYPICAL, arch)


def slug(device_name: str) -> str:
    """The table's short name for the driver's device name; a slug of it where it has none."""
    text = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    text = text.removeprefix("nvidia-").removeprefix("geforce-").removeprefix("tesla-")
    if text in TABLE:
        return text
    if text.startswith("h100"):
        return "h100-pcie" if "pcie" in text or "nvl" in text else "h100"
    if text.startswith("a100"):
        return "a100-40gb" if "40gb" in text else "a100"
    # Boards of one chip: "v100-sxm2-16gb"; but "rtx-3090-ti" and "-laptop-gpu" are other chips.
    boards = [name for name in TABLE if re.fullmatch(rf"{name}-(sxm|pcie|hgx|\d+gb).*", text)]
    return boards[0] if boards else text


def _nearest(rows: dict[tuple[int, int], _Row], arch: str) -> _Row:
    wanted = capability(arch)
    older = [key for key in rows if key <= wanted]
    return rows[max(older) if older else min(rows)]
