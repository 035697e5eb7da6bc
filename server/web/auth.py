"""Callers: an API key in the `Authorization` header, or a dashboard login in a cookie.

    Reader = Annotated[auth.Caller, fastapi.Security(auth.caller, scopes=["read"])]

Scopes: `read` sees everything, `submit` makes jobs and moves its own, `admin` may do all, on all
jobs, and manages keys. A request that a cookie authenticates and that changes something must
bring the login's CSRF token (`X-CSRF-Token`, or the form field `csrf_token` on dashboard pages),
because browsers send cookies by themselves. Keys and cookies are never logged.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import hmac
from typing import Annotated, Any, Literal

import anyio.to_thread
import fastapi
from fastapi import security
from sqlalchemy import orm
from starlette import responses

from server import errors
from server.store import keys, rows
from server.web import dependencies

Scope = Literal["read", "submit", "admin"]

#: How long a dashboard login is valid.
LOGIN_S = 12 * 3600.0

CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"
_COOKIE = "felix_login"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_bearer = security.HTTPBearer(
    auto_error=False,
    scheme_name="key",
    description="An API key: `Authorization: Bearer felix_...`",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """The key behind a request; `login` if a cookie brought it."""

    key: rows.Key
    login: rows.Login | None
    remote: str

    def can(self, scope: str) -> bool:
        """Whether the key has a scope; admin has all."""
        key = self.key
        allowed = {"read": key.can_read, "submit": key.can_submit, "admin": key.can_admin}
        return key.can_admin or allowed[scope]

    def audit(self, tx: orm.Session, action: str, subject: str, **detail: Any) -> None:
        """Record what the caller does, in the transaction that does it."""
        keys.audit(tx, self.key, action, subject, detail, self.remote)


async def caller(
    scopes: security.SecurityScopes,
    request: fastapi.Request,
    services: dependencies.ServicesDep,
    bearer: Annotated[security.HTTPAuthorizationCredentials | None, fastapi.Depends(_bearer)],
) -> Caller:
    """The caller of a request, who has all the scopes.

    Raises:
        Unauthenticated: no valid key and no valid login.
        Forbidden: a scope or the CSRF token is missing.
    """
    identified = await _by_key(request, services, bearer)
    if identified is None and cookie_name(services) in request.cookies:
        identified = await anyio.to_thread.run_sync(_by_cookie, request, services)
    if identified is None:
        raise errors.Unauthenticated("an API key is needed: Authorization: Bearer felix_...")
    for scope in scopes.scopes:
        if not identified.can(scope):
            raise errors.Forbidden(f"this needs a key with the scope {scope}")
    if identified.login is not None and request.method not in _SAFE:
        check_csrf(identified.login, request.headers.get(CSRF_HEADER))
    request.scope["felix_key_id"] = identified.key.id
    return identified


Reader = Annotated[Caller, fastapi.Security(caller, scopes=["read"])]
Submitter = Annotated[Caller, fastapi.Security(caller, scopes=["submit"])]
Admin = Annotated[Caller, fastapi.Security(caller, scopes=["admin"])]
#: Any valid key.
Anyone = Annotated[Caller, fastapi.Security(caller, scopes=[])]


def from_cookie(request: fastapi.Request, services: dependencies.Services) -> Caller | None:
    """For pages: the caller of a login cookie, None without a valid one (show the login form).

    A page that changes something calls `check_csrf` with the field of its form.
    """
    return _by_cookie(request, services)


def check_csrf(login: rows.Login, token: str | None) -> None:
    """Refuse a request that does not come from our own pages.

    Raises:
        Forbidden
    """
    if token is None or not hmac.compare_digest(login.csrf.encode(), token.encode()):
        raise errors.Forbidden(
            f"the CSRF token is missing or wrong: send the login's as {CSRF_HEADER}"
        )


def log_in(
    request: fastapi.Request, services: dependencies.Services, text: str
) -> tuple[str, rows.Login, rows.Key]:
    """Begin a login with a key that somebody typed; the cookie's value comes first.

    Raises:
        Throttled: too many failures from this address.
        Unauthenticated: the key is wrong.
        Forbidden: the key may not read.
    """
    remote = remote_of(request)
    services.throttle.check(remote)
    try:
        with services.db.read() as tx:
            key = keys.find(tx, text)
    except errors.Unauthenticated:
        services.throttle.failed(remote)
        with services.db.write() as tx:
            keys.audit(tx, None, "login.failed", "", {}, remote)
        raise errors.Unauthenticated("this key is unknown, revoked or expired") from None
    if not (key.can_read or key.can_admin):
        raise errors.Forbidden("the dashboard needs a key with the scope read")
    with services.db.write() as tx:
        token, login = keys.log_in(tx, key.id, LOGIN_S)
        keys.audit(tx, key, "login", f"key {key.id}", {}, remote)
    return token, login, key


def log_out(request: fastapi.Request, services: dependencies.Services, viewer: Caller) -> None:
    """End the login of this request's cookie."""
    token = request.cookies.get(cookie_name(services))
    if token is not None and viewer.login is not None:
        with services.db.write() as tx:
            keys.log_out(tx, token)
            viewer.audit(tx, "logout", f"key {viewer.key.id}")


def set_cookie(response: responses.Response, services: dependencies.Services, token: str) -> None:
    """Give the browser a login."""
    response.set_cookie(
        cookie_name(services), token, max_age=int(LOGIN_S), path="/", httponly=True,
        secure=services.is_https, samesite="lax",
    )  # fmt: skip


def clear_cookie(response: responses.Response, services: dependencies.Services) -> None:
    """Take the login away."""
    response.delete_cookie(
        cookie_name(services), path="/", httponly=True, secure=services.is_https, samesite="lax"
    )


def cookie_name(services: dependencies.Services) -> str:
    """Under https the name has the prefix that ties a cookie to its host."""
    return f"__Host-{_COOKIE}" if services.is_https else _COOKIE


def remote_of(request: fastapi.Request) -> str:
    """The caller's address."""
    return request.client.host if request.client else ""


async def _by_key(
    request: fastapi.Request,
    services: dependencies.Services,
    bearer: security.HTTPAuthorizationCredentials | None,
) -> Caller | None:
    if bearer is None:
        if "Authorization" in request.headers:
            raise errors.Unauthenticated("the Authorization header is not `Bearer felix_...`")
        return None
    read_key = functools.partial(anyio.to_thread.run_sync, _read_key, services, bearer.credentials)
    digest = hashlib.sha256(bearer.credentials.encode()).digest()
    key = await services.key_cache.get(digest, read_key)
    if key.expires_at is not None and key.expires_at <= _now():
        key = await read_key()  # whether it has expired is for the database's clock
    return Caller(key, None, remote_of(request))


def _read_key(services: dependencies.Services, text: str) -> rows.Key:
    with services.db.read() as tx:
        key = keys.find(tx, text)
    _note_use(services, key)
    return key


def _by_cookie(request: fastapi.Request, services: dependencies.Services) -> Caller | None:
    token = request.cookies.get(cookie_name(services))
    if not token:
        return None
    try:
        with services.db.read() as tx:
            login, key = keys.login(tx, token)
    except errors.Unauthenticated:
        return None
    _note_use(services, key)
    return Caller(key, login, remote_of(request))


def _note_use(services: dependencies.Services, key: rows.Key) -> None:
    """A write a minute and key at most: see `keys.note_use`."""
    lately = datetime.timedelta(seconds=keys.USE_NOTED_S)
    if key.last_used_at is None or _now() - key.last_used_at > lately:
        with services.db.write() as tx:
            keys.note_use(tx, key.id)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
