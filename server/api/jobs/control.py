"""`/v1/jobs/{id}/pause` and the other verbs: each responds with the job as it is now.

A tuner that works on the job learns of it at its next heartbeat.
"""

from __future__ import annotations

import fastapi

from server import actions
from server.web import auth, dependencies, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["control"])

_Action = actions.Action


@router.post("/pause")
def pause(
    job_id: request_bodies.Id, caller: auth.Submitter, services: dependencies.ServicesDep
) -> response_bodies.Job:
    """Stop tuning for now; everything measured stays."""
    return _move(services, caller, job_id, _Action.PAUSE)


@router.post("/resume")
def resume(
    job_id: request_bodies.Id, caller: auth.Submitter, services: dependencies.ServicesDep
) -> response_bodies.Job:
    """Go on with a paused job."""
    return _move(services, caller, job_id, _Action.RESUME)


@router.post("/cancel")
def cancel(
    job_id: request_bodies.Id, caller: auth.Submitter, services: dependencies.ServicesDep
) -> response_bodies.Job:
    """Drop the job; what was measured stays readable, there is no artifact."""
    return _move(services, caller, job_id, _Action.CANCEL)


@router.post("/stop")
def stop(
    job_id: request_bodies.Id, caller: auth.Submitter, services: dependencies.ServicesDep
) -> response_bodies.Job:
    """End the job early, with the artifact of the best schedules so far."""
    return _move(services, caller, job_id, _Action.STOP)


@router.post("/retry")
def retry(
    job_id: request_bodies.Id, caller: auth.Submitter, services: dependencies.ServicesDep
) -> response_bodies.Job:
    """Go on with a failed or cancelled job, with all it has measured."""
    return _move(services, caller, job_id, _Action.RETRY)


def _move(
    services: dependencies.Services, caller: auth.Caller, job_id: int, action: _Action
) -> response_bodies.Job:
    job = actions.move_job(services, caller, job_id, action)
    return response_bodies.Job.model_validate(job)
