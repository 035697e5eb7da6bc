"""What the workers of a pool may do: a policy of its own for each kind.

A builder writes into a folder of its own, from which the pool takes the library, and may start a
linker. A run worker writes references into `tasks` and reads libraries; no worker writes where the
results of another are. On a GPU a run worker also uses the driver's devices, by `cuda_runner`, the
one place to widen for a driver that needs more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import pathlib
import shutil
import stat
from collections.abc import Sequence

from felix.processes import child as processes
from felix.processes import policy

#: The largest file of a build; libraries and cubins have up to a few MB.
BUILD_FILE_BYTES = 256 << 20
#: Processes of a builder at a time: itself, a compiler's driver, `collect2`, `ld` and its plugin.
BUILD_PROCESSES = 16
#: Scratch of a pool: at most this, and at most half of what is free.
MAX_SCRATCH_BYTES = 32 << 30

#: Devices of NVIDIA's driver: GPUs, `nvidiactl`, `nvidia-uvm` and `nvidia-uvm-tools` (the refusal
#: of which fails `cuInit` from driver 570 on), `nvidia-modeset`; rights to parts of a GPU (MIG);
#: memory and engines of Tegra; the GPU of Windows under WSL 2.
_NVIDIA_DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps", "/dev/nvmap", "/dev/nvhost*", "/dev/dxg")
#: What the driver's libraries read, with the reason.
_NVIDIA_FILES = (
    "/usr/local/cuda*",
    "/usr/local/nvidia",  # libraries, as installers and containers put them
    "/proc/driver",  # the module's parameters, GPUs, rights; of UVM, too, from driver 570 on
    "/proc/devices",  # the number of the UVM device
    "/proc/modules",
    "/sys/module",  # whether the modules are loaded, and which version
    "/proc/sys/kernel",  # the kernel's version and limits of shared memory
    "/sys/bus",
    "/sys/class",
    "/sys/devices",  # the GPU's PCI address and NUMA node; memory blocks
    "/etc/nvidia",
    "/usr/share/nvidia",  # settings for applications
    "/run/nvidia",  # where the driver lies beside containers
)
#: Folders whose names these patterns, and NVRTC's search for its libraries, ask for.
NVIDIA_FOLDERS = ("/dev", "/usr/local")


@dataclasses.dataclass(frozen=True, slots=True)
class Folders:
    """The folders of a pool, and how many bytes its workers may have in them."""

    builds: pathlib.Path
    libraries: pathlib.Path
    tasks: pathlib.Path
    limit_bytes: int

    @classmethod
    def make(cls, work_dir: pathlib.Path, limit_bytes: int | None) -> Folders:
        """Make them; None: as `MAX_SCRATCH_BYTES` says."""
        builds, libraries, tasks = (work_dir / name for name in ("builds", "libraries", "tasks"))
        for folder in (builds, libraries, tasks):
            folder.mkdir()
        half = shutil.disk_usage(work_dir).free // 2
        return cls(builds, libraries, tasks, limit_bytes or min(MAX_SCRATCH_BYTES, half))

    def of_builder(self, index: int) -> pathlib.Path:
        """The folder of one builder."""
        folder = self.builds / str(index)
        folder.mkdir(exist_ok=True)
        return folder

    def of_runner(self, device: int) -> pathlib.Path:
        """The folder of the run worker of a device of the pool."""
        folder = self.tasks / str(device)
        folder.mkdir(exist_ok=True)
        return folder

    def of_task(self, device: int, number: int) -> pathlib.Path:
        """Where a device has the references of a task; its run worker makes the folder."""
        return self.of_runner(device) / f"task-{number}"


def builder(folders: Folders, index: int, memory_bytes: int | None) -> policy.Policy:
    """Of a process that compiles and links, for CPUs and for GPUs; it sees no device."""
    folder = str(folders.of_builder(index))
    return policy.Policy(
        folder=folder,
        scratch=[folder],
        read=glob.glob("/usr/local/cuda*"),
        names=["/usr/local"],
        programs=True,
        file_bytes=min(BUILD_FILE_BYTES, folders.limit_bytes),
        address_bytes=memory_bytes,
    )


def cpu_runner(folders: Folders, device: int = 0) -> policy.Policy:
    """Of a process that computes references and runs candidates on the CPU."""
    folder = str(folders.of_runner(device))
    return policy.Policy(
        folder=folder,
        scratch=[folder],
        read=[str(folders.libraries)],
        file_bytes=folders.limit_bytes,
        data_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def cuda_runner(folders: Folders, device: int = 0) -> policy.Policy:
    """Of a process that also uses an NVIDIA GPU.

    The driver reserves more address space than there is memory and opens a device many times. It
    ends `cuInit` with an error if it may not name its threads (`comm` in `/proc/self/task`, which
    it opens to be emptied) or make files in memory, and makes a local socket to look for an MPS
    server.
    """
    folder = str(folders.of_runner(device))
    return policy.Policy(
        folder=folder,
        scratch=[folder],
        read=[str(folders.libraries), *nvidia_files()],
        names=["/usr/local"],
        devices=[*nvidia_devices(), "/proc/self/task"],
        local_sockets=True,
        memory_files=True,
        file_bytes=folders.limit_bytes,
        open_files=4096,
    )


def nvidia_devices() -> list[str]:
    """Devices of NVIDIA's driver on this machine; empty where there is no GPU of theirs."""
    return [path for pattern in _NVIDIA_DEVICES for path in glob.glob(pattern)]


def nvidia_files() -> list[str]:
    """What the driver and its libraries read, as far as it is there."""
    return [path for pattern in _NVIDIA_FILES for path in glob.glob(pattern)]


# What a worker uses beyond what the kernel limits: disk in all, and processes in all.

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
                    processes.remove_tree(path)


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
