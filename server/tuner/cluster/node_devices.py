"""Devices of nodes as tuners describe theirs, from what the nodes say, which may be anything."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from felix import target
from felix.measure.cluster import kinds, pool
from felix.target import Hardware
from server.parsing import devices

_MAX_CHARACTERS = 100


def described(about: Mapping[str, Any]) -> dict[str, Any]:
    """A device as tuners describe theirs, from what its node says about it."""
    return devices.described(
        str(about["name"]),
        target.parse(about["target"]),
        Hardware(**about["hardware"]),
        int(about["memory_bytes"]),
    )


def kinds_of(member: pool.Member) -> list[str]:
    """The kinds of a node's device: the one that it states, and that of its target."""
    stated = {member.kind} if member.kind else set()
    if member.about is None:
        return sorted(stated)
    return sorted(stated | {_kind_of(str(member.about["target"]))})


@functools.lru_cache(maxsize=256)
def _kind_of(text: str) -> str:
    return kinds.of(target.parse(text))


def readings(said: Any) -> dict[str, Any]:
    """What a node says of clock, power and driver, which may be anything."""
    said = said if isinstance(said, dict) else {}
    numbers = {
        name: float(said[name])
        for name in ("clock_ghz", "power_w")
        if isinstance(said.get(name), int | float)
    }
    driver = said.get("driver")
    return numbers | {"driver": str(driver)[:_MAX_CHARACTERS] if driver else None}
