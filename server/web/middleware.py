"""Around every request: an id, security headers, a log line, a metric, and the last catch.

The policy for pages under `/dashboard` allows scripts and styles of this service and inline ones
that carry the request's nonce (`nonce(request)`); everything else may load nothing.
A header that a response sets itself is not replaced.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import fastapi
from starlette import datastructures, types

from server.web import metrics as web_metrics
from server.web import problems

_log = logging.getLogger("server.access")

#: Where the dashboard's pages live.
PAGES = "/dashboard"

_CLOSED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
#: Plotly sets style attributes, so styles cannot be limited to the nonce.
_PAGES = (
    "default-src 'self'; script-src 'self' 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_HSTS = "max-age=31536000"


def nonce(request: fastapi.Request) -> str:
    """The nonce of inline scripts on the page of this response."""
    return str(request.scope["felix_nonce"])


class Envelope:
    """ASGI middleware.

    Args:
        app: the application.
        metrics: counts requests.
        is_https: whether users reach the service by https.
        invalidate: called before the response to a request that may have changed something.
    """

    def __init__(
        self,
        app: types.ASGIApp,
        metrics: web_metrics.Metrics,
        is_https: bool,
        invalidate: Callable[[], None],
    ) -> None:
        self._app, self._metrics, self._is_https = app, metrics, is_https
        self._invalidate = invalidate

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["felix_request_id"] = secrets.token_hex(8)
        scope["felix_nonce"] = secrets.token_urlsafe(16)
        began_s, status = time.perf_counter(), 0

        async def sending(message: types.Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                was_refused = 400 <= status < 500
                if scope["method"] not in ("GET", "HEAD") and not was_refused:
                    self._invalidate()
                self._add_headers(scope, message)
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # the edge of the process
            if status:
                raise  # too late for another response: the connection breaks
            response = problems.of_error(fastapi.Request(scope), error)
            await response(scope, receive, sending)
        finally:
            self._note(scope, status, time.perf_counter() - began_s)

    def _add_headers(self, scope: types.Scope, message: types.Message) -> None:
        headers = datastructures.MutableHeaders(scope=message)
        path = scope["path"]
        is_page = path == PAGES or path.startswith(f"{PAGES}/")
        policy = _PAGES.format(nonce=scope["felix_nonce"]) if is_page else _CLOSED
        headers.setdefault("Content-Security-Policy", policy)
        for name, value in _HEADERS.items():
            headers.setdefault(name, value)
        if not is_page:
            headers.setdefault("Cache-Control", "no-store")
        if self._is_https:
            headers.setdefault("Strict-Transport-Security", _HSTS)
        headers["X-Request-Id"] = scope["felix_request_id"]

    def _note(self, scope: types.Scope, status: int, duration_s: float) -> None:
        """A line and a count; neither has query, headers or body."""
        route: Any = scope.get("route")
        path = getattr(route, "path", "unmatched")
        self._metrics.note(scope["method"], path, status, duration_s)
        is_quiet = scope["method"] in ("GET", "HEAD") and 0 < status < 400
        _log.log(
            logging.DEBUG if is_quiet else logging.INFO,
            "%s %s %d",
            scope["method"],
            path,
            status,
            extra={
                "action": "request",
                "status": status,
                "ms": round(1e3 * duration_s, 1),
                "key": scope.get("felix_key_id"),
                "request": scope["felix_request_id"],
            },
        )
