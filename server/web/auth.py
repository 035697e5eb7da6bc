"""Callers: an API key in the `Authorization` header, or a dashboard login in a cookie.

    Reader = Annotated[auth.Caller, fastapi.Security(auth.caller, scopes=["read"])]

Scopes: `read` sees everything of the key's project, `submit` makes jobs and moves its own,
`priority` lets them go before those of others, `admin` may do all, in all projects, and manages
keys. Routes reach the database by their caller, whose
transactions see what it may see:

    with caller.read() as tx: ...

A request that a cookie authenticates and that changes something must
bring the login's CSRF token (`X-CSRF-Token`, or the form field `csrf_token` on dashboard pages),
because browsers send cookies by themselves. Keys and cookies are never logged.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import hmac
import urllib.parse
from typing import Annotated, Any

import anyio.to_thread
import fastapi
from fastapi import security
from sqlalchemy import orm
from starlette import responses

from server import errors
from server.database import visibility
from server.store import keys, rows
from server.web import dependencies

#: How long a dashboard login is valid.
LOGIN_S = 12 * 3600.0

CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"
MISSING_KEY = "an API key is needed: Authorization: Bearer felix_..."
_COOKIE = "felix_login"
#: Where a request keeps its caller.
_IN_SCOPE = "felix_caller"
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
    #: the parts of the application; routes read and write by the methods here
    services: dependencies.Services = dataclasses.field(repr=False)

    @property
    def sees(self) -> visibility.Visibility:
        """Whose rows it sees: its project's; an admin everything."""
        return visibility.Visibility(None if self.key.can_admin else self.key.project)

    def read(self) -> contextlib.AbstractContextManager[orm.Session]:
        """A transaction that only reads what the caller sees."""
        return self.services.unrestricted_db.read(self.sees)

    def write(self) -> contextlib.AbstractContextManager[orm.Session]:
        """A transaction on what the caller sees, that may write."""
        return self.services.unrestricted_db.write(self.sees)

    def can(self, scope: str) -> bool:
        """Whether the key has a scope; admin has all."""
        return self.key.can_admin or bool(getattr(self.key, f"can_{scope}"))

    def need(self, scope: str) -> None:
        """Refuse a caller whose key lacks a scope.

        Raises:
            Forbidden
        """
        if not self.can(scope):
            raise errors.Forbidden(f"this needs a key with the scope {scope}")

    def audit(self, tx: orm.Session, action: str, subject: str, **detail: Any) -> None:
        """Record what the caller does, in the transaction that does it."""
        keys.audit(tx, self.key, action, subject, detail, self.remote)


async def caller(
    scopes: security.SecurityScopes,
    request: fastapi.Request,
    services: dependencies.ServicesDep,
    _: Annotated[security.HTTPAuthorizationCredentials | None, fastapi.Depends(_bearer)],
) -> Caller:
    """The caller of a request, who has all the scopes.

    Raises:
        Unauthenticated: no valid key and no valid login.
        Forbidden: a scope or the CSRF token is missing.
    """
    identified = await identify(request, services)
    if identified is None:
        raise errors.Unauthenticated(MISSING_KEY)
    for scope in scopes.scopes:
        identified.need(scope)
    if identified.login is not None and request.method not in _SAFE:
        check_csrf(identified.login, request.headers.get(CSRF_HEADER))
    request.scope["felix_key_id"] = identified.key.id
    return identified


async def identify(request: fastapi.Request, services: dependencies.Services) -> Caller | None:
    """Who sends a request: by key, else by cookie; None if it has neither, or the login is over.

    Raises:
        Unauthenticated: the key is not valid.
    """
    known: Caller | None = request.scope.get(_IN_SCOPE)
    if known is None:
        known = await _by_key(request, services)
        if known is None and cookie_name(services) in request.cookies:
            known = await anyio.to_thread.run_sync(from_cookie, request, services)
        request.scope[_IN_SCOPE] = known
    return known


Reader = Annotated[Caller, fastapi.Security(caller, scopes=["read"])]
Submitter = Annotated[Caller, fastapi.Security(caller, scopes=["submit"])]
#: Says where the project's data goes: has both scopes.
Manager = Annotated[Caller, fastapi.Security(caller, scopes=["read", "submit"])]
Admin = Annotated[Caller, fastapi.Security(caller, scopes=["admin"])]
#: Any valid key.
Anyone = Annotated[Caller, fastapi.Security(caller, scopes=[])]


def check_csrf(login: rows.Login, token: str | None) -> None:
    """Refuse a request that does not come from our own pages.

    Raises:
        Forbidden
    """
    if token is None or not hmac.compare_digest(login.csrf.encode(), token.encode()):
        raise errors.Forbidden(
            f"the CSRF token is missing or wrong: send the login's as {CSRF_HEADER}"
        )


def check_origin(request: fastapi.Request, services: dependencies.Services) -> None:
    """Refuse a login that another site's page sends.

    It would log the browser in to somebody else's key. Before there is a login there is no token
    to check, so the browser's headers on where the request comes from count: `Sec-Fetch-Site`,
    which no page can set, and `Origin` where it is missing (plain http). Other programs send
    neither.

    Raises:
        Forbidden
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        is_foreign = site not in ("same-origin", "none")
    elif origin is not None:
        address = urllib.parse.urlsplit(services.settings.address)
        hosts = {request.headers.get("Host"), address.netloc}
        is_foreign = urllib.parse.urlsplit(origin).netloc not in hosts
    else:
        is_foreign = False
    if is_foreign:
        raise errors.Forbidden("log in from the dashboard's own page")


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
        with services.unrestricted_db.read() as tx:
            key = keys.find(tx, text)
    except errors.Unauthenticated:
        services.throttle.failed(remote)
        with services.unrestricted_db.write() as tx:
            keys.audit(tx, None, "login.failed", "", {}, remote)
        raise errors.Unauthenticated("this key is unknown, revoked or expired") from None
    if not (key.can_read or key.can_admin):
        raise errors.Forbidden("the dashboard needs a key with the scope read")
    with services.unrestricted_db.write() as tx:
        token, login = keys.log_in(tx, key.id, LOGIN_S)
        keys.audit(tx, key, "login", f"key {key.id}", {}, remote)
    return token, login, key


def log_out(request: fastapi.Request, viewer: Caller) -> None:
    """End the login of this request's cookie."""
    token = request.cookies.get(cookie_name(viewer.services))
    if token is not None and viewer.login is not None:
        with viewer.services.unrestricted_db.write() as tx:
            keys.log_out(tx, token)
            viewer.audit(tx, "logout", f"key {viewer.key.id}")


def set_cookie(response: responses.Response, services: dependencies.Services, token: str) -> None:
    """Give the browser a login."""
    response.set_cookie(
        cookie_name(services),
        token,
        max_age=int(LOGIN_S),
        path="/",
        httponly=True,
        secure=services.is_https,
        samesite="lax",
    )


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


async def _by_key(request: fastapi.Request, services: dependencies.Services) -> Caller | None:
    authorization = request.headers.get("Authorization")
    if authorization is None:
        return None
    scheme, text = security.utils.get_authorization_scheme_param(authorization)
    if scheme.lower() != "bearer" or not text:
        raise errors.Unauthenticated("the Authorization header is not `Bearer felix_...`")
    read_key = functools.partial(anyio.to_thread.run_sync, _read_key, services, text)
    digest = hashlib.sha256(text.encode()).digest()
    key = await services.key_cache.get(digest, read_key)
    if key.expires_at is not None and key.expires_at <= _now():
        key = await read_key()  # whether it has expired is for the database's clock
    return Caller(key, None, remote_of(request), services)


def _read_key(services: dependencies.Services, text: str) -> rows.Key:
    with services.unrestricted_db.read() as tx:
        key = keys.find(tx, text)
    _note_use(services, key)
    return key


def from_cookie(request: fastapi.Request, services: dependencies.Services) -> Caller | None:
    """The caller of a login cookie; None without a valid one.

    A page that changes something checks `check_csrf` with the field of its form.
    """
    token = request.cookies.get(cookie_name(services))
    if not token:
        return None
    try:
        with services.unrestricted_db.read() as tx:
            login, key = keys.login(tx, token)
    except errors.Unauthenticated:
        return None
    _note_use(services, key)
    return Caller(key, login, remote_of(request), services)


def _note_use(services: dependencies.Services, key: rows.Key) -> None:
    """A write a minute and key at most: see `keys.note_use`."""
    lately = datetime.timedelta(seconds=keys.USE_NOTED_S)
    if key.last_used_at is None or _now() - key.last_used_at > lately:
        with services.unrestricted_db.write() as tx:
            keys.note_use(tx, key.id)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
