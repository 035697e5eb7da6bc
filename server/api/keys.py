"""`/v1/keys`, `/v1/me`, `/v1/audit` and `/v1/session`: keys, logins, and what was done."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
import fastapi

from server import actions
from server.store import keys
from server.web import auth, dependencies, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1", tags=["keys"])

_Id = Annotated[int, fastapi.Path(ge=1, le=request_bodies.MAX_INT)]


@router.get("/me")
def me(caller: auth.Anyone) -> response_bodies.Me:
    """The key behind this request, its quota, and the login's CSRF token."""
    quota = actions.quota(caller)
    return response_bodies.Me(
        key=response_bodies.Key.model_validate(caller.key),
        quota=response_bodies.Quota(
            max_running_jobs=quota.max_running_jobs,
            max_trials=quota.max_trials,
            max_upload_bytes=actions.upload_limit(caller),
        ),
        csrf_token=None if caller.login is None else caller.login.csrf,
    )


@router.get("/keys")
def every(caller: auth.Admin) -> response_bodies.Listed[response_bodies.Key]:
    """All keys, revoked ones included."""
    with caller.read() as tx:
        return response_bodies.listed(response_bodies.Key, keys.every(tx))


@router.post("/keys", status_code=201)
def create(body: request_bodies.NewKey, caller: auth.Admin) -> response_bodies.MadeKey:
    """Make a key; the response is the only place where its text ever is."""
    return response_bodies.MadeKey.model_validate(actions.create_key(caller, body))


@router.get("/keys/{key_id}")
def get(key_id: _Id, caller: auth.Admin) -> response_bodies.Key:
    """One key."""
    with caller.read() as tx:
        return response_bodies.Key.model_validate(keys.get(tx, key_id))


@router.delete("/keys/{key_id}")
def revoke(key_id: _Id, caller: auth.Admin) -> response_bodies.Key:
    """End a key and its logins; it stays listed."""
    return response_bodies.Key.model_validate(actions.revoke_key(caller, key_id))


@router.get("/audit")
def audit(
    caller: auth.Admin,
    limit: request_bodies.Limit = 100,
    after: request_bodies.After = None,
    key_id: Annotated[int | None, fastapi.Query(ge=1, le=request_bodies.MAX_INT)] = None,
) -> response_bodies.Page[response_bodies.Audit]:
    """What keys did, newest first."""
    with caller.read() as tx:
        entries = keys.audited(tx, limit, after, key_id)
    items = [response_bodies.Audit.model_validate(entry) for entry in entries]
    return response_bodies.Page(items=items, next=items[-1].id if len(items) == limit else None)


sessions_router = fastapi.APIRouter(prefix="/v1/session", tags=["session"])


@sessions_router.post("", status_code=201)
async def log_in(
    body: request_bodies.NewLogin,
    request: fastapi.Request,
    response: fastapi.Response,
    services: dependencies.ServicesDep,
) -> response_bodies.Login:
    """Log in with a key; not from a page of another site."""
    auth.check_origin(request, services)
    token, login, _ = await anyio.to_thread.run_sync(auth.log_in, request, services, body.key)
    auth.set_cookie(response, services, token)
    return response_bodies.Login(csrf_token=login.csrf, expires_at=login.expires_at)


@sessions_router.delete("", status_code=204)
def log_out(request: fastapi.Request, response: fastapi.Response, caller: auth.Anyone) -> None:
    """End this login."""
    auth.log_out(request, caller)
    auth.clear_cookie(response, caller.services)
