"""A child that runs a module of ours: without what may be secret, out of the terminal's reach."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from felix import files
from felix.processes import environment


def start(module: str, *arguments: str, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """`python -m module arguments`, with this process's formula cache; nobody reads its output.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=environment.for_child(os.environ) | {"FELIX_CACHE_DIR": str(files.cache_folder())},
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal is the parent's to handle
    )
