"""`/v1/jobs/{id}/search`: what happened inside the search: descents, rounds, fine-tuning, errors.

Reads `server.store.progress`; feeds plots.
"""

from __future__ import annotations

from typing import Annotated

import fastapi

from server import auth
from server.api import asks, context, shapes
from server.store import jobs, progress, trials

router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["search"])


@router.get("/search")
def search(
    job_id: asks.Id,
    caller: auth.Reader,
    services: context.Needed,
    task: asks.TaskFilter = None,
    after: Annotated[
        int, fastapi.Query(ge=-1, le=asks.MAX_INT, description="rounds after it; needs `task`")
    ] = -1,
    limit: asks.Limit = 200,
) -> shapes.Search:
    """Loss, penalty and temperature of each descent, training of the model, error classes."""
    with services.db.read() as tx:
        jobs.get(tx, job_id)
        rounds = progress.rounds(tx, job_id, task, after, limit)
        trainings = progress.trainings(tx, job_id)
        errors = trials.error_counts(tx, job_id)
    return shapes.Search(
        rounds=[shapes.Round.model_validate(each) for each in rounds],
        trainings=[shapes.Training.model_validate(each) for each in trainings],
        errors=errors,
    )
