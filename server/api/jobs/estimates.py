"""`/v1/estimate`: how long a job would take, and when it would begin, before it is submitted."""

from __future__ import annotations

import fastapi
from sqlalchemy import orm

from server import actions, states, submission
from server.store import jobs, networks, queue, rows
from server.web import auth, dependencies, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/estimate", tags=["jobs"])


@router.post("")
async def estimate(
    body: request_bodies.NewJob, caller: auth.Submitter, services: dependencies.ServicesDep
) -> response_bodies.Estimate:
    """What a job would take if it were submitted now; nothing is queued."""
    submission.refuse_long(body, actions.upload_limit(services, caller))
    new = await submission.read(services, caller, submission.from_json(body, None))
    work = queue.Work(
        target_key=new.target_key,
        trials=new.trials,
        seconds=new.seconds,
        priority=new.priority,
        key_id=caller.key.id,
    )
    with caller.read() as tx:
        made = queue.estimate(tx, work, services.settings.stale_s)
    return response_bodies.Estimate.model_validate(made)


def job_body(
    tx: orm.Session, services: dependencies.Services, job: rows.Job
) -> response_bodies.Job:
    """A job as a response: with its network, and while it is queued with its estimate."""
    body = response_bodies.Job.model_validate(job)
    network = networks.of_job(tx, job.id, jobs.tasks(tx, job.id)) if job.kind == "onnx" else None
    if network is not None:
        of_job = response_bodies.Network.model_validate(network)
        body = body.model_copy(update={"network": of_job})
    if job.state is not states.State.QUEUED:
        return body
    names = ("target_key", "trials", "seconds", "n_trials", "elapsed_s", "priority", "key_id")
    work = queue.Work(job_id=job.id, **{name: getattr(job, name) for name in names})
    made = queue.estimate(tx, work, services.settings.stale_s)
    estimated = response_bodies.Estimate.model_validate(made)
    return body.model_copy(update={"estimate": estimated})


def made_body(
    services: dependencies.Services,
    caller: auth.Caller,
    response: fastapi.Response,
    made: jobs.Made,
) -> response_bodies.Job:
    """The response to a request that made a job, or whose repetition did not."""
    response.headers["Location"] = f"/v1/jobs/{made.job.id}"
    if not made.is_new:
        response.status_code = 200
    with caller.read() as tx:
        return job_body(tx, services, made.job)
