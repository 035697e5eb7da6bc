"""Bodies: who may send one, and how large. Nothing of it is read before the sender is known.

A request with a body needs a valid key or login before its first byte is taken; without one the
response is 401 (of pages, the login), and the connection ends with the body unread. Only logins
take a body from anybody, and a small one.
"""

from __future__ import annotations

import fastapi
from starlette import datastructures, exceptions, responses, types

from server import errors
from server.web import auth, dependencies, problems

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
