"""What a worker uses beyond what the kernel limits: disk in all, and processes in all."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import stat
from collections.abc import Sequence

from felix.processes import tree

#: More files and folders than this are too many, whatever their size.
MAX_FILES = 20_000
_BLOCK_BYTES = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Allowance:
    """What one worker may use: bytes in `folders`, its log and files without a name; processes."""

    folders: Sequence[str]
    log: pathlib.Path
    limit_bytes: int
    processes: int

    def exceeded(self, pid: int) -> str | None:
        """What worker `pid` uses too much of, in words; None if nothing."""
        used_bytes = _unnamed_bytes(pid) + _size(self.log)
        n_files = 0
        waiting = list(self.folders)
        while waiting and n_files <= MAX_FILES and used_bytes <= self.limit_bytes:
            try:
                entries = _entries(waiting.pop())
            except OSError as error:  # too deep, say
                return f"it made a folder that cannot be read ({error.strerror})"
            n_files += len(entries)
            used_bytes += sum(size_bytes for _, _, size_bytes in entries)
            waiting += [path for is_folder, path, _ in entries if is_folder]
        if used_bytes > self.limit_bytes:
            return f"it wrote more than {self.limit_bytes >> 20} MiB"
        if n_files > MAX_FILES:
            return f"it made more than {MAX_FILES} files"
        if len(descendants(pid, self.processes)) >= self.processes:
            return f"it started more than {self.processes - 1} processes"
        return None

    def clear(self) -> None:
        """Remove all that a worker, which has ended, has left."""
        self.log.unlink(missing_ok=True)
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError):  # the pool is closed
                for path in list(pathlib.Path(folder).iterdir()):
                    tree.remove(path)


def descendants(pid: int, limit: int) -> list[int]:
    """Processes that a process and its children have started and that are there; about `limit`."""
    waiting: list[int] = [pid]
    pids: list[int] = []
    while waiting and len(pids) < limit:
        parent = waiting.pop()
        try:
            threads = os.listdir(f"/proc/{parent}/task")
            texts = [
                pathlib.Path(f"/proc/{parent}/task/{thread}/children").read_text()
                for thread in threads
            ]
        except OSError:
            continue  # it has ended, or this kernel does not tell
        children = [int(child) for text in texts for child in text.split()]
        waiting += children
        pids += children
    return pids


def _entries(folder: str) -> list[tuple[bool, str, int]]:
    """Whether each entry of a folder is a folder, its path, and its bytes on disk."""
    entries: list[tuple[bool, str, int]] = []
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                if len(entries) > MAX_FILES:
                    break
                status = entry.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                entries.append((is_folder, entry.path, status.st_blocks * _BLOCK_BYTES))
    except FileNotFoundError:
        pass  # it has gone meanwhile
    return entries


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _unnamed_bytes(pid: int) -> int:
    """Bytes of open files that no folder has any more."""
    total_bytes = 0
    with contextlib.suppress(OSError):  # the worker is gone
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                status = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                    total_bytes += status.st_blocks * _BLOCK_BYTES
    return total_bytes
