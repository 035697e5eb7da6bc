"""`/v1/jobs/{id}/pause` and the other verbs: each answers with the job as it is now.

A job that a tuner works on takes the order at the tuner's next beat.
"""

from __future__ import annotations

from collections.abc import Callable

import fastapi
from sqlalchemy import orm

from server import states
from server.store import control, jobs, rows
from server.web import auth, dependencies, requests, responses

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["control"])

_Verb = Callable[[orm.Session, int], rows.Job]


@router.post("/pause")
def pause(
    job_id: requests.Id, caller: auth.Submitter, services: dependencies.Needed
) -> responses.Job:
    """Put the job down; it keeps everything measured."""
    return _do(services, caller, job_id, "pause", control.pause)


@router.post("/resume")
def resume(
    job_id: requests.Id, caller: auth.Submitter, services: dependencies.Needed
) -> responses.Job:
    """Go on with a paused job."""
    return _do(services, caller, job_id, "resume", control.resume)


@router.post("/cancel")
def cancel(
    job_id: requests.Id, caller: auth.Submitter, services: dependencies.Needed
) -> responses.Job:
    """Drop the job; what was measured stays readable, there is no artifact."""
    return _do(services, caller, job_id, "cancel", control.cancel)


@router.post("/stop")
def stop(
    job_id: requests.Id, caller: auth.Submitter, services: dependencies.Needed
) -> responses.Job:
    """End the job early, with the artifact of what was found."""
    return _do(services, caller, job_id, "stop", control.stop)


@router.post("/retry")
def retry(
    job_id: requests.Id, caller: auth.Submitter, services: dependencies.Needed
) -> responses.Job:
    """Go on with a failed or cancelled job, with all it has measured."""
    return _do(services, caller, job_id, "retry", control.retry)


def _do(
    services: dependencies.Services, caller: auth.Caller, job_id: int, name: str, verb: _Verb
) -> responses.Job:
    with services.db.write() as tx:
        before = jobs.get(tx, job_id)  # a job that goes on counts again
        caller.check_owns(before)
        if before.state not in states.ACTIVE and before.key_id == caller.key.id:
            jobs.check_quota(tx, None, before.key_id, auth.quota(caller, services))
        job = verb(tx, job_id)
        caller.audit(tx, f"job.{name}", f"job {job_id}", before=before.state, after=job.state)
        return responses.Job.model_validate(job)
