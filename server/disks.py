"""Whether a folder's disk takes data: asked by writing some."""

from __future__ import annotations

import errno
import pathlib

from felix import files
from server import errors, private_files

#: Less than this is as good as nothing: a job's rows and its artifact need more.
LEAST_BYTES = 1 << 20

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def check(folder: pathlib.Path, what: str) -> None:
    """Write a file of `LEAST_BYTES` and remove it.

    Args:
        folder: where.
        what: the folder in words, for the message: a path is nobody's business.

    Raises:
        DiskUnusable: the disk is full, or cannot be written.
    """
    try:
        private_files.make_folder(folder)
        with files.temporary(folder, mode=0o600) as (file, _):
            file.write(bytes(LEAST_BYTES))
            file.flush()
    except OSError as error:
        reason = "is full" if error.errno in _FULL else f"cannot be written ({error.strerror})"
        raise errors.DiskUnusable(f"the disk of {what} {reason}") from error
