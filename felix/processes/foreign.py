"""Programs that are not ours."""

from __future__ import annotations

import pathlib
import signal
import subprocess
from collections.abc import Sequence
from typing import BinaryIO

from felix.processes import syscalls


def run(command: Sequence[str], folder: pathlib.Path | None = None) -> str:
    """Run a program to its end, in a folder; what it wrote.

    Raises:
        RuntimeError: it failed; with what it wrote to stderr.
        OSError: it cannot be started.
    """
    with start(command, subprocess.PIPE, subprocess.PIPE, folder, is_tied=False) as process:
        wrote, complained = process.communicate()
    if process.returncode:
        said = complained.decode(errors="replace").strip()
        raise RuntimeError(f"{command[0]} failed: {said[:300]}")
    return wrote.decode(errors="replace")


def start(
    command: Sequence[str],
    output: BinaryIO | int,
    errors: BinaryIO | int,
    folder: pathlib.Path | None = None,
    is_tied: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a program: the one place where those that are not ours start.

    Args:
        command: the program and its arguments.
        output, errors: where it writes.
        folder: in which it runs.
        is_tied: whether it ends with this process.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=output,
        stderr=errors,
        preexec_fn=_end_with_parent if is_tied else None,
    )


def _end_with_parent() -> None:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)
