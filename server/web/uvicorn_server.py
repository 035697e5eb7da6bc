"""uvicorn with our application, with limited connections, and streams that end with the process.

uvicorn waits for open connections when a signal ends the process, and a stream of a quiet job
stays open for minutes; so streams are closed first. uvicorn's own reading of proxies' headers is
off, because it trusts this machine by default; `server.web.edge.proxies` reads them.
"""

from __future__ import annotations

import contextlib
from types import FrameType
from typing import Any

import fastapi
import uvicorn

from server import settings as settings_module
from server.web.edge import connections

#: Connections that are still open so long after that are cut.
GRACE_S = 5


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app = self.config.app
        assert isinstance(app, fastapi.FastAPI)
        app.state.services.notifier.close_soon()
        super().handle_exit(sig, frame)


def config(
    app: fastapi.FastAPI,
    settings: settings_module.Settings,
    limits: connections.Limits | None = None,
) -> uvicorn.Config:
    """How uvicorn serves the application; the limits are those of the settings, if None."""
    limits = limits or connections.Limits(
        max_connections=settings.max_connections,
        max_per_address=settings.max_connections_per_address,
        trusted=settings.trusted_proxies,
    )
    protocol: Any = connections.Connections(limits).protocol()
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def run(app: fastapi.FastAPI, settings: settings_module.Settings) -> None:
    """Serve until a signal ends it."""
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again
        _Server(config(app, settings)).run()
