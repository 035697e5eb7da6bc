"""Messages of a worker, read by a parent that trusts nothing of it.

A message is JSON, so reading one runs no code, and it is taken apart only when all of it is there:
a worker that sends half a message, or none, delays nobody. Pickles go the other way only.

A tuner's process imports this and loads no numpy.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import select
import struct
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from felix.runner import protocol

#: The longest message that a worker may send.
MAX_BYTES = 1 << 20
_HEADER = struct.Struct("!i")
_CHUNK_BYTES = 65536


class Nonsense(Exception):
    """The worker sent what no worker sends."""


class Inbox:
    """Assembles the messages that come over a pipe."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._bytes = b""

    def receive(self, wait_s: float) -> tuple[str, Any] | None:
        """The next message as its kind and content; None if it is not here in that time.

        Raises:
            EOFError, OSError: the worker is gone.
            Nonsense: it is not one of a worker.
        """
        message = self._message()
        if message is None and select.select([self._conn], [], [], wait_s)[0]:
            chunk = os.read(self._conn.fileno(), _CHUNK_BYTES)
            if not chunk:
                raise EOFError
            self._bytes += chunk
            message = self._message()
        return message

    def _message(self) -> tuple[str, Any] | None:
        if len(self._bytes) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._bytes)
        if not 0 <= size <= MAX_BYTES:
            raise Nonsense(f"a message of {size} bytes")
        end = _HEADER.size + size
        if len(self._bytes) < end:
            return None
        text, self._bytes = self._bytes[_HEADER.size : end], self._bytes[end:]
        try:
            kind, content = json.loads(text, parse_int=float)  # of any length
        except (ValueError, TypeError, RecursionError):
            raise Nonsense("a message that is no pair in JSON") from None
        if not isinstance(kind, str) or kind not in _CONTENT or not _CONTENT[kind](content):
            raise Nonsense("a message of no known kind")
        return kind, content


def send(conn: Connection, kind: str, content: Any = None) -> None:
    """Send a message, as a worker."""
    conn.send_bytes(json.dumps([kind, content]).encode())


def is_seconds(value: Any) -> bool:
    """Whether a value is a duration."""
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


#: Kinds of messages, and whether a content is one of theirs.
_CONTENT: dict[str, Callable[[Any], bool]] = {
    "started": lambda content: content is None,
    "quiet": lambda content: content is None,
    "resting": is_seconds,
    "done": lambda content: isinstance(content, dict),
}


# Whether a worker's reply is one to its request; a worker that was taken over may send any.

#: Longer messages of an error are cut.
_MAX_CHARACTERS = 1000
#: Suffixes of what builds make.
SUFFIXES = (".so", ".ll", ".cubin")
#: And of references.
REFERENCE_SUFFIXES = (*SUFFIXES, protocol.OUTPUTS)
_ERRORS = frozenset(error.value for error in protocol.ErrorClass)


def checked(request: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    """The reply; raises `inbox.Nonsense` where it has not the fields that the request asks for."""
    if not is_seconds(reply.get("seconds")):
        raise Nonsense("no duration")
    if "error" in reply:
        message = reply.get("message")
        if reply["error"] not in _ERRORS or not isinstance(message, str):
            raise Nonsense("an error of no known class")
        return reply | {"message": message[:_MAX_CHARACTERS]}
    match request["verb"]:
        case "build" | "build_cuda":
            _check_library(request, reply, SUFFIXES)
        case "reference":
            _check_library(request, reply, REFERENCE_SUFFIXES)
            _check_description(reply.get("description"))
        case "run":
            latencies_us = reply.get("latencies_us")
            if not isinstance(latencies_us, list) or not latencies_us:
                raise Nonsense("no latencies")
            if not all(is_seconds(us) and us > 0 for us in latencies_us):
                raise Nonsense("a latency that is none")
    return reply


def _check_library(
    request: dict[str, Any], reply: dict[str, Any], suffixes: Sequence[str]
) -> None:
    # the parent deletes the file later, so it has to be the one that was asked for
    if reply.get("library") not in [request["stem"] + suffix for suffix in suffixes]:
        raise Nonsense("a library elsewhere")
    if not pathlib.Path(reply["library"]).is_file():
        raise Nonsense("no library")


def _check_description(text: Any) -> None:
    from felix.runner import description  # loads numpy, which a server does not have

    try:
        description.Description.from_json(text)
    except (TypeError, ValueError):
        raise Nonsense("what is no description of a task") from None
