"""A process and all that it started, directly or not, stopped and continued together."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal

#: States of processes that do nothing more by themselves: stopped, ended.
_STILL = frozenset("TtZX")


def stop(pid: int) -> None:
    """Stop a process and all that it started where they are (SIGSTOP); none if it has ended.

    Parents stop before their children. One that was just starting another stops once it has: see
    `is_still`, and stop them again.
    """
    _send(pid, signal.SIGSTOP)
    for each in _children(pid):
        stop(each)


def is_still(pid: int) -> bool:
    """Whether all of them are stopped or have ended, so that none starts another."""
    return all(_state(each) in _STILL for each in members(pid))


def resume(pid: int) -> None:
    """Let them go on."""
    for each in members(pid):
        _send(each, signal.SIGCONT)


def members(pid: int) -> list[int]:
    """They, parents first."""
    return [pid, *(each for child in _children(pid) for each in members(child))]


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    """A letter, as in proc(5)."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended
        return "X"
    return stat.rpartition(")")[2].split()[0]


def _children(pid: int) -> list[int]:
    """Processes that were started by a thread of a process."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                children += map(int, (thread / "children").read_text().split())
    return children
