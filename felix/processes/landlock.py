"""Landlock: the kernel refuses a process every file, port and signal that no rule allows.

The rules hold for the calling thread and all that it starts, for good. See
https://docs.kernel.org/userspace-api/landlock.html. A kernel has a version of the interface (its
ABI): 1 has files, 3 truncation, 4 TCP ports, 5 `ioctl` of devices, 6 signals and abstract sockets.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Mapping

from felix.processes import syscalls

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_DIR, MAKE_REG = 1 << 7, 1 << 8
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))

READ = READ_FILE | READ_DIR
SCRATCH = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE
DEVICE = READ | WRITE_FILE | TRUNCATE | IOCTL_DEV

#: All rights that an ABI knows; what it does not know cannot be refused.
_ALL_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_BIND_AND_CONNECT_TCP = 3
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_GET_VERSION = 1
_RULE_PATH_BENEATH = 1


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_fs", ctypes.c_uint64),
        ("handled_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int | None:
    """The kernel's version of Landlock; None without."""
    if not syscalls.supported():
        return None
    try:
        return syscalls.call("landlock_create_ruleset", None, ctypes.c_size_t(0), _GET_VERSION)
    except OSError:
        return None


def restrict(rights: Mapping[str, int], version: int) -> None:
    """Refuse this process all but `rights` on files and folders; needs `no_new_privs`.

    Raises:
        OSError: it could not be done.
    """
    handled = _ALL_RIGHTS[max(known for known in _ALL_RIGHTS if known <= version)]
    attributes = _Ruleset(handled_fs=handled)
    size = 8
    if version >= 4:
        attributes.handled_net, size = _BIND_AND_CONNECT_TCP, 16
    if version >= 6:
        attributes.scoped, size = _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS, 24
    ruleset = syscalls.call(
        "landlock_create_ruleset", ctypes.byref(attributes), ctypes.c_size_t(size), 0
    )
    try:
        for path, allowed in rights.items():
            _allow(ruleset, path, allowed & handled)
        syscalls.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there, or not for this user, needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            allowed &= _OF_FILES
        beneath = _PathBeneath(allowed=allowed, parent_fd=file)
        syscalls.call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(file)
