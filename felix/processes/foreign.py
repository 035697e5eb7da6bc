"""Programs that are not ours."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import BinaryIO

from felix.processes import syscalls

_PR_SET_PDEATHSIG = 1


def run(command: Sequence[str]) -> None:
    """Run a program to its end.

    Raises:
        RuntimeError: it failed; with what it wrote to stderr.
        OSError: it cannot be started.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[:300]}")


def start(command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process and writes to a file.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        command,
        stdout=log,
        stderr=log,
        preexec_fn=lambda: syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )
