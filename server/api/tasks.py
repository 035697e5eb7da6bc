"""`/v1/jobs/{id}/tasks`: the tensor programs of a job, and the code of the best schedules.

Reads `server.store.jobs`; feeds tables and viewers.
"""

from __future__ import annotations

import fastapi
from sqlalchemy import orm

from server import answers, auth
from server.api import asks, context, shapes, sharing
from server.store import jobs

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}/tasks", tags=["tasks"])


@router.get("", response_model=shapes.Listed[shapes.Task])
async def every(
    job_id: asks.Id, caller: auth.Reader, services: context.Needed
) -> fastapi.Response:
    """The tasks of a job, in order."""

    def read(tx: orm.Session) -> shapes.Listed[shapes.Task]:
        jobs.get(tx, job_id)
        found = jobs.tasks(tx, job_id)
        return shapes.Listed(items=[shapes.Task.model_validate(task) for task in found])

    return await sharing.answer(services, answers.Asked("tasks", (job_id,)), read)


@router.get("/{number}/code")
def code(
    job_id: asks.Id, number: asks.Number, caller: auth.Reader, services: context.Needed
) -> shapes.Code:
    """TVMScript and generated source of a task's best schedule."""
    with services.db.read() as tx:
        schedule, source = jobs.code(tx, job_id, number)
    return shapes.Code(schedule=schedule, source=source)
