"""What tuners and nodes say to each other: JSON with a version, and binaries beside it.

    build      {"payload", "for"}
               -> {"suffix", "build_s"} and the binary, or an error
    reference  {"payload"}
               -> {"description", "suffix", "build_s"} and the binary, or an error
    prepare    {"description", "suffix"} and the binary
               -> {"failure", "broken"}
    run        {"client", "candidates": [{"task", "suffix", "thorough"}]} and the binaries
               -> {"results": [measurement or null]}

Programs (`felix.builder.payload`) go to builders only. A device gets a task as a description
(`felix.runner.description`) and the binary of its reference. A task is named by the digest of
both; a result of null says that the node does not know the task, or not any more. Nobody executes
or unpickles what a message holds: programs are built by confined processes, binaries run in them.

A tuner's process imports this and loads no TVM.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any

from felix import errors
from felix.runner import protocol

if TYPE_CHECKING:
    import tvm

# Kinds of devices: whose latencies may be compared at all, and whom a program may be sent to.

#: Of a node's resource in Ray, before the kind.
RESOURCE_PREFIX = "felix-device:"


def of(built_for: tvm.target.Target) -> str:
    """The kind of device that a target's programs run on, like "nvidia-h200" or "znver4"."""
    from felix import target  # loads TVM, which a server does not have

    return slug(target.hardware(built_for).name)


def slug(device_name: str) -> str:
    """A device's name in lower case, with dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", device_name.lower()).strip("-")


def resource(kind: str) -> str:
    """The name of the resource of which a node has one a device."""
    return RESOURCE_PREFIX + kind


#: Version of the messages.
VERSION = 2
#: Of one message, its binaries left out, and of one binary.
MAX_TEXT_BYTES, MAX_BINARY_BYTES = 64 << 20, 256 << 20
_MAX_CHARACTERS = 1000
_MAX_LATENCIES = 100_000


def write(**fields: Any) -> str:
    """A message of these fields.

    Raises:
        MeasureError: it is too large.
    """
    text = json.dumps({"version": VERSION} | fields)
    if len(text) > MAX_TEXT_BYTES:
        raise errors.MeasureError(f"a message of {len(text) >> 20} MiB is too large")
    return text


def read(text: str) -> dict[str, Any]:
    """The fields of a message.

    Raises:
        MeasureError: it is no message, too large, or of another version.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise errors.MeasureError(f"a message of {len(text) >> 20} MiB is too large")
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise errors.MeasureError("what came is no message")
    if fields.get("version") != VERSION:
        raise errors.MeasureError(
            f"a message of version {fields.get('version')!r}, not {VERSION}: run the same version "
            "of Felix on all machines of the cluster"
        )
    return fields


def binary(content: bytes) -> bytes:
    """A binary that came; raises `MeasureError` if it is too large."""
    if len(content) > MAX_BINARY_BYTES:
        raise errors.MeasureError(f"a binary of {len(content) >> 20} MiB is too large")
    return content


def task_name(description: str, reference: bytes) -> str:
    """The name of a task: whoever has another reference has another task."""
    named = hashlib.sha256(hashlib.sha256(description.encode()).digest())
    named.update(reference)
    return named.hexdigest()


def description(fields: dict[str, Any]) -> str:
    """The description in a message; raises `MeasureError` if there is none, or a longer one."""
    text = fields.get("description")
    if not isinstance(text, str):
        raise errors.MeasureError("a task came without a description")
    try:
        from felix.runner import description as descriptions  # numpy, which servers do not load

        descriptions.Description.from_json(text)
    except ValueError as error:
        raise errors.MeasureError(str(error)) from None
    return text


def of_measurement(measurement: protocol.Measurement) -> dict[str, Any]:
    """A measurement as fields."""
    names = ("latencies_us", "error", "message", "run_s", "checked", "device")
    return {name: getattr(measurement, name) for name in names}


def measurement(fields: Any, build_s: float) -> protocol.Measurement:
    """The measurement that `of_measurement` wrote, of a candidate that was built in `build_s`.

    Raises:
        MeasureError: these are not its fields.
    """
    try:
        run_s, message = float(fields["run_s"]), str(fields["message"])[:_MAX_CHARACTERS]
        error, latencies_us = fields["error"], [float(us) for us in fields["latencies_us"]]
        device, checked = str(fields["device"])[:_MAX_CHARACTERS], fields["checked"] is True
        if not (math.isfinite(run_s) and run_s >= 0 and len(latencies_us) <= _MAX_LATENCIES):
            raise ValueError
        if not all(math.isfinite(us) and us > 0 for us in latencies_us):
            raise ValueError
        if error is not None:
            return protocol.Measurement(
                error=protocol.ErrorClass(error),
                message=message,
                build_s=build_s,
                run_s=run_s,
                device=device,
            )
        return protocol.Measurement.timed(
            latencies_us, build_s=build_s, run_s=run_s, checked=checked, device=device
        )
    except (KeyError, TypeError, ValueError, ArithmeticError):
        raise errors.MeasureError("a node replied with what is no measurement") from None
