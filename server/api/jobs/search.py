"""`/v1/jobs/{id}/search`: descents, rounds, fine-tuning and errors of the search."""

from __future__ import annotations

from typing import Annotated

import fastapi

from server.store import jobs, progress, trials
from server.web import auth, dependencies, requests, responses

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["search"])


@router.get("/search")
def search(
    job_id: requests.Id,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    task: requests.TaskFilter = None,
    after: Annotated[
        int, fastapi.Query(ge=-1, le=requests.MAX_INT, description="rounds after it; needs `task`")
    ] = -1,
    limit: requests.Limit = 200,
) -> responses.Search:
    """Loss, penalty and temperature of each descent, training of the model, error classes."""
    with services.db.read() as tx:
        jobs.get(tx, job_id)
        rounds = progress.rounds(tx, job_id, task, after, limit)
        trainings = progress.trainings(tx, job_id)
        errors = trials.error_counts(tx, job_id)
    return responses.Search(
        rounds=[responses.Round.model_validate(each) for each in rounds],
        trainings=[responses.Training.model_validate(each) for each in trainings],
        errors=errors,
    )
