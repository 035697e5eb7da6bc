"""Privileges, open files and resources of this process, given up for good."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
from collections.abc import Collection

from felix.processes import policy as policies
from felix.processes import syscalls

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
