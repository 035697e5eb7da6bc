"""What an engine's process and its tuner send each other over one pipe.

An engine computes on programs of clients, so nothing that comes from it is unpickled: a message
is a JSON text, `[verb, argument, ...]`, and an attachment of bytes. A tuner is trusted and sends
pickled tuples:

    ("run", job)  ("export", job, path)  ("network", job, path)  ("yield",)  ("stop",)
    ("value", value)  ("refused", message)

A verb of `job_access.JobAccess` waits for `value` or `refused`; those of `Verb` do not.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import pathlib
import stat
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from felix import errors
from server.store import progress

#: A longer message ends its engine, in bytes.
MAX_BYTES = 256 << 20


class Verb(enum.StrEnum):
    """What an engine's process says about itself; nobody replies."""

    #: devices, versions
    READY = "ready"
    #: conditions of its devices (`felix.measure.readings`)
    ALIVE = "alive"
    #: what is done from now on
    STEP = "step"
    #: reason, failure
    ENDED = "ended"
    #: `artifacts.Code` of each task as JSON
    EXPORTED = "exported"
    #: class, message
    FAILED = "failed"
    #: `networks.Built` as JSON
    BUILT = "built"


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """What came from an engine's process."""

    verb: str
    arguments: list[Any]
    attachment: bytes


class EngineFailure(Exception):
    """An error in the engine's process that is neither Felix's nor the system's."""


def send(connection: Connection, verb: str, *arguments: Any, attachment: bytes = b"") -> None:
    """Send a message to the tuner."""
    connection.send_bytes(json.dumps([verb, *arguments]).encode())
    connection.send_bytes(attachment)


def receive(connection: Connection) -> Message:
    """Wait for a message of an engine's process.

    Raises:
        EOFError, OSError: it is gone, or sent too much.
        ValueError, TypeError: what it sent is no message.
    """
    verb, *arguments = json.loads(connection.recv_bytes(MAX_BYTES))
    return Message(str(verb), arguments, connection.recv_bytes(MAX_BYTES))


def encoded(verb: str, arguments: Sequence[Any]) -> tuple[Sequence[Any], bytes]:
    """The arguments of a verb of `job_access.JobAccess` as JSON has them, and an attachment."""
    match verb, arguments:
        case "save", [checkpoint, *rest]:
            tensors = checkpoint.tensors
            fields = [checkpoint.n_records, checkpoint.state, tensors is not None]
            return [*fields, *rest], tensors or b""
    return arguments, b""


def decoded(message: Message) -> Sequence[Any]:
    """What `encoded` was given."""
    match message.verb, message.arguments:
        case "save", [n_records, state, has_tensors, *rest]:
            tensors = message.attachment if has_tensors else None
            return [progress.Checkpoint(n_records, state, tensors), *rest]
    return message.arguments


def error_of(name: str, message: str) -> Exception:
    """The error that an engine's process reports, of a class that `server.tuner.tuner` knows."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.FelixError):
        return kind(message)
    if name == "MemoryError":
        return MemoryError(message)
    if name == "OSError":
        return OSError(message)
    return EngineFailure(f"{name}: {message}")


def name_of(error: BaseException) -> str:
    """The class of an error as `error_of` knows it."""
    return "OSError" if isinstance(error, OSError) else type(error).__name__


#: A larger file is no artifact, in bytes.
MAX_FILE_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 20


def copy_untrusted(made: pathlib.Path, path: pathlib.Path) -> None:
    """Copy a plain file to `path` and remove it; what it links to is never read.

    Raises:
        EngineFailure: there is no such file, or it is none that an engine writes.
        OSError: `path` cannot be written.
    """
    try:
        # A pipe would wait for a writer.
        source = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise EngineFailure(f"the engine left no artifact: {error.strerror}") from error
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise EngineFailure("what the engine left is no artifact")
        with open(path, "wb") as to:
            left = status.st_size  # it may grow meanwhile
            while left and (chunk := os.read(source, min(left, _CHUNK_BYTES))):
                to.write(chunk)
                left -= len(chunk)
    finally:
        os.close(source)
    made.unlink(missing_ok=True)
