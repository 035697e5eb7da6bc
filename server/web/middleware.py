"""Around every request: where it comes from, who may send a body, an id, headers, a log line."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any

import fastapi
from starlette import datastructures, exceptions, responses, types

from server import errors, logs
from server.web import auth, dependencies, problems
from server.web import metrics as web_metrics

_log = logs.of("server.access")

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


class Envelope:
    """ASGI middleware.

    The policy for pages under `/dashboard` allows scripts and styles of this service and inline
    ones that carry the request's nonce (`felix_nonce` of its scope); everything else may load
    nothing. A header that a response sets itself is not replaced.

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
            action="request",
            status=status,
            ms=round(1e3 * duration_s, 1),
            key=scope.get("felix_key_id"),
            request=scope["felix_request_id"],
        )


#: Largest body of a caller who is known, except for `UNLIMITED`.
MAX_BODY_BYTES = 20 << 20
#: Routes that read under the limit of the caller's key.
UNLIMITED = frozenset({"/v1/jobs/upload"})

#: Largest body of a login.
MAX_LOGIN_BYTES = 64 << 10
LOGIN_PAGE = "/dashboard/login"
#: Routes that take a body from anybody.
_LOGINS = frozenset({("POST", "/v1/session"), ("POST", LOGIN_PAGE)})

#: No route reads a body with these.
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
_CLOSE = {"Connection": "close"}


class KnownCallers:
    """ASGI middleware: identifies the caller before a body is read.

    A request with a body needs a valid key or login before its first byte is taken; without one
    the response is 401 (of pages, the login), and the connection ends with the body unread. Only
    logins take a body from anybody, and a small one.

    Args:
        app: the application.
        services: its parts.
    """

    def __init__(self, app: types.ASGIApp, services: dependencies.Services) -> None:
        self._app, self._services = app, services

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in _BODILESS or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        if (scope["method"], scope["path"]) in _LOGINS:
            await self._app(scope, _limited(scope, receive, MAX_LOGIN_BYTES), send)
            return
        request = fastapi.Request(scope)
        refusal = await self._refusal(request)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif scope["path"] in UNLIMITED:
            await self._app(scope, receive, send)
        else:
            await self._app(scope, _limited(scope, receive, MAX_BODY_BYTES), send)

    async def _refusal(self, request: fastapi.Request) -> responses.Response | None:
        """The response to a caller who is not known; None for one who is."""
        try:
            if await auth.identify(request, self._services) is not None:
                return None
            raise errors.Unauthenticated(auth.MISSING_KEY)
        except problems.EXPECTED as error:
            is_unknown = isinstance(error, errors.Unauthenticated)
            if is_unknown and request.url.path.startswith("/dashboard"):
                return responses.RedirectResponse(LOGIN_PAGE, 303, _CLOSE)
            response = await problems.of_expected(request, error)
            response.headers.update(_CLOSE)
            return response


def _has_body(scope: types.Scope) -> bool:
    headers = datastructures.Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _limited(scope: types.Scope, receive: types.Receive, limit_bytes: int) -> types.Receive:
    """A `receive` that refuses a body larger than the limit, announced or not."""
    announced = datastructures.Headers(scope=scope).get("content-length", "")
    expected = int(announced[:18]) if announced.isdecimal() else 0
    counted = 0

    async def limited() -> types.Message:
        nonlocal counted
        if expected > limit_bytes:
            raise _too_large(limit_bytes)
        message = await receive()
        counted += len(message.get("body", b""))
        if counted > limit_bytes:
            raise _too_large(limit_bytes)
        return message

    return limited


def _too_large(limit_bytes: int) -> exceptions.HTTPException:
    where = ": send files to /v1/jobs/upload" if limit_bytes == MAX_BODY_BYTES else ""
    return exceptions.HTTPException(413, f"a body may have {limit_bytes} bytes{where}", _CLOSE)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """ASGI middleware: puts the client's address and scheme in place of a trusted proxy's.

    `X-Forwarded-For` and `X-Forwarded-Proto` are anybody's to send, so they count only if the
    peer is one of `FELIX_TRUSTED_PROXIES`. Each proxy appends the address that it saw. So the
    list is read from its end over our own proxies, and the first other address is the client's:
    what stands before it is the client's to invent. The header `Forwarded` never counts: a proxy
    that writes one of the two passes the other on as it came.

    Args:
        app: the application.
        trusted: addresses of proxies.
    """

    def __init__(self, app: types.ASGIApp, trusted: Collection[Network]) -> None:
        self._app, self._trusted = app, trusted

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve one request."""
        peer = parse_address(scope["client"][0]) if scope.get("client") else None
        if scope["type"] == "http" and peer is not None and is_trusted(peer, self._trusted):
            headers = datastructures.Headers(scope=scope)
            hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
            client = _first_untrusted(peer, hops, self._trusted)
            scheme = headers.get("x-forwarded-proto", "").strip().lower()
            scope = {**scope, "client": (str(client), 0)}
            if scheme in ("http", "https"):
                scope["scheme"] = scheme
        await self._app(scope, receive, send)


def parse_address(text: str) -> Address | None:
    """An address, which may have a port or brackets; None if it is none.

    An IPv4 address that came over an IPv6 socket is the IPv4 address.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_trusted(address: Address, trusted: Collection[Network]) -> bool:
    """Whether an address is one of the proxies."""
    return any(address in network for network in trusted)


def _first_untrusted(peer: Address, hops: list[str], trusted: Collection[Network]) -> Address:
    """The last hop that is none of ours; the farthest of ours if there is no such address."""
    client = peer
    for hop in reversed(hops):
        address = parse_address(hop)
        if address is None:
            break
        client = address
        if not is_trusted(address, trusted):
            break
    return client
