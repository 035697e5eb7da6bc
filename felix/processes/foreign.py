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
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[:300]}")
    return done.stdout


def start(command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process and writes to a file.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        preexec_fn=lambda: syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM),
    )
