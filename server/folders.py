"""Files and folders that only the service's user can read, on disks that take data.

Folders are made with mode 0700 and files with 0600, whatever the umask is. What is there already
and is wider is tightened when it is opened, and a log line says so.
"""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import stat

from felix import files
from server import errors

_log = logging.getLogger(__name__)

#: Rights of the group and of all others.
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_folder(path: pathlib.Path) -> None:
    """Make a folder, and the ones above it, unless it is there."""
    for folder in reversed((path, *path.parents)):
        folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def make_file(path: pathlib.Path) -> None:
    """Make an empty file, or tighten the one that is there."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR))
    except FileExistsError:
        tighten(path)


def tighten(path: pathlib.Path) -> None:
    """Take the rights of other users away, if the path exists.

    A folder that users share (it has the sticky bit, as `/tmp`) and what belongs to another user
    stay as they are, with a warning.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if not status.st_mode & _OTHERS:
        return
    if status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX:
        _log.warning(
            "other users can read %s: give the service a folder of its user's own",
            path,
            extra={"action": "open_to_others"},
        )
        return
    path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
    _log.warning(
        "%s was open to other users and is its user's alone now",
        path,
        extra={"action": "tightened"},
    )


#: Less than this is as good as nothing: a job's rows and its artifact need more.
LEAST_BYTES = 1 << 20

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def check_disk(folder: pathlib.Path, what: str) -> None:
    """Write a file of `LEAST_BYTES` and remove it.

    Args:
        folder: where.
        what: the folder in words, for the message: a path is nobody's business.

    Raises:
        DiskUnusable: the disk is full, or cannot be written.
    """
    try:
        make_folder(folder)
        with files.temporary(folder, mode=0o600) as (file, _):
            file.write(bytes(LEAST_BYTES))
            file.flush()
    except OSError as error:
        reason = "is full" if error.errno in _FULL else f"cannot be written ({error.strerror})"
        raise errors.DiskUnusable(f"the disk of {what} {reason}") from error
