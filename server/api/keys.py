"""`/v1/keys`, `/v1/me`, `/v1/audit`: who may do what, and who did what."""

from __future__ import annotations

from typing import Annotated

import fastapi

from server.store import keys
from server.web import auth, dependencies, requests, responses

router = fastapi.APIRouter(prefix="/v1", tags=["keys"])


@router.get("/me")
def me(caller: auth.Anyone, services: dependencies.Needed) -> responses.Me:
    """The key behind this request, its quota, and the login's CSRF token."""
    quota = auth.quota(caller, services)
    return responses.Me(
        key=responses.Key.model_validate(caller.key),
        quota=responses.Quota(
            max_running_jobs=quota.max_running_jobs,
            max_trials=quota.max_trials,
            max_upload_bytes=auth.upload_limit(caller, services),
        ),
        csrf_token=None if caller.login is None else caller.login.csrf,
    )


@router.get("/keys")
def every(caller: auth.Admin, services: dependencies.Needed) -> responses.Listed[responses.Key]:
    """All keys, revoked ones included."""
    with services.db.read() as tx:
        found = keys.every(tx)
    return responses.Listed(items=[responses.Key.model_validate(key) for key in found])


@router.post("/keys", status_code=201)
def create(
    ask: requests.NewKey, caller: auth.Admin, services: dependencies.Needed
) -> responses.MadeKey:
    """Make a key; the answer is the only place where its text ever is."""
    new = keys.NewKey(
        can_read="read" in ask.scopes,
        can_submit="submit" in ask.scopes,
        can_admin="admin" in ask.scopes,
        **ask.model_dump(exclude={"scopes"}),
    )
    with services.db.write() as tx:
        made = keys.create(tx, new)
        caller.audit(tx, "key.create", f"key {made.key.id}", scopes=sorted(set(ask.scopes)))
    return responses.MadeKey(key=responses.Key.model_validate(made.key), text=made.text)


@router.get("/keys/{key_id}")
def get(
    key_id: Annotated[int, fastapi.Path(ge=1, le=requests.MAX_INT)],
    caller: auth.Admin,
    services: dependencies.Needed,
) -> responses.Key:
    """One key."""
    with services.db.read() as tx:
        return responses.Key.model_validate(keys.get(tx, key_id))


@router.delete("/keys/{key_id}")
def revoke(
    key_id: Annotated[int, fastapi.Path(ge=1, le=requests.MAX_INT)],
    caller: auth.Admin,
    services: dependencies.Needed,
) -> responses.Key:
    """End a key and its logins; it stays listed."""
    with services.db.write() as tx:
        key = keys.revoke(tx, key_id)
        caller.audit(tx, "key.revoke", f"key {key_id}")
        return responses.Key.model_validate(key)


@router.get("/audit")
def audit(
    caller: auth.Admin,
    services: dependencies.Needed,
    limit: requests.Limit = 100,
    after: requests.After = None,
    key_id: Annotated[int | None, fastapi.Query(ge=1, le=requests.MAX_INT)] = None,
) -> responses.Page[responses.Audit]:
    """What keys did, newest first."""
    with services.db.read() as tx:
        found = keys.audited(tx, limit, after, key_id)
    items = [responses.Audit.model_validate(entry) for entry in found]
    return responses.Page(items=items, next=items[-1].id if len(items) == limit else None)
