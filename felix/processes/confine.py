"""Confine this process: what it may read, write, start, reach and use, before hostile bytes come.

    confine.confine(policy.Policy(folder=folder, scratch=[folder]), keep_files=[pipe])

Three mechanisms of Linux stand one behind the other, none of which needs a privilege: Landlock
(files, TCP, signals), seccomp (system calls) and resource limits. All privileges are dropped.
Namespaces are not used: they need root or a setting of the system, and what they would hide cannot
be reached through the other two.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import functools
import logging
import os
import pathlib
import resource
import shutil
import site
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator

from felix.processes import landlock, seccomp, syscalls
from felix.processes import policy as policies

# Privileges, open files and resources of this process, given up for good.

_PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 38, 24, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522


def close_files(others_than: Collection[int]) -> None:
    """Close every descriptor but these and those of standard input, output and error."""
    for fd in [int(name) for name in os.listdir("/dev/fd")]:
        if fd > 2 and fd not in others_than:
            with contextlib.suppress(OSError):  # that of the listing is closed
                os.close(fd)


def set_resources(policy: policies.Policy) -> None:
    """The limits of a policy; what is stricter already stays."""
    for number, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, policy.file_bytes),
        (resource.RLIMIT_AS, policy.address_bytes),
        (resource.RLIMIT_DATA, policy.data_bytes),
        (resource.RLIMIT_CPU, policy.cpu_s),
        (resource.RLIMIT_NOFILE, policy.open_files),
    ):
        if limit is None:
            continue
        hard = resource.getrlimit(number)[1]
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (lower, lower))


def drop_privileges() -> None:
    """No capabilities, not even by a program that would give them."""
    syscalls.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    with contextlib.suppress(OSError):  # kernels before 4.3 have none
        syscalls.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    with contextlib.suppress(OSError):  # the first that does not exist, or without a privilege
        for capability in range(64):
            syscalls.prctl(_PR_CAPBSET_DROP, capability)
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    syscalls.call("capset", header, ctypes.create_string_buffer(24))


_log = logging.getLogger(__name__)

_LIBRARIES = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/share",
    "/usr/include",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
)
_PROGRAMS = ("/bin", "/usr/bin", "/usr/local/bin")
#: About the machine; nothing of other processes.
_KERNEL = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/filesystems",
    "/proc/sys/vm",
    "/sys/devices/system",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
)
_SINKS = ("/dev/null",)


@dataclasses.dataclass(frozen=True, slots=True)
class Confinement:
    """The mechanisms that hold a process, or that this system has."""

    #: Version of Landlock; None without.
    landlock_abi: int | None
    seccomp: bool

    @property
    def missing(self) -> tuple[str, ...]:
        """What this system lacks, and what a confined process may do therefore; empty if none."""
        lacks = {
            "no Landlock (Linux 5.13 with CONFIG_SECURITY_LANDLOCK): files are "
            "protected by their permissions alone": self.landlock_abi is None,
            "Landlock 1, with which nobody can move files (2 is in Linux 5.19): "
            "from engines, files are protected by permissions alone": self.landlock_abi == 1,
            "no seccomp filters for this system: sockets, signals and other "
            "processes are protected by the user's rights alone": not self.seccomp,
        }
        return tuple(lack for lack, is_so in lacks.items() if is_so)

    def __str__(self) -> str:
        parts = [] if self.landlock_abi is None else [f"Landlock {self.landlock_abi}"]
        parts += ["seccomp"] if self.seccomp else []
        return ", ".join([*parts, "resource limits"])


def available() -> Confinement:
    """What this system has; `confine` applies all of it."""
    return Confinement(landlock.abi(), seccomp.available())


@functools.cache
def warn_of_missing() -> None:
    """Say once in the log of this process what the system lacks."""
    for lack in available().missing:
        _log.warning(
            "processes that meet clients' programs are confined less than they could be: %s",
            lack,
            extra={"action": "confinement_missing"},
        )


def confine(policy: policies.Policy, keep_files: Collection[int] = ()) -> Confinement:
    """Confine this process and what it starts, for good; call it before there are threads.

    Args:
        policy: the rights.
        keep_files: open descriptors to keep, beside those of standard input, output and error.

    Returns:
        What is in force: all that the system has.

    Raises:
        OSError: a mechanism that the system has could not be applied.
    """
    held_by = _usable(available(), policy)
    close_files(keep_files)
    os.chdir(policy.folder)
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR"), policy.folder))
    tempfile.tempdir = None  # Python has asked for it before, perhaps
    set_resources(policy)
    if not syscalls.supported():
        return held_by
    drop_privileges()
    if held_by.landlock_abi is not None:
        landlock.restrict(_rights(policy), held_by.landlock_abi)
    if held_by.seccomp:
        seccomp.restrict(policy)
    return held_by


def _usable(there: Confinement, policy: policies.Policy) -> Confinement:
    """What of a system's mechanisms this policy can use; see `Confinement.missing`."""
    if policy.leads and there.landlock_abi == 1:
        return dataclasses.replace(there, landlock_abi=None)
    return there


def _rights(policy: policies.Policy) -> dict[str, int]:
    libraries = [*_LIBRARIES, *_of_python()]
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"):
        libraries += filter(None, os.environ.get(name, "").split(os.pathsep))
    groups: list[tuple[Iterable[str], int]] = [
        (libraries, landlock.READ),
        ((*_KERNEL, *policy.read, policy.folder), landlock.READ),
        (_SINKS, landlock.READ | landlock.WRITE_FILE),
        (policy.devices, landlock.DEVICE),
        (policy.scratch, landlock.SCRATCH),
        (policy.names, landlock.READ_DIR),
    ]
    if policy.programs:
        programs = [*_PROGRAMS, *_of_compilers(), *libraries, *policy.execute]
        groups.append((programs, landlock.READ | landlock.EXECUTE))
    rights: dict[str, int] = collections.defaultdict(int)
    for paths, allowed in groups:
        for path in paths:
            rights[path] |= allowed
    return rights


def _of_python() -> Iterator[str]:
    """Folders of the standard library, of installed packages and of those that are loaded.

    A folder that merely holds packages, such as a checkout, is not readable as a whole.
    """
    yield from {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    yield from (*site.getsitepackages(), site.getusersitepackages())
    yield str(pathlib.Path(sys.base_prefix, "lib"))
    # Not of submodules: to ask one that loads when it is used (`tvm.relax`) for its spec is a use.
    for module in [module for name, module in sys.modules.items() if "." not in name]:
        spec = getattr(module, "__spec__", None)
        if spec is not None:
            yield from spec.submodule_search_locations or ()


def _of_compilers() -> Iterator[str]:
    """Folders of the linker and of compilers that lie elsewhere."""
    for name in ("ld", os.environ.get("CC", "cc"), os.environ.get("CXX", "c++"), "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            yield from (os.path.dirname(path), os.path.dirname(os.path.realpath(path)))


# Whether something works in a confined process, which is found out by trying it.
#
#     outcome = confine.decide(attempt)
#
# A failure alone says nothing: a driver may be missing, a device full. So what failed in a
# confined process is tried in one that is not, and, if it works there, in a confined one once
# more.


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What attempts in confined and in other processes say together.

    Attributes:
        is_in_the_way: whether it works only in a process that is not confined.
        reason: the error of the confined process then, else of the other, in which it does not
            work either; None where it works confined.
    """

    is_in_the_way: bool
    reason: str | None


def decide(attempt: Callable[[bool], str | None]) -> Finding:
    """Try something until it is clear whether confinement is in its way.

    Args:
        attempt: tries it in a fresh process, a confined one if its argument says so; returns what
            failed, or None. An attempt that worked may leave its process for use, if it is the
            last one.
    """
    refused = attempt(True)
    if refused is None:
        return Finding(False, None)
    failed = attempt(False)
    if failed is not None:
        return Finding(False, failed)
    refused = attempt(True)  # what was there for a moment only is not confinement's doing
    return Finding(refused is not None, refused)
