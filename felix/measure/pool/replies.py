"""Whether a worker's reply is one to its request; a worker that was taken over may send any."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any

from felix.measure import description, protocol
from felix.measure.pool import inbox

#: Longer messages of an error are cut.
_MAX_CHARACTERS = 1000
#: Suffixes of what builds make.
SUFFIXES = (".so", ".ll", ".cubin")
#: And of references; a task whose outputs are not checked has no file.
REFERENCE_SUFFIXES = (*SUFFIXES, description.OUTPUTS)
_ERRORS = frozenset(error.value for error in protocol.ErrorClass)


def checked(request: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    """The reply; raises `inbox.Nonsense` where it has not the fields that the request asks for."""
    if not inbox.is_seconds(reply.get("seconds")):
        raise inbox.Nonsense("no duration")
    if "error" in reply:
        message = reply.get("message")
        if reply["error"] not in _ERRORS or not isinstance(message, str):
            raise inbox.Nonsense("an error of no known class")
        return reply | {"message": message[:_MAX_CHARACTERS]}
    match request["verb"]:
        case "build" | "build_cuda":
            _check_library(request, reply, SUFFIXES)
        case "reference":
            if request["check"] or reply.get("library") != "":
                _check_library(request, reply, REFERENCE_SUFFIXES)
            _check_description(reply.get("description"))
        case "run":
            latencies_us = reply.get("latencies_us")
            if not isinstance(latencies_us, list) or not latencies_us:
                raise inbox.Nonsense("no latencies")
            if not all(_is_latency(latency_us) for latency_us in latencies_us):
                raise inbox.Nonsense("a latency that is none")
            if not isinstance(reply.get("checked"), bool):
                raise inbox.Nonsense("nothing about the check")
    return reply


def _check_library(
    request: dict[str, Any], reply: dict[str, Any], suffixes: Sequence[str]
) -> None:
    # the parent deletes the file later, so it has to be the one that was asked for
    if reply.get("library") not in [request["stem"] + suffix for suffix in suffixes]:
        raise inbox.Nonsense("a library elsewhere")
    if not pathlib.Path(reply["library"]).is_file():
        raise inbox.Nonsense("no library")


def _check_description(text: Any) -> None:
    try:
        description.Description.from_json(text)
    except (TypeError, ValueError):
        raise inbox.Nonsense("what is no description of a task") from None


def _is_latency(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
