"""Templates, scripts and styles, the viewer, and errors as pages.

    router = render.router()

    @router.get("/dashboard/x")
    def x(viewer: render.Viewer) -> fastapi.Response:
        return viewer.page("x.html", ...)

Templates escape all values; a name that a template uses and has no value is an error. Routes of
class `Page` render errors as pages, and send whoever is not logged in to the login.

Scripts, styles and Plotly have addresses that change with their content: what is at
`/dashboard/assets/DIGEST/NAME` may be cached by browsers for ever. Plotly comes from its Python
package, so nothing is loaded from elsewhere. Texts are packed once, in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import http
import importlib.util
import inspect
import pathlib
import urllib.parse
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import fastapi
import jinja2
import sqlalchemy as sa
from fastapi import exceptions, routing, security
from starlette import exceptions as starlette_exceptions
from starlette import responses

from felix import display, version
from felix import errors as engine_errors
from server import errors, states
from server.dashboard import formats
from server.web import auth, dependencies, problems

assets_router = fastapi.APIRouter(prefix="/dashboard/assets", include_in_schema=False)

PLOTLY = "plotly.min.js"
_FOLDER = pathlib.Path(__file__).parent / "static"
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_KEEP = "public, max-age=31536000, immutable"


@dataclasses.dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    packed: bytes
    media_type: str


@assets_router.get("/{digest}/{name}")
def asset(digest: str, name: str, request: fastapi.Request) -> fastapi.Response:
    """One file; a page of an older version gets today's, which is not cached."""
    if name not in _paths():
        raise errors.NotFound(f"there is no file {name!r}")
    asset = _read_asset(name)
    headers = {
        "Cache-Control": _KEEP if digest == assets_version() else "no-cache",
        "Vary": "Accept-Encoding",
    }
    content = asset.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = asset.packed, "gzip"
    return fastapi.Response(content, media_type=asset.media_type, headers=headers)


def asset_address(name: str) -> str:
    """Where a file is."""
    return f"/dashboard/assets/{assets_version()}/{name}"


@functools.cache
def assets_version() -> str:
    """A digest of all files."""
    digest = hashlib.sha256()
    for name, path in sorted(_paths().items()):
        digest.update(name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _paths() -> dict[str, pathlib.Path]:
    paths = {path.name: path for path in _FOLDER.rglob("*") if path.suffix in _TYPES}
    paths[PLOTLY] = _plotly()
    return paths


def _plotly() -> pathlib.Path:
    """Plotly's script, found without importing the package."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = pathlib.Path(folder, "package_data", PLOTLY)
        if path.is_file():
            return path
    raise errors.SettingsError("charts need the package plotly: pip install 'felix-tuner[server]'")


@functools.cache
def _read_asset(name: str) -> _Asset:
    path = _paths()[name]
    content = path.read_bytes()
    return _Asset(content, gzip.compress(content, 6, mtime=0), _TYPES[path.suffix])


LOGIN = "/dashboard/login"

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("server.dashboard", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= dict(inspect.getmembers(formats, inspect.isfunction))
_ENVIRONMENT.filters["isolated"] = display.isolated
_ENVIRONMENT.globals.update(asset=asset_address, version=version.__version__, State=states.State)


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """An entry of the main navigation; `others` are addresses that belong to it, too."""

    address: str
    label: str
    #: who sees it; empty: everybody
    scope: str = ""
    others: tuple[str, ...] = ()

    def leads_to(self, path: str) -> bool:
        """Whether a page is reached by this entry."""
        return path == self.address or path.startswith(self.others or (f"{self.address}/",))


#: The main navigation, in its order.
NAVIGATION = (
    Link("/dashboard", "Jobs", others=("/dashboard/jobs/", "/dashboard/selection")),
    Link("/dashboard/submit", "New job"),
    Link("/dashboard/batches", "Batches", scope="submit"),
    Link("/dashboard/templates", "Templates", scope="submit"),
    Link("/dashboard/compare", "Compare"),
    Link("/dashboard/devices", "Devices"),
    Link("/dashboard/projects", "Projects"),
    Link("/dashboard/webhooks", "Webhooks", scope="submit"),
    Link(
        "/dashboard/keys", "Keys", scope="admin", others=("/dashboard/keys/", "/dashboard/audit")
    ),
    Link("/dashboard/reference", "API"),
)
_ENVIRONMENT.globals["navigation"] = NAVIGATION

_TITLES = {
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    413: "Too large",
    422: "Not understood",
    429: "Too much at once",
    503: "Not available",
}

#: What a person can do about an error, by status.
_ADVICE = {
    403: "Log in with a key that has the scope, or ask an administrator for one.",
    404: "It may have been deleted. The list of jobs has what there is.",
    409: "Check the state of the job and try again.",
    413: "Send a smaller file, or ask for a larger limit for your key.",
    422: "Go back, correct it and try again.",
    429: "Wait a little, or end jobs that you no longer need.",
    503: "Try again in a few seconds.",
}


def page(
    request: fastapi.Request, template: str, status: int = 200, **values: Any
) -> responses.HTMLResponse:
    """A page for whoever is logged in, if anybody is."""
    viewer: LoggedIn | None = getattr(request.state, "viewer", None)
    text = _ENVIRONMENT.get_template(template).render(
        viewer=viewer,
        csrf=viewer.login.csrf if viewer is not None and viewer.login is not None else "",
        path=request.url.path,
        **values,
    )
    return responses.HTMLResponse(text, status, {"Cache-Control": "no-store"})


@dataclasses.dataclass(frozen=True, slots=True)
class LoggedIn(auth.Caller):
    """Who is logged in, and asks for a page."""

    request: fastapi.Request = dataclasses.field(repr=False)

    def page(self, template: str, status: int = 200, **values: Any) -> responses.HTMLResponse:
        """The response to the request."""
        return page(self.request, template, status, **values)


def viewer(
    scopes: security.SecurityScopes, request: fastapi.Request, services: dependencies.ServicesDep
) -> LoggedIn:
    """Who is logged in, and may read and has all the scopes.

    Raises:
        Unauthenticated: nobody is.
        Forbidden: a scope is missing.
    """
    caller = auth.from_cookie(request, services)
    if caller is None:
        raise errors.Unauthenticated("log in to see this page")
    caller.need("read")
    request.scope["felix_key_id"] = caller.key.id
    viewer = LoggedIn(caller.key, caller.login, caller.remote, services, request)
    request.state.viewer = viewer
    for scope in scopes.scopes:
        viewer.need(scope)
    return viewer


Viewer = Annotated[LoggedIn, fastapi.Depends(viewer)]
Submitter = Annotated[LoggedIn, fastapi.Security(viewer, scopes=["submit"])]
Admin = Annotated[LoggedIn, fastapi.Security(viewer, scopes=["admin"])]


def error_page(request: fastapi.Request, status: int, detail: str) -> responses.HTMLResponse:
    """What went wrong, and what to do."""
    return page(
        request,
        "error.html",
        status,
        title=_TITLES.get(status) or http.HTTPStatus(status).phrase,
        detail=detail[:1].upper() + detail[1:],
        advice=_ADVICE.get(status, ""),
        request_id=request.scope.get("felix_request_id", ""),
    )


def to_login(request: fastapi.Request) -> responses.RedirectResponse:
    """The login, which leads back here."""
    where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    query = "" if request.method != "GET" else "?" + urllib.parse.urlencode({"next": where})
    return responses.RedirectResponse(LOGIN + query, 303, {"Cache-Control": "no-store"})


class Page(routing.APIRoute):
    """A route that renders errors as pages."""

    def get_route_handler(
        self,
    ) -> Callable[[fastapi.Request], Coroutine[Any, Any, fastapi.Response]]:
        """The handler, with errors caught."""
        inner = super().get_route_handler()

        async def handle(request: fastapi.Request) -> fastapi.Response:
            try:
                return await inner(request)
            except errors.Unauthenticated:
                return to_login(request)
            except engine_errors.FelixError as error:
                return error_page(request, problems.status_of(error), str(error))
            except exceptions.RequestValidationError:
                return error_page(request, 404, "there is nothing at this address")
            except starlette_exceptions.HTTPException as error:
                return error_page(request, error.status_code, str(error.detail))
            except (sa.exc.OperationalError, sa.exc.TimeoutError):
                return error_page(request, 503, "the database does not answer")

        return handle


def router(address: str = "") -> fastapi.APIRouter:
    """Of pages under an address; they are no part of the API."""
    return fastapi.APIRouter(prefix=address, route_class=Page, include_in_schema=False)
