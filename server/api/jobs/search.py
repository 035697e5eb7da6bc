"""`/v1/jobs/{id}/search`: descents, rounds, fine-tuning and errors of the search."""

from __future__ import annotations

from typing import Annotated

import fastapi

from server.store import jobs, progress, trials
from server.web import auth, dependencies, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["search"])


@router.get("/search")
def search(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    task: request_bodies.TaskFilter = None,
    after: Annotated[
        int,
        fastapi.Query(
            ge=-1, le=request_bodies.MAX_INT, description="rounds after it; needs `task`"
        ),
    ] = -1,
    limit: request_bodies.Limit = 200,
) -> response_bodies.Search:
    """Loss, penalty and temperature of each descent, training of the model, error classes."""
    with caller.read() as tx:
        jobs.get(tx, job_id)
        rounds = progress.rounds(tx, job_id, task, after, limit)
        trainings = progress.trainings(tx, job_id)
        errors = trials.error_counts(tx, job_id)
    return response_bodies.Search(
        rounds=[response_bodies.Round.model_validate(each) for each in rounds],
        trainings=[response_bodies.Training.model_validate(each) for each in trainings],
        errors=errors,
    )
