"""What callers do to jobs and keys: rights and quota are checked, the audit entry is written.

Routes of the API and forms of the dashboard call these, so that both refuse and record the same.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from sqlalchemy import orm

from server import errors, states
from server.store import artifacts, control, jobs, keys, projects, rows
from server.web import auth, request_bodies

#: Higher goes first.
DEFAULT_PRIORITY = 0


class Action(enum.StrEnum):
    """What a user may do to a job's state."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    STOP = "stop"
    RETRY = "retry"


_VERBS: Mapping[Action, Callable[[orm.Session, int], rows.Job]] = {
    Action(verb.__name__): verb
    for verb in (control.pause, control.resume, control.cancel, control.stop, control.retry)
}


def move_job(caller: auth.Caller, job_id: int, action: Action) -> rows.Job:
    """Pause, resume, cancel, stop or retry a job.

    Raises:
        NotFound, IllegalMove, Conflict
        Forbidden: it is another key's job.
        QuotaExceeded: a job that goes on counts against the quota again.
    """
    limits = quota(caller)
    with caller.write() as tx:
        before = _owned(tx, caller, job_id)
        if before.state not in states.ACTIVE and before.key_id == caller.key.id:
            jobs.check_quota(tx, None, before.key_id, limits)
        job = _VERBS[action](tx, job_id)
        caller.audit(tx, f"job.{action}", f"job {job_id}", before=before.state, after=job.state)
        return job


def change_job(caller: auth.Caller, job_id: int, changes: request_bodies.Changes) -> rows.Job:
    """Change name, note, priority or tags, in any state.

    Raises:
        NotFound, Forbidden
    """
    values = changes.model_dump(exclude_unset=True, exclude_none=True)
    with caller.write() as tx:
        before = _owned(tx, caller, job_id)
        check_priority(caller, changes.priority, before.priority)
        job = control.change(tx, job_id, **values)
        caller.audit(tx, "job.change", f"job {job_id}", fields=sorted(values))
        return job


def delete_job(caller: auth.Caller, job_id: int) -> None:
    """Remove an ended job with all it has, and the contents that no other job has.

    Raises:
        NotFound, Forbidden
        Conflict: the job has not ended.
    """
    with caller.write() as tx:
        _owned(tx, caller, job_id)
        orphans = control.delete(tx, job_id)
        caller.audit(tx, "job.delete", f"job {job_id}")
    for sha256 in orphans:
        with caller.services.unrestricted_db.write() as tx:
            artifacts.remove_content(tx, caller.services.blobs, sha256)


def check_priority(
    caller: auth.Caller, priority: int | None, before: int = DEFAULT_PRIORITY
) -> None:
    """Whether the caller may give a job a priority; one that is no higher is free.

    Raises:
        Forbidden: it is above the default and above what the job had, and the key lacks the scope.
    """
    if priority is None or priority <= max(DEFAULT_PRIORITY, before) or caller.can("priority"):
        return
    raise errors.Forbidden(
        f"priority {priority} is above the default, {DEFAULT_PRIORITY}: this needs a key with "
        "the scope priority; leave the priority out, or ask an administrator for such a key"
    )


def may_change(caller: auth.Caller, job: rows.Job) -> bool:
    """Whether a job is this caller's to change."""
    return caller.can("submit") and _owns(caller, job)


def quota(caller: auth.Caller) -> jobs.Quota:
    """What the caller's key may have: its own limits, else the service's, within the project's."""
    key, settings = caller.key, caller.services.settings
    with caller.read() as tx:
        project = projects.get(tx, key.project)
    max_trials = _first(key.max_trials, settings.max_trials)
    return jobs.Quota(
        max_running_jobs=_first(key.max_running_jobs, settings.max_running_jobs),
        max_trials=min(max_trials, _first(project.max_trials, max_trials)),
    )


def upload_limit(caller: auth.Caller) -> int:
    """The largest file the caller may send, in bytes."""
    allowed = caller.services.settings.max_upload_bytes
    return min(allowed, _first(caller.key.max_upload_bytes, allowed))


def _owned(tx: orm.Session, caller: auth.Caller, job_id: int) -> rows.Job:
    """A job that the caller may change: the key that made it, or an admin's."""
    job = jobs.get(tx, job_id)
    if not _owns(caller, job):
        raise errors.Forbidden(f"job {job.id} is another key's: this needs the scope admin")
    return job


def _owns(caller: auth.Caller, job: rows.Job) -> bool:
    return caller.key.can_admin or job.key_id == caller.key.id


def _first(limit: int | None, default: int) -> int:
    return default if limit is None else limit


def create_key(caller: auth.Caller, body: request_bodies.NewKey) -> keys.CreatedKey:
    """Make a key; its text is in the result and nowhere else.

    Raises:
        NotFound: there is no such project.
        InvalidRequest: kinds of devices are missing, or of no use.
    """
    scopes = {f"can_{scope}": scope in body.scopes for scope in request_bodies.SCOPES}
    new = keys.NewKey(**body.model_dump(exclude={"scopes"}) | scopes)
    with caller.write() as tx:
        made = keys.create(tx, new)
        caller.audit(tx, "key.create", f"key {made.key.id}", scopes=sorted(set(body.scopes)))
    return made


def revoke_key(caller: auth.Caller, key_id: int) -> rows.Key:
    """End a key and its logins; it stays listed.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        key = keys.revoke(tx, key_id)
        caller.audit(tx, "key.revoke", f"key {key_id}")
        return key
