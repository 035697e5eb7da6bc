"""A real Chromium for the tests that are marked `browser`, and a server that it can reach.

Chromium is the system's (`apt-get install chromium`), or the one that `FELIX_TEST_CHROMIUM`
names; Playwright comes from PyPI and only drives it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator

import fastapi
import uvicorn

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """The path of a Chromium, None without one."""
    named = os.environ.get("FELIX_TEST_CHROMIUM")
    if named:
        return named
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def problem() -> str | None:
    """Why tests in a browser cannot run, None if they can."""
    if chromium() is None:
        return (
            "no Chromium here: apt-get install chromium, or name one in FELIX_TEST_CHROMIUM, "
            "to test the dashboard in a browser"
        )
    return None


@contextlib.contextmanager
def serving(app: fastapi.FastAPI) -> Iterator[str]:
    """The application on a free port of this machine; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = uvicorn.Config(app, "127.0.0.1", port, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until_s = time.monotonic() + 30
    while not server.started and time.monotonic() < until_s:
        time.sleep(0.02)
    assert server.started, "the server did not start within 30 s"
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
