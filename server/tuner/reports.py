"""What a tuner writes about its devices, from what its engine and the devices say."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from felix.measure import readings
from server.store import tuners

#: Characters of a text, and candidates of a count, that an engine may say.
_MAX_CHARACTERS, _MAX_COUNT = 1000, 10**9


def seen(
    devices: Sequence[Mapping[str, Any]],
    by_place: Mapping[str, readings.Condition],
    versions: Mapping[str, str],
) -> list[tuners.Seen]:
    """A report of each device.

    Args:
        devices: as `server.parsing.devices.described`; those of a cluster say how they are.
        by_place: what the pools of the engine know of them.
        versions: of this machine.
    """
    return [
        _one(device, by_place.get(device["place"]), versions)
        for device in with_faults(devices, by_place)
        if "place" in device
    ]


def with_faults(
    devices: Sequence[Mapping[str, Any]], by_place: Mapping[str, readings.Condition]
) -> list[dict[str, Any]]:
    """The devices, each with what its pool says is wrong with it, if nothing else is."""
    faults = {place: condition.fault for place, condition in by_place.items()}
    return [
        {**device, "fault": device.get("fault") or faults.get(device.get("place", ""))}
        for device in devices
    ]


def checked(said: Any) -> dict[str, readings.Condition]:
    """Conditions by place that an engine's process said, which nobody trusts.

    Raises:
        ValueError, TypeError, KeyError: it said something else.
    """
    made = [readings.Condition(**fields) for fields in said]
    for each in made:
        counts = (each.queue, each.n_measured, each.n_failed)
        if not all(type(count) is int and 0 <= count <= _MAX_COUNT for count in counts):
            raise ValueError(counts)
        if not isinstance(each.place, str) or not isinstance(each.fault, str | None):
            raise TypeError(each.place)
        if max(len(each.place), len(each.fault or "")) > _MAX_CHARACTERS:
            raise ValueError(len(each.place))
    return {each.place: each for each in made}


def _one(
    device: Mapping[str, Any], condition: readings.Condition | None, versions: Mapping[str, str]
) -> tuners.Seen:
    place = str(device["place"])
    if device.get("now") is not None:
        now = readings.Readings(**device["now"])
    else:
        kind, _, index = place.partition(":")
        now = readings.of(kind, int(index))
    condition = condition or readings.Condition(place)
    return tuners.Seen(
        place=place,
        host=str(device.get("host") or platform.node()),
        target_key=str(device["target_keys"][-1]),
        driver=now.driver,
        versions=dict(device.get("versions") or versions),
        fault=device.get("fault"),
        queue=condition.queue,
        n_measured=condition.n_measured,
        n_failed=condition.n_failed,
        clock_ghz=_finite(now.clock_ghz),
        power_w=_finite(now.power_w),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
