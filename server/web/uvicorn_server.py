"""uvicorn with our application: event streams end as soon as the process gets a signal to end.

uvicorn waits for open connections, and a stream of a quiet job stays open for minutes; so streams
are closed first.
"""

from __future__ import annotations

import contextlib
from types import FrameType

import fastapi
import uvicorn

#: Connections that are still open so long after that are cut.
GRACE_S = 5


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app = self.config.app
        assert isinstance(app, fastapi.FastAPI)
        app.state.services.notifier.close_soon()
        super().handle_exit(sig, frame)


def run(app: fastapi.FastAPI, host: str, port: int) -> None:
    """Serve until a signal ends it."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again
        _Server(config).run()
