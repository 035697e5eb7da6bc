"""What administrators do to API keys, with the audit entry; for the API and the dashboard."""

from __future__ import annotations

from server.store import keys, rows
from server.web import auth, dependencies, request_bodies


def create(
    services: dependencies.Services, caller: auth.Caller, body: request_bodies.NewKey
) -> keys.Made:
    """Make a key; its text is in the result and nowhere else.

    Raises:
        NotFound: there is no such project.
        InvalidRequest: kinds of devices are missing, or of no use.
    """
    new = keys.NewKey(
        can_read="read" in body.scopes,
        can_submit="submit" in body.scopes,
        can_admin="admin" in body.scopes,
        can_priority="priority" in body.scopes,
        can_worker="worker" in body.scopes,
        **body.model_dump(exclude={"scopes"}),
    )
    with caller.write() as tx:
        made = keys.create(tx, new)
        caller.audit(tx, "key.create", f"key {made.key.id}", scopes=sorted(set(body.scopes)))
    return made


def revoke(services: dependencies.Services, caller: auth.Caller, key_id: int) -> rows.Key:
    """End a key and its logins; it stays listed.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        key = keys.revoke(tx, key_id)
        caller.audit(tx, "key.revoke", f"key {key_id}")
        return key
