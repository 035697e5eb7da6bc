"""`/v1/jobs/{id}/tasks`: the tensor programs of a job, and the code of the best schedules."""

from __future__ import annotations

import fastapi
from sqlalchemy import orm

from server.api import responding
from server.store import jobs
from server.web import auth, dependencies, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}/tasks", tags=["tasks"])


@router.get("", response_model=response_bodies.Listed[response_bodies.Task])
async def every(
    job_id: request_bodies.Id, caller: auth.Reader, services: dependencies.ServicesDep
) -> fastapi.Response:
    """The tasks of a job, in order."""

    def read(tx: orm.Session) -> response_bodies.Listed[response_bodies.Task]:
        jobs.get(tx, job_id)
        tasks = jobs.tasks(tx, job_id)
        return response_bodies.Listed(
            items=[response_bodies.Task.model_validate(task) for task in tasks]
        )

    return await responding.respond(services, caller, "tasks", (job_id,), read)


@router.get("/{number}/code")
def code(
    job_id: request_bodies.Id,
    number: request_bodies.Number,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
) -> response_bodies.Code:
    """TVMScript, generated source and assembly of a task's best schedule."""
    with caller.read() as tx:
        schedule, source = jobs.code(tx, job_id, number)
        assembly = jobs.assembly(tx, job_id, number)
    return response_bodies.Code(schedule=schedule, source=source, assembly=assembly)
