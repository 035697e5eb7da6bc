"""Connections under limits of number, time and size, whoever opens them.

uvicorn gives a connection no time to send its first request, no rate for a body, and no address a
share of the whole. `Connection` does:

- a head (request line and headers) is complete within `head_s` and has at most `head_bytes`;
- a body that the application waits for comes at `body_bytes_per_s` at least;
- when there are `max_connections`, the one that has waited longest without a request gives way,
  and if none waits, the new one is refused; an address has at most `max_per_address` of them;
- a response that ends before the body does ends the connection, so the rest is never read.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import http
import ipaddress
from collections.abc import Callable
from types import FrameType
from typing import Any

import fastapi
import uvicorn
from uvicorn.protocols.http import httptools_impl

from server import settings as settings_module
from server.web import middleware


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of all connections of one server; see the module."""

    max_connections: int
    max_per_address: int
    #: proxies, which bring many clients: `max_per_address` is not for them
    trusted: tuple[middleware.Network, ...] = ()
    head_s: float = 10.0
    head_bytes: int = 64 << 10
    #: a body is judged by what came within such a window
    body_window_s: float = 10.0
    body_bytes_per_s: float = 1024.0


class Connections:
    """The open connections of one server; lives in its event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._by_address: collections.Counter[str] = collections.Counter()
        self._groups: dict[Connection, str] = {}
        #: without a request, the longest-waiting first
        self._waiting: dict[Connection, None] = {}

    def add(self, connection: Connection, address: str) -> bool:
        """Count a new connection; False if it is one too many."""
        group = self._group(address)
        if group and self._by_address[group] >= self.limits.max_per_address:
            return False
        if len(self._groups) >= self.limits.max_connections:
            longest_waiting = next(iter(self._waiting), None)
            if longest_waiting is None:
                return False
            self.remove(longest_waiting)
            longest_waiting.transport.abort()
        self._groups[connection] = group
        self._by_address[group] += 1
        self._waiting[connection] = None
        return True

    def remove(self, connection: Connection) -> None:
        """It is closed; nothing happens if it does not count."""
        self._waiting.pop(connection, None)
        group = self._groups.pop(connection, None)
        if group is not None:
            self._by_address[group] -= 1
            if self._by_address[group] == 0:
                del self._by_address[group]

    def begin_request(self, connection: Connection) -> None:
        """It no longer waits."""
        self._waiting.pop(connection, None)

    def end_request(self, connection: Connection) -> None:
        """It waits for its next request."""
        if connection in self._groups:
            self._waiting[connection] = None

    def _group(self, address: str) -> str:
        """What counts as one address: of IPv6 a network of 64 bits; empty: not counted."""
        parsed = middleware.parse_address(address)
        if parsed is None or middleware.is_trusted(parsed, self.limits.trusted):
            return ""
        if isinstance(parsed, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((parsed, 64), strict=False))
        return str(parsed)


class Connection(httptools_impl.HttpToolsProtocol):
    """uvicorn's connection under the limits of `Connections`."""

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._all = connections
        self._limits = connections.limits
        self._timer: asyncio.TimerHandle | None = None
        self._is_in_body = False
        #: of the head, then of the body within a window
        self._n_received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse one that is too many; await a head from the others."""
        super().connection_made(transport)
        if self._all.add(self, self.client[0] if self.client else ""):
            self._await_head()
        else:
            self._refuse(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._all.remove(self)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count, then parse."""
        if self._timer is None and not self._is_in_body:
            self._await_head()
        self._n_received += len(data)
        super().data_received(data)
        is_head = not self._is_in_body and self._timer is not None
        if is_head and self._n_received > self._limits.head_bytes:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        """A head ends and a body begins, if only an empty one."""
        if self.transport.is_closing():
            return
        self._stop_timer()
        n_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if n_bytes > self._limits.head_bytes:
            self._refuse_head()
            return
        self._all.begin_request(self)
        self._is_in_body = True
        self._await_body()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on what a request that was accepted brings."""
        if self._is_in_body and not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A body ends."""
        if self._is_in_body and not self.transport.is_closing():
            self._is_in_body = False
            self._stop_timer()
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, if this one has been read."""
        if self._is_in_body and not self.pipeline:  # else the body is the next request's
            self.transport.close()
        self._all.end_request(self)
        super().on_response_complete()

    def _await_head(self) -> None:
        self._n_received = 0
        self._start_timer(self._limits.head_s, self._refuse_slow)

    def _await_body(self) -> None:
        self._n_received = 0
        self._start_timer(self._limits.body_window_s, self._judge_body)

    def _judge_body(self) -> None:
        """Refuse a slow body, unless it is the application that does not read."""
        least = self._limits.body_bytes_per_s * self._limits.body_window_s
        if self.flow.read_paused or self._n_received >= least:
            self._await_body()
        else:
            self._refuse_slow()

    def _refuse_slow(self) -> None:
        self._refuse(http.HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly")

    def _refuse_head(self) -> None:
        self._refuse(
            http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request's headers are too large"
        )

    def _refuse(self, status: http.HTTPStatus, reason: str) -> None:
        """Close the connection, with a response if none has begun."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\n"
                "content-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(reason)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(f"{head}{reason}".encode())
        self.transport.close()

    def _start_timer(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


#: Connections that are still open so long after that are cut.
GRACE_S = 5


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app = self.config.app
        assert isinstance(app, fastapi.FastAPI)
        app.state.services.notifier.close_soon()
        super().handle_exit(sig, frame)


def config(
    app: fastapi.FastAPI, settings: settings_module.Settings, limits: Limits | None = None
) -> uvicorn.Config:
    """How uvicorn serves the application; the limits are those of the settings, if None."""
    limits = limits or Limits(
        max_connections=settings.max_connections,
        max_per_address=settings.max_connections_per_address,
        trusted=settings.trusted_proxies,
    )
    protocol: Any = functools.partial(Connection, connections=Connections(limits))
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
    """Serve until a signal ends it.

    uvicorn waits for open connections when a signal ends the process, and a stream of a quiet
    job stays open for minutes; so streams are closed first. uvicorn's own reading of proxies'
    headers is off, because it trusts this machine by default; `middleware.TrustedProxies` reads
    them.
    """
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again
        _Server(config(app, settings)).run()
