"""Logging in and out; keys and what they did, for administrators."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Annotated, Any

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from server import actions, errors
from server.dashboard import render
from server.store import keys, projects, rows
from server.web import auth, dependencies, request_bodies

login_router = fastapi.APIRouter(
    prefix="/dashboard", route_class=render.Page, include_in_schema=False
)

HOME = "/dashboard"

_Next = Annotated[str, fastapi.Query(alias="next", max_length=2000)]


@login_router.get("/login")
def login_form(
    request: fastapi.Request, services: dependencies.ServicesDep, after: _Next = HOME
) -> fastapi.Response:
    """The form; whoever is logged in goes on."""
    after = inside(after)
    if auth.from_cookie(request, services) is not None:
        return responses.RedirectResponse(after, 303)
    return render.page(request, "login.html", None, after=after, problem="")


@login_router.post("/login")
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


@login_router.post("/logout")
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
    login_form = await request.form(max_files=max_files, max_fields=200)
    assert viewer.login is not None  # viewers come by cookie
    token = login_form.get(auth.CSRF_FIELD)
    auth.check_csrf(viewer.login, token if isinstance(token, str) else None)
    fields: dict[str, list[str]] = {}
    for name, value in login_form.multi_items():
        if isinstance(value, str):
            fields.setdefault(name, []).append(value)
    return fields


def inside(address: str) -> str:
    """The address if it is one of the dashboard's, else its first page."""
    ours = address == HOME or address.startswith((f"{HOME}/", f"{HOME}?"))
    return address if ours and "\\" not in address and address.isprintable() else HOME


router = fastapi.APIRouter(prefix="/dashboard", route_class=render.Page, include_in_schema=False)

KEYS = "/dashboard/keys"
SCOPES = ("read", "submit", "priority", "worker", "admin")
AUDIT_LIMIT = 100

_DAY_S = 86400.0
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """The form of a new key: its texts, the chosen scopes, and by field what is wrong."""

    texts: Mapping[str, str]
    scopes: list[str]
    wrong: Mapping[str, str]


def admin(viewer: render.Viewer) -> auth.Caller:
    """Whoever is logged in and may manage keys.

    Raises:
        Forbidden
    """
    if not viewer.can("admin"):
        raise errors.Forbidden("this needs a key with the scope admin")
    return viewer


Admin = Annotated[auth.Caller, fastapi.Depends(admin)]


@router.get("/keys")
def every(
    request: fastapi.Request, viewer: Admin, services: dependencies.ServicesDep
) -> fastapi.Response:
    """All keys, and a form for another."""
    return _page(request, viewer, services)


@router.post("/keys")
async def create(
    request: fastapi.Request, viewer: Admin, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Make a key and show its text, once."""
    form = await checked_form(request, viewer)
    texts = {name: values[-1].strip() for name, values in form.items()}
    chosen = form.get("scope", [])
    try:
        body = request_bodies.NewKey.model_validate(_body(texts, chosen))
    except pydantic.ValidationError as error:
        wrong = {str(one["loc"][0]): str(one["msg"]) for one in error.errors()}
        return await anyio.to_thread.run_sync(
            _page, request, viewer, services, _Form(texts, chosen, wrong)
        )
    try:
        made = await anyio.to_thread.run_sync(actions.create_key, services, viewer, body)
    except (errors.NotFound, errors.InvalidRequest) as error:
        field = "project" if isinstance(error, errors.NotFound) else "device_kinds"
        wrong = {field: str(error)}
        return await anyio.to_thread.run_sync(
            _page, request, viewer, services, _Form(texts, chosen, wrong)
        )
    return render.page(request, "key_made.html", viewer, made=made)


@router.post("/keys/{key_id}/revoke")
async def revoke(
    request: fastapi.Request,
    key_id: request_bodies.Id,
    viewer: Admin,
    services: dependencies.ServicesDep,
) -> fastapi.Response:
    """End a key and its logins."""
    await checked_form(request, viewer)
    await anyio.to_thread.run_sync(actions.revoke_key, services, viewer, key_id)
    return responses.RedirectResponse(KEYS, 303)


@router.get("/audit")
def audit(
    request: fastapi.Request,
    viewer: Admin,
    services: dependencies.ServicesDep,
    key: Annotated[str, fastapi.Query(max_length=10)] = "",
    after: request_bodies.After = None,
) -> fastapi.Response:
    """What keys did, newest first."""
    key_id = int(key) if key.isascii() and key.isdecimal() else None
    with viewer.read() as tx:
        entries = keys.audited(tx, AUDIT_LIMIT + 1, after, key_id)
        all_keys = keys.every(tx)
    return render.page(
        request,
        "audit.html",
        viewer,
        entries=entries[:AUDIT_LIMIT],
        next=entries[AUDIT_LIMIT - 1].id if len(entries) > AUDIT_LIMIT else None,
        after=after,
        keys=all_keys,
        key_id=key_id,
    )


def _page(
    request: fastapi.Request,
    viewer: auth.Caller,
    services: dependencies.Services,
    filled: _Form | None = None,
) -> fastapi.Response:
    form = filled or _Form({}, ["read", "submit"], {})
    with viewer.read() as tx:
        all_keys = keys.every(tx)
        all_projects = projects.every(tx)
    now = datetime.datetime.now(datetime.UTC)
    return render.page(
        request,
        "keys.html",
        viewer,
        422 if form.wrong else 200,
        keys=[(key, scopes(key), state(key, now)) for key in reversed(all_keys)],
        projects=all_projects,
        scopes=SCOPES,
        chosen=form.scopes,
        texts=form.texts,
        wrong=form.wrong,
        settings=services.settings,
    )


def _body(texts: Mapping[str, str], chosen: list[str]) -> dict[str, Any]:
    """The form as the API's body; empty fields are left out, sizes and times in its units."""
    body: dict[str, Any] = {"name": texts.get("name", ""), "scopes": chosen}
    for name in ("project", "max_running_jobs", "max_trials"):
        if texts.get(name):
            body[name] = texts[name]
    if kinds := texts.get("device_kinds", "").replace(",", " ").split():
        body["device_kinds"] = kinds
    for field, name, unit in (
        ("expires_days", "expires_s", _DAY_S),
        ("max_upload_mib", "max_upload_bytes", _MIB),
    ):
        if texts.get(field):
            body[name] = _scaled(texts[field], unit)
    return body


def _scaled(text: str, unit: float) -> Any:
    """In the API's unit; a text that is no number is left for the API to refuse."""
    try:
        return type(unit)(float(text) * unit)
    except (ValueError, OverflowError):
        return text


def scopes(key: rows.Key) -> list[str]:
    """What a key may do, in words."""
    has = (key.can_read, key.can_submit, key.can_priority, key.can_worker, key.can_admin)
    return [name for name, is_set in zip(SCOPES, has, strict=True) if is_set]


def state(key: rows.Key, now: datetime.datetime) -> str:
    """`valid`, `revoked` or `expired`."""
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "valid"
