"""Which device a job needs and which devices a tuner has, as keys that are compared as text.

    llvm      llvm/znver4      llvm/znver4/AMD-EPYC-9B14-8      a CPU, of that kind, that one
    cuda      cuda/sm_90       cuda/sm_90/NVIDIA-H100           a GPU

A job begins with the key of its target and gets the full key of the device that its first trial
is measured on, because latencies of two devices must not mix. A tuner claims jobs by all keys of
its devices, so another machine of the same kind may go on with a job.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from felix import target


def key_of(spec: str) -> str:
    """The key of a target as a user writes it.

    Raises:
        TargetError: it is no target.
    """
    parsed = target.parse(spec)
    kind, family, full = keys(parsed)
    if kind == "llvm":
        return family if "mcpu" in spec else kind
    if "model" in parsed.attrs and spec.strip() != kind:
        return full
    return family if "arch" in spec or "sm_" in spec else kind


def keys(parsed: Any) -> tuple[str, str, str]:
    """The keys of a device from loose to exact."""
    kind = str(parsed.kind.name)
    attributes = json.loads(target.describe(parsed))
    hardware = target.hardware(parsed)
    family = attributes.get("mcpu" if kind == "llvm" else "arch", "generic")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", hardware.name).strip("-")
    exact = f"{name}-{hardware.cores}" if kind == "llvm" else name
    return kind, f"{kind}/{family}", f"{kind}/{family}/{exact}"


def of_this_machine() -> list[dict[str, Any]]:
    """The devices of this machine, as `server.store.workers` stores them."""
    from costmodel import registry

    return [
        {
            "name": device.name,
            "kind": str(device.target.kind.name),
            "target_keys": list(keys(device.target)),
            "target": json.loads(target.describe(device.target)),
            "hardware": dataclasses.asdict(device.hardware),
            "model": None if registry.pretrained(device.target) is None else "pretrained",
        }
        for device in target.devices()
    ]
