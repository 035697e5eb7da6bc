"""Logging in with an API key, logging out."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import fastapi
from starlette import responses

from server import errors
from server.dashboard import render
from server.web import auth, dependencies

router = fastapi.APIRouter(prefix="/dashboard", route_class=render.Page, include_in_schema=False)

HOME = "/dashboard"

_Next = Annotated[str, fastapi.Query(alias="next", max_length=2000)]


@router.get("/login")
def form(
    request: fastapi.Request, services: dependencies.ServicesDep, after: _Next = HOME
) -> fastapi.Response:
    """The form; whoever is logged in goes on."""
    after = inside(after)
    if auth.from_cookie(request, services) is not None:
        return responses.RedirectResponse(after, 303)
    return render.page(request, "login.html", None, after=after, problem="")


@router.post("/login")
async def log_in(request: fastapi.Request, services: dependencies.ServicesDep) -> fastapi.Response:
    """Log in and go to the page that led here."""
    auth.check_origin(request, services)
    fields = await request.form(max_files=0, max_fields=8)
    after, key = inside(str(fields.get("next", HOME))), str(fields.get("key", "")).strip()
    try:
        token, _, _ = await anyio.to_thread.run_sync(auth.log_in, request, services, key)
    except (errors.Unauthenticated, errors.Forbidden, dependencies.Throttled) as error:
        problem = str(error)
        return render.page(request, "login.html", None, error.status, after=after, problem=problem)
    response = responses.RedirectResponse(after, 303, {"Cache-Control": "no-store"})
    auth.set_cookie(response, services, token)
    return response


@router.post("/logout")
async def log_out(
    request: fastapi.Request, services: dependencies.ServicesDep, viewer: render.Viewer
) -> fastapi.Response:
    """End the login."""
    await checked_form(request, viewer)
    await anyio.to_thread.run_sync(auth.log_out, request, services, viewer)
    response = responses.RedirectResponse(render.LOGIN, 303)
    auth.clear_cookie(response, services)
    return response


async def checked_form(
    request: fastapi.Request, viewer: auth.Caller, max_files: int = 0
) -> dict[str, list[str]]:
    """The fields of a form that comes from our own pages, each with all its values.

    Files are left to `request.form()`.

    Raises:
        Forbidden
    """
    form = await request.form(max_files=max_files, max_fields=200)
    assert viewer.login is not None  # viewers come by cookie
    token = form.get(auth.CSRF_FIELD)
    auth.check_csrf(viewer.login, token if isinstance(token, str) else None)
    fields: dict[str, list[str]] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            fields.setdefault(name, []).append(value)
    return fields


def inside(address: str) -> str:
    """The address if it is one of the dashboard's, else its first page."""
    ours = address == HOME or address.startswith((f"{HOME}/", f"{HOME}?"))
    return address if ours and "\\" not in address and address.isprintable() else HOME
