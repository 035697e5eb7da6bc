"""Which device a job needs and which devices a tuner has, as keys that are compared as text.

    llvm      llvm/znver4      llvm/znver4/AMD-EPYC-9B14-8      a CPU, of that kind, that one
    cuda      cuda/sm_90       cuda/sm_90/NVIDIA-H100           a GPU

A job begins with the key of its target and gets the full key of the device that its first trial
is measured on, because latencies of two devices must not mix. A tuner claims jobs by all keys of
its devices, so another machine of the same kind may go on with a job.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from felix import errors, target
from felix.measure import limits
from felix.target import memory


def key_of(spec: str) -> str:
    """The key of a target as a client writes it.

    Raises:
        TargetError: it is no target, or has attributes that clients may not set.
    """
    explicit = target.explicit_attributes(spec)
    kind, family, full = keys(target.parse_of_client(spec))
    if kind == "llvm":
        return family if "mcpu" in explicit else kind
    if "model" in explicit:
        return full
    return family if "arch" in explicit else kind


def keys(parsed: Any) -> tuple[str, str, str]:
    """The keys of a device from loose to exact."""
    kind = str(parsed.kind.name)
    attributes = json.loads(target.describe(parsed))
    hardware = target.hardware(parsed)
    family = attributes.get("mcpu" if kind == "llvm" else "arch", "generic")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", hardware.name).strip("-")
    exact = f"{name}-{hardware.cores}" if kind == "llvm" else name
    return kind, f"{kind}/{family}", f"{kind}/{family}/{exact}"


def capacity(spec: str, devices: Sequence[Mapping[str, Any]]) -> limits.Capacity:
    """The most that a device offers of those that can measure a client's target.

    Args:
        spec: the target as the client writes it.
        devices: those of the tuners, as `of_this_machine` says them.

    Returns:
        What the largest one offers; without any, an unknown memory and the target's peak rate.

    Raises:
        TargetError: it is no target, or asks for more cores than any such device has.
    """
    key = key_of(spec)
    able = [device for device in devices if key in device.get("target_keys", ())]
    hardware = [device.get("hardware", {}) for device in able]  # a tuner may say less
    refuse_cores(target.explicit_attributes(spec).get("num-cores", 1), able)
    unknown, usual_gflops = limits.UNKNOWN_MEMORY_BYTES, target.hardware(spec).peak_fp32_gflops
    peaks = [float(each.get("peak_fp32_gflops", usual_gflops)) for each in hardware]
    return limits.Capacity(
        max((int(device.get("memory_bytes", unknown)) for device in able), default=unknown),
        max(peaks, default=usual_gflops),
    )


def refuse_cores(cores: int, devices: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a target with more cores than any of some devices has; without any, none is refused.

    Raises:
        TargetError
    """
    hardware = [device.get("hardware", {}) for device in devices]
    most = max((int(each.get("cores", cores)) for each in hardware), default=cores)
    if cores > most:
        raise errors.TargetError(f"target: num-cores is {cores}, the device has {most} cores")


def of_this_machine() -> list[dict[str, Any]]:
    """The devices of this machine, as `server.store.tuners` stores them."""
    places: collections.Counter[str] = collections.Counter()
    made = []
    for device in target.devices():
        kind = "cuda" if device.hardware.is_gpu else "cpu"
        memory_bytes = memory.memory_bytes(device.target)
        about = described(device.name, device.target, device.hardware, memory_bytes)
        made.append(about | {"place": f"{kind}:{places[kind]}"})
        places[kind] += 1
    return made


def described(
    name: str, parsed: Any, hardware: target.Hardware, memory_bytes: int
) -> dict[str, Any]:
    """A device, as `server.store.tuners` stores it."""
    from costmodel import registry

    return {
        "name": name,
        "kind": str(parsed.kind.name),
        "target_keys": list(keys(parsed)),
        "target": json.loads(target.describe(parsed)),
        "hardware": dataclasses.asdict(hardware),
        "memory_bytes": memory_bytes,
        "model": None if registry.pretrained(parsed) is None else "pretrained",
    }
