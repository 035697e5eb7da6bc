"""Kinds of devices: whose latencies may be compared at all, and whom a program may be sent to."""

from __future__ import annotations

import re

import tvm

from felix import target

#: Of a node's resource in Ray, before the kind.
RESOURCE_PREFIX = "felix-device:"


def of(built_for: tvm.target.Target) -> str:
    """The kind of device that a target's programs run on, like "nvidia-h200" or "znver4"."""
    return slug(target.hardware(built_for).name)


def slug(device_name: str) -> str:
    """A device's name in lower case, with dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", device_name.lower()).strip("-")


def resource(kind: str) -> str:
    """The name of the resource of which a node has one a device."""
    return RESOURCE_PREFIX + kind
