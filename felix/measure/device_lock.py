"""One user of a GPU at a time, across the processes of a machine.

Two kernels on one device share its clock, caches and SMs, so neither time means anything. Every
pool that measures on a GPU takes the device's lock file around what it does there; pools of
other processes wait. The kernel drops the lock of a process that dies. Feeds `local`.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import tempfile

from felix.measure import cuda_driver


class DeviceLock:
    """An exclusive lock on a file; held by one thread of one process."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Wait until nobody else has it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self._fd = fd

    def release(self) -> None:
        """Let the next one in."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def for_device(device: str) -> DeviceLock:
    """The lock of a device ("cpu": of nothing that others use)."""
    name = cuda_driver.bus_id(0) if device == "cuda" else f"{device}-{os.getpid()}"
    return DeviceLock(pathlib.Path(tempfile.gettempdir(), f"felix-device-{name}.lock"))
