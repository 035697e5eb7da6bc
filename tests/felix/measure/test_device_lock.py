"""The lock file of a GPU: for all users of a machine, and what is said where it cannot be had."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from felix import errors, files
from felix.measure import locks
from felix.runner.cuda import devices


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _as_other_user(monkeypatch: pytest.MonkeyPatch, *, may_read: bool) -> None:
    """Files that are there can be read at most, and O_CREAT is refused for them as in /tmp."""
    true_open = os.open

    def opened(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        writes = flags & (os.O_RDWR | os.O_WRONLY)
        creates = flags & os.O_CREAT and not flags & os.O_EXCL
        if os.path.exists(path) and (creates or (writes and not flags & os.O_EXCL)):
            raise PermissionError(13, "Permission denied", path)
        if os.path.exists(path) and not writes and not may_read:
            raise PermissionError(13, "Permission denied", path)
        return true_open(path, flags, mode, **rest)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_every_user_may_use_a_new_lock(tmp_path: pathlib.Path, mask: int) -> None:
    lock = locks.DeviceLock(tmp_path / "device.lock")
    with _umask(mask):
        lock.acquire()
    lock.release()
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666


def test_a_file_that_is_there_keeps_its_mode(tmp_path: pathlib.Path) -> None:
    lock = locks.DeviceLock(tmp_path / "device.lock")
    lock.path.touch(0o600)
    lock.acquire()
    lock.release()
    assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600


def test_a_file_of_another_user_that_can_be_read_is_enough(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (locks.DeviceLock(tmp_path / "device.lock") for _ in range(2))
    first.acquire()
    _as_other_user(monkeypatch, may_read=True)
    second.check()  # does not wait
    first.release()
    second.acquire()
    second.release()


def test_a_file_that_cannot_be_opened_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = locks.DeviceLock(tmp_path / "device.lock")
    lock.path.touch()
    _as_other_user(monkeypatch, may_read=False)
    for attempt in (lock.check, lock.acquire):
        with pytest.raises(errors.MeasureError, match=r"device\.lock.*Permission denied.*remove"):
            attempt()
    lock.release()


def test_a_gpu_whose_lock_cannot_be_had_is_refused_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "bus_id", lambda index: "0000:01:00.0")
    monkeypatch.setenv(files.LOCKS_VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(errors.MeasureError, match=r"0000:01:00\.0\.lock"):
        locks.for_gpu()
    with locks.alone_on("cpu"):  # needs no lock
        pass


def test_locks_are_with_temporary_files_unless_a_variable_says_where(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(files.LOCKS_VARIABLE, raising=False)
    assert str(files.device_lock("x").parent) == tempfile.gettempdir()
    monkeypatch.setenv(files.LOCKS_VARIABLE, str(tmp_path))
    assert files.device_lock("x").parent == tmp_path
