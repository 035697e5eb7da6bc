"""Files that appear whole or not at all, whenever the process is stopped; places of files."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import uuid
from collections.abc import Iterator
from typing import BinaryIO

#: Mode of a new file, less what the umask takes away.
MODE = 0o666
#: The folder of devices' locks.
LOCKS_VARIABLE = "FELIX_LOCK_DIR"


def cache_folder() -> pathlib.Path:
    """Where results are that can be computed again: `$FELIX_CACHE_DIR` or `~/.cache/felix`."""
    base = os.environ.get("FELIX_CACHE_DIR")
    return pathlib.Path(base or pathlib.Path.home() / ".cache" / "felix").absolute()


def device_lock(name: str) -> pathlib.Path:
    """The lock of a device (or a pattern): in `$FELIX_LOCK_DIR`, or with temporary files.

    Processes whose folder of temporary files is not the machine's have the variable.
    """
    folder = os.environ.get(LOCKS_VARIABLE) or tempfile.gettempdir()
    return pathlib.Path(folder, f"felix-device-{name}.lock").absolute()


def write_atomically(
    path: pathlib.Path, data: bytes | str, *, durable: bool = True, mode: int = MODE
) -> None:
    """Replace `path` by `data` (text as UTF-8); its folder must exist.

    Args:
        path: the file.
        data: its new content.
        durable: whether the content is on the disk before it takes its place.
        mode: of the new file.

    Raises:
        OSError: it cannot be written; `path` is as it was.
    """
    with replacing(path, durable=durable, mode=mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def replacing(path: pathlib.Path, *, durable: bool = True, mode: int = MODE) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends without an error."""
    with temporary(path.parent, mode=mode) as (file, part):
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        part.replace(path)


@contextlib.contextmanager
def temporary(
    folder: pathlib.Path, *, mode: int = MODE
) -> Iterator[tuple[BinaryIO, pathlib.Path]]:
    """A new file in `folder` and its path; the block moves it, or it vanishes with the block."""
    part = folder / f".part-{uuid.uuid4().hex}"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(handle, "wb") as file:
            yield file, part
    finally:
        part.unlink(missing_ok=True)
