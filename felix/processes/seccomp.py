"""Seccomp: a filter through which every system call of a process passes, for good.

The filter is a program of the classic BPF. It names what a worker never needs and an intruder
would: other processes, sockets, mounts, links, keys, the kernel's large interfaces. Those fail
with EPERM. Calls that are newer than the table fail with ENOSYS, so that libraries take the older
way; so does `clone3`, whose flags a filter cannot read.

Timing is as fast as without: the kernel answers what is always allowed from a bitmap, and
`SPEC_ALLOW` keeps it from switching the processor's store bypass off.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Iterable

from felix.processes import policy as policies
from felix.processes import syscalls

#: Refused to all that lead no processes.
_LEADING = ("setsid", "setpgid")
_LOCAL_SOCKETS = ("socket", "bind", "listen", "accept", "accept4")

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_SET_MODE_FILTER, _SPEC_ALLOW = 1, 4
_GET_ACTION_AVAILABLE = 2
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
# struct seccomp_data: number, architecture, address of the instruction, six arguments of 64 bits
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_LOAD, _RETURN = 0x20, 0x06
_EQUAL, _GREATER, _AT_LEAST, _ANY_BIT = 0x15, 0x25, 0x35, 0x45
_AND = 0x54

_CLONE_THREAD = 0x00010000
#: CLONE_NEW*: time, mounts, cgroup, names, IPC, users, processes, network.
_CLONE_NAMESPACES = 0x7E020080
_SETTERS_OF_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by way of a file
_IOCTLS = (0x5412, 0x541C, 0x8901, 0x8902)  # TIOCSTI, TIOCLINUX, FIOSETOWN, SIOCSPGRP
_PR_SET_MM = 35
_PRCTLS_OF_LEADING = (syscalls.PR_SET_PDEATHSIG, syscalls.PR_SET_CHILD_SUBREAPER)
_SIGNALS = ("kill", "tgkill", "tkill")
_SOCKET_TYPE_BITS = 0xF

_Code = list[tuple[int, int, int, int]]


def available() -> bool:
    """Whether this kernel has filters, and this architecture is known."""
    if not syscalls.supported() or platform.machine() not in _ARCHITECTURE:
        return False
    action = ctypes.c_uint32(_KILL_PROCESS)
    try:
        syscalls.call("seccomp", _GET_ACTION_AVAILABLE, 0, ctypes.byref(action))
    except OSError:
        return False
    return True


def restrict(policy: policies.Policy) -> None:
    """Put this process under the filter of a policy; needs `no_new_privs`.

    Raises:
        OSError: it could not be done.
    """
    code = program(policy, os.getpid())
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *i) for i in code))
    header = struct.pack("@HxxxxxxP", len(code), ctypes.addressof(instructions))
    syscalls.call("seccomp", _SET_MODE_FILTER, _SPEC_ALLOW, header)


def program(policy: policies.Policy, pid: int) -> _Code:
    """The filter as (operation, jump if true, jump if false, operand), for process `pid`."""
    denied = list(syscalls.DENIED)
    denied += () if policy.local_sockets else _LOCAL_SOCKETS
    denied += () if policy.memory_files else ("memfd_create",)
    denied += () if policy.programs else ("execve", "fork", "vfork")
    denied += () if policy.leads else _LEADING
    themselves = (0, pid)
    connected = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)  # one cannot send to an address
    rules = [
        _error("clone3", errno.ENOSYS),
        # to whoever listens: with local sockets, nobody is there, which libraries expect
        _error("connect", errno.ENOENT if policy.local_sockets else errno.EPERM),
        _of_clone(_CLONE_NAMESPACES, fails=True),
        *([] if policy.programs else [_of_clone(_CLONE_THREAD, fails=False)]),
        *([] if policy.leads else [_unless(name, 0, (pid,)) for name in _SIGNALS]),
        _unless("prlimit64", 0, themselves),
        _unless("sched_setscheduler", 0, themselves),
        _unless("sched_setparam", 0, themselves),
        _unless("sched_setattr", 0, themselves),
        _unless("setpriority", 1, themselves),
        _unless("migrate_pages", 0, themselves),
        _unless("move_pages", 0, themselves),
        _if("fcntl", 1, _SETTERS_OF_OWNER),
        _if("ioctl", 1, _IOCTLS),
        _if("prctl", 0, (_PR_SET_MM, *(() if policy.leads else _PRCTLS_OF_LEADING))),
        _unless("socket", 0, (socket.AF_UNIX,)),
        _unless("socket", 1, connected, _SOCKET_TYPE_BITS),
        _unless("socketpair", 0, (socket.AF_UNIX,)),
        _unless("socketpair", 1, connected, _SOCKET_TYPE_BITS),
    ]
    return [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, _ARCHITECTURE[platform.machine()]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_GREATER, 0, 1, syscalls.HIGHEST),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        *(step for name in denied for step in _error(name, errno.EPERM)),
        *(step for rule in rules for step in rule),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _error(name: str, code: int) -> _Code:
    """A call fails with this error."""
    return _for(name, [(_RETURN, 0, 0, _ERRNO | code)])


def _if(name: str, argument: int, values: Iterable[int]) -> _Code:
    """A call fails if one argument has one of these values."""
    return _for(name, _compared(argument, [(_EQUAL, value) for value in values], fails=True))


def _unless(name: str, argument: int, values: Iterable[int], mask: int = 0xFFFFFFFF) -> _Code:
    """A call fails unless one argument (its bits of `mask`) has one of these values."""
    tests = [(_EQUAL, value) for value in values]
    return _for(name, _compared(argument, tests, fails=False, mask=mask))


def _of_clone(bits: int, *, fails: bool) -> _Code:
    """`clone` fails if its flags have one of these bits, or unless they have (not `fails`)."""
    return _for("clone", _compared(0, [(_ANY_BIT, bits)], fails=fails))


def _compared(
    argument: int, tests: list[tuple[int, int]], *, fails: bool, mask: int = 0xFFFFFFFF
) -> _Code:
    """EPERM if one test holds (`fails`) or if none does; else on to the next rule.

    Only the lower 32 bits of the argument are compared: all that are compared have no more.
    """
    code: _Code = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), (_AND, 0, 0, mask)]
    for index, (operation, value) in enumerate(tests):
        code.append((operation, len(tests) - 1 - index + (0 if fails else 1), 0, value))
    if fails:  # the last test jumps over EPERM if it does not hold
        operation, _, _, value = code[-1]
        code[-1] = (operation, 0, 1, value)
    code.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    code.append((_LOAD, 0, 0, _NUMBER_AT))
    return code


def _for(name: str, code: _Code) -> _Code:
    """`code` for one call; nothing where this architecture has no such call."""
    number = syscalls.number(name)
    return [] if number is None else [(_EQUAL, 0, len(code), number), *code]
