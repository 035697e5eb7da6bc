"""A file that an engine has written, copied to where the engine cannot change it."""

from __future__ import annotations

import os
import pathlib
import stat

from server.tuner.process import messages

#: A larger file is no artifact, in bytes.
MAX_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 20


def copy(made: pathlib.Path, path: pathlib.Path) -> None:
    """Copy a plain file to `path` and remove it; what it links to is never read.

    Raises:
        EngineFailure: there is no such file, or it is none that an engine writes.
        OSError: `path` cannot be written.
    """
    try:
        # A pipe would wait for a writer.
        source = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise messages.EngineFailure(f"the engine left no artifact: {error.strerror}") from error
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise messages.EngineFailure("what the engine left is no artifact")
        with open(path, "wb") as to:
            left = status.st_size  # it may grow meanwhile
            while left and (chunk := os.read(source, min(left, _CHUNK_BYTES))):
                to.write(chunk)
                left -= len(chunk)
    finally:
        os.close(source)
    made.unlink(missing_ok=True)
