"""Memory that measuring on a target's device may take: the device's, and this machine's."""

from __future__ import annotations

import os
import pathlib

import tvm
from tvm.target import Target

from felix.target import gpu

#: Where Linux says how much a container may take.
_CGROUP_LIMIT = pathlib.Path("/sys/fs/cgroup/memory.max")


def memory_bytes(target: Target) -> int:
    """Memory of the target's device, if it is known, and of this machine: the smaller one.

    Measuring on a GPU needs as much of the machine, where outputs are compared.
    """
    here = machine_bytes()
    if target.kind.name != "cuda":
        return here
    return min(here, _card_bytes(str(target.attrs.get("model", ""))) or here)


def machine_bytes() -> int:
    """Memory of this machine, or what its container may take."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = _CGROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def _card_bytes(model: str) -> int | None:
    card = gpu.TABLE.get(model)
    if card is not None and card.memory_gb is not None:
        return card.memory_gb * 10**9
    device = tvm.cuda(0)
    total = getattr(device, "total_global_memory", None) if device.exist else None
    return int(total) if total else None
