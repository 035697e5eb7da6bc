"""Logging in and out; forms in common; keys and what they did, for administrators."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import anyio.to_thread
import fastapi
import pydantic
from starlette import responses

from server import actions, errors
from server.dashboard import job_form, render
from server.store import keys, projects, rows
from server.web import auth, dependencies, request_bodies

login_router = render.router("/dashboard")

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
    return render.page(request, "login.html", after=after, problem="")


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
        return render.page(request, "login.html", error.status, after=after, problem=problem)
    response = responses.RedirectResponse(after, 303, {"Cache-Control": "no-store"})
    auth.set_cookie(response, services, token)
    return response


async def checked_form(
    request: fastapi.Request, viewer: auth.Caller, max_files: int = 0
) -> dict[str, list[str]]:
    """The fields of a form that comes from our own pages, each with all its values.

    Files are left to `request.form()`.

    Raises:
        Forbidden
    """
    sent = await request.form(max_files=max_files, max_fields=200)
    assert viewer.login is not None  # viewers come by cookie
    token = sent.get(auth.CSRF_FIELD)
    auth.check_csrf(viewer.login, token if isinstance(token, str) else None)
    fields: dict[str, list[str]] = {}
    for name, value in sent.multi_items():
        if isinstance(value, str):
            fields.setdefault(name, []).append(value)
    return fields


async def _form(request: fastapi.Request, viewer: render.Viewer) -> dict[str, list[str]]:
    return await checked_form(request, viewer)


#: Every route that changes something takes one, and so has checked where it comes from.
Form = Annotated[dict[str, list[str]], fastapi.Depends(_form)]


def texts_of(form: Mapping[str, list[str]]) -> dict[str, str]:
    """The last value of each field, without the space around it."""
    return {name: values[-1].strip() for name, values in form.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Filled:
    """A form that came in: its texts, the ticked boxes, and by field what is wrong."""

    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ticked: tuple[str, ...] = ()
    wrong: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def status(self) -> int:
        """The status of a page with this form."""
        return 422 if self.wrong else 200


def wrong_of(error: pydantic.ValidationError, fields: Mapping[str, str]) -> dict[str, str]:
    """What a body's validation says, by field of the form; `fields` are those of other names."""
    by_name = {str(each["loc"][0]): job_form.words(each["msg"]) for each in error.errors()}
    return {fields.get(name, name): text for name, text in by_name.items()}


def scaled(text: str, unit: float) -> Any:
    """A number in the API's unit; a text that is no number is left for the API to refuse."""
    try:
        return type(unit)(float(text) * unit)
    except (ValueError, OverflowError):
        return text


@login_router.post("/logout")
def log_out(viewer: render.Viewer, _: Form) -> fastapi.Response:
    """End the login."""
    auth.log_out(viewer.request, viewer)
    response = responses.RedirectResponse(render.LOGIN, 303)
    auth.clear_cookie(response, viewer.services)
    return response


def inside(address: str) -> str:
    """The address if it is one of the dashboard's, else its first page."""
    ours = address == HOME or address.startswith((f"{HOME}/", f"{HOME}?"))
    return address if ours and "\\" not in address and address.isprintable() else HOME


router = render.router("/dashboard")

KEYS = "/dashboard/keys"
AUDIT_LIMIT = 100

_DAY_S = 86400.0
_MIB = 1 << 20
#: Fields that the form has in other units than the API, which has other names for them.
_FIELDS = {"expires_s": "expires_days", "max_upload_bytes": "max_upload_mib"}


@router.get("/keys")
def every(viewer: render.Admin) -> fastapi.Response:
    """All keys, and a form for another."""
    return _page(viewer, Filled(ticked=("read", "submit")))


@router.post("/keys")
def create(viewer: render.Admin, form: Form) -> fastapi.Response:
    """Make a key and show its text, once."""
    texts, ticked = texts_of(form), tuple(form.get("scope", []))
    try:
        body = request_bodies.NewKey.model_validate(_body(texts, ticked))
        made = actions.create_key(viewer, body)
    except pydantic.ValidationError as error:
        wrong = wrong_of(error, _FIELDS)
    except errors.NotFound as error:
        wrong = {"project": str(error)}
    except errors.InvalidRequest as error:
        wrong = {"device_kinds": str(error)}
    else:
        return viewer.page("key_made.html", made=made)
    return _page(viewer, Filled(texts, ticked, wrong))


@router.post("/keys/{key_id}/revoke")
def revoke(key_id: request_bodies.Id, viewer: render.Admin, _: Form) -> fastapi.Response:
    """End a key and its logins."""
    actions.revoke_key(viewer, key_id)
    return responses.RedirectResponse(KEYS, 303)


@router.get("/audit")
def audit(
    viewer: render.Admin,
    key: Annotated[str, fastapi.Query(max_length=10)] = "",
    after: request_bodies.After = None,
) -> fastapi.Response:
    """What keys did, newest first."""
    key_id = int(key) if key.isascii() and key.isdecimal() else None
    with viewer.read() as tx:
        entries = keys.audited(tx, AUDIT_LIMIT + 1, after, key_id)
        all_keys = keys.every(tx)
    return viewer.page(
        "audit.html",
        entries=entries[:AUDIT_LIMIT],
        next=entries[AUDIT_LIMIT - 1].id if len(entries) > AUDIT_LIMIT else None,
        after=after,
        keys=all_keys,
        key_id=key_id,
    )


def _page(viewer: render.LoggedIn, filled: Filled) -> fastapi.Response:
    with viewer.read() as tx:
        all_keys = keys.every(tx)
        all_projects = projects.every(tx)
    return viewer.page(
        "keys.html",
        filled.status,
        keys=described(all_keys),
        projects=all_projects,
        scopes=request_bodies.SCOPES,
        filled=filled,
        settings=viewer.services.settings,
    )


def _body(texts: Mapping[str, str], scopes: Sequence[str]) -> dict[str, Any]:
    """The form as the API's body; empty fields are left out, sizes and times in its units."""
    body: dict[str, Any] = {"name": texts.get("name", ""), "scopes": list(scopes)}
    for name in ("project", "max_running_jobs", "max_trials"):
        if texts.get(name):
            body[name] = texts[name]
    if kinds := texts.get("device_kinds", "").replace(",", " ").split():
        body["device_kinds"] = kinds
    for (name, field), unit in zip(_FIELDS.items(), (_DAY_S, _MIB), strict=True):
        if texts.get(field):
            body[name] = scaled(texts[field], unit)
    return body


def described(listed: Iterable[rows.Key]) -> list[tuple[rows.Key, list[str], str]]:
    """Keys, the newest first, each with what it may do and its state."""
    return [(key, scopes(key), state(key)) for key in reversed(list(listed))]


def scopes(key: rows.Key) -> list[str]:
    """What a key may do, in words."""
    return [scope for scope in request_bodies.SCOPES if getattr(key, f"can_{scope}")]


def state(key: rows.Key) -> str:
    """`valid`, `revoked` or `expired`."""
    if key.revoked_at is not None:
        return "revoked"
    now = datetime.datetime.now(datetime.UTC)
    return "expired" if key.expires_at is not None and key.expires_at <= now else "valid"
