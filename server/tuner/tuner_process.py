"""The tuner process of `felix serve`: started and ended with the API, restarted if it dies."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from typing import Self

_log = logging.getLogger(__name__)

#: Before a tuner that died is started again, in seconds.
AGAIN_S = 2.0
#: How long a tuner may take to release its job, in seconds.
GRACE_S = 30.0


class TunerProcess:
    """Runs while the block does."""

    def __init__(self) -> None:
        self._leaving = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="tuner", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leaving.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
        self._thread.join(GRACE_S)
        if process is not None and process.poll() is None:
            process.kill()

    def _run(self) -> None:
        command = [sys.executable, "-m", "felix", "tuner", "--with-parent"]
        while not self._leaving.is_set():
            self._process = subprocess.Popen(command, env=dict(os.environ))
            status = self._process.wait()
            if not self._leaving.wait(AGAIN_S):
                _log.error(
                    "the tuner ended with status %d and is started again",
                    status,
                    extra={"action": "tuner_died", "status": status},
                )


def leave_with_parent(leaving: threading.Event, every_s: float = 1.0) -> None:
    """Set `leaving` when the process that started this one is gone."""
    parent = os.getppid()

    def poll_parent() -> None:
        while not leaving.wait(every_s):
            if os.getppid() != parent:
                leaving.set()

    threading.Thread(target=poll_parent, name="parent", daemon=True).start()
