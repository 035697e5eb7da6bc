"""One user of a GPU at a time, across the processes and users of a machine.

Two kernels on one device share its clock, caches and SMs, so neither time means anything. Every
pool that measures on a GPU takes the device's lock file around what it does there; pools of
other processes wait. The kernel drops the lock of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import pathlib

from felix import errors, files
from felix.measure.cuda import devices


class DeviceLock:
    """An exclusive lock on a file; held by one thread of one process."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._fd: int | None = None

    def check(self) -> None:
        """Make sure that it can be had, without waiting for it.

        Raises:
            MeasureError: no; says what to do.
        """
        os.close(self._open())

    def acquire(self) -> None:
        """Wait until nobody else has it; raises what `check` does."""
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            os.close(fd)
            raise self._refused("lock", error) from error
        self._fd = fd

    def release(self) -> None:
        """Let the next one in."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        try:
            return _opened(self.path)
        except OSError as error:
            raise self._refused("open", error) from error

    def _refused(self, what: str, error: OSError) -> errors.MeasureError:
        return errors.MeasureError(
            f"cannot {what} {self.path}, by which those who measure on one GPU take turns "
            f"({error.strerror}): its owner has to remove it or make it readable by all, "
            f"or set {files.LOCKS_VARIABLE} to another folder for all of them"
        )


def for_device(device: str, index: int = 0) -> DeviceLock:
    """The lock of a device ("cpu": of nothing that others use); raises what `check` does."""
    name = devices.bus_id(index) if device == "cuda" else f"{device}-{os.getpid()}"
    lock = DeviceLock(files.device_lock(name))
    if device == "cuda":
        lock.check()
    return lock


def _opened(path: pathlib.Path) -> int:
    """A descriptor of the file, which another user may have made.

    It is made for all users, whatever the umask. One that is there is opened without O_CREAT,
    which Linux refuses for files of others in /tmp, and if need be for reading: that is enough
    to lock it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        pass
    else:
        os.fchmod(fd, 0o666)
        return fd
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
