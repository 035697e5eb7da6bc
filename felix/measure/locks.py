"""Locks that keep timing apart from everything else: of a machine's cores, and of each of its
GPUs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import threading
from collections.abc import Iterator

from felix import errors, files
from felix.runner.cuda import devices

# A lock that keeps timing and everything else that needs the same cores apart.
#
# A two-thread kernel timed while two other processes compute takes 2.2 to 2.7 times as long, and
# 2.2 times as long even when those run at the lowest priority (`nice` 19): one of the kernel's
# threads waits for a core while the other spins. Builders are therefore stopped while a kernel
# is timed (see `local`); threads of the tuner itself share this lock instead.
#
#     with lock.shared():      # one optimiser step, say: short, so that timing waits little
#         ...


class ReadWriteLock:
    """Many may hold it shared, or one exclusively; who waits for exclusive goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shared = 0
        self._waiting = 0
        self._exclusive = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold it together with others, while nobody holds it exclusively."""
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive and not self._waiting)
            self._shared += 1
        try:
            yield
        finally:
            with self._changed:
                self._shared -= 1
                self._changed.notify_all()

    def acquire(self) -> None:
        """Wait until nobody shares it, and hold it exclusively."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._exclusive and not self._shared)
            self._waiting -= 1
            self._exclusive = True

    def release(self) -> None:
        """Let others share it again."""
        with self._changed:
            self._exclusive = False
            self._changed.notify_all()


# One user of a GPU at a time, across the processes and users of a machine.
#
# Two kernels on one device share its clock, caches and SMs, so neither time means anything.
# Every pool that measures on a GPU takes the device's lock file around what it does there; pools
# of other processes wait. The kernel drops the lock of a process that dies.


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


def for_gpu(index: int = 0) -> DeviceLock:
    """The lock of a GPU; raises what `check` does."""
    lock = DeviceLock(files.device_lock(devices.bus_id(index)))
    lock.check()
    return lock


@contextlib.contextmanager
def alone_on(device: str) -> Iterator[None]:
    """Nobody else measures on the first GPU until the block ends; nothing for another device."""
    if device != "cuda":
        yield
        return
    lock = for_gpu()
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


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
