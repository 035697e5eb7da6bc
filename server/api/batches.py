"""`/v1/batches` and `/v1/templates`: several jobs in one request, requests by name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import fastapi
import pydantic

from felix import errors as engine_errors
from server import errors, submission, teams
from server.api import jobs, responding
from server.store import jobs as store_jobs
from server.store import requests
from server.web import auth, problems, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/batches", tags=["batches"])

_Id = Annotated[int, fastapi.Path(ge=1, le=request_bodies.MAX_INT, examples=[3])]
_MADE: dict[int | str, dict[str, Any]] = {
    200: {"model": response_bodies.Batch, "description": "An earlier request made it"},
    201: {"headers": {"Location": {"schema": {"type": "string"}}}},
}


@router.post("", status_code=201, responses=_MADE)
async def submit(
    body: request_bodies.NewBatch,
    caller: auth.Submitter,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Batch:
    """Submit several jobs, each for itself: one that is refused holds up no other.

    With an `Idempotency-Key` the whole batch is made once: a repeated request goes on where an
    interrupted one stopped, and then responds with the same batch.
    """
    content = body.model_dump(mode="json")
    idempotency = store_jobs.IdempotencyKey.of(idempotency_key, content)
    if idempotency is not None:
        with caller.read() as tx:
            earlier = requests.made_before(tx, caller.key.id, idempotency)
        if earlier is not None:
            response.headers["Location"] = f"/v1/batches/{earlier.id}"
            response.status_code = 200
            return _body(teams.batch(caller, earlier.id))
    items = [
        await _submit(caller, item, _item_key(idempotency, number))
        for number, item in enumerate(body.jobs)
    ]
    with caller.write() as tx:
        batch = requests.create_batch(tx, caller.key.id, items, idempotency)
        n_refused = sum("job_id" not in item for item in items)
        caller.audit(
            tx, "batch.create", f"batch {batch.id}", n_jobs=len(items), n_refused=n_refused
        )
    response.headers["Location"] = f"/v1/batches/{batch.id}"
    return _body(teams.batch(caller, batch.id))


@router.get("")
def every(
    request: fastapi.Request,
    response: fastapi.Response,
    caller: auth.Reader,
    limit: Annotated[int, fastapi.Query(ge=1, le=100, description="items of a page at most")] = 20,
    after: request_bodies.After = None,
) -> response_bodies.Page[response_bodies.Batch]:
    """Batches of this key (an admin's: of all), newest first, with their jobs as they stand."""
    listed = teams.page_of_batches(caller, limit + 1, after)
    following = listed[limit - 1].row.id if len(listed) > limit else None
    responding.link(request, response, following)
    items = [_body(batch) for batch in listed[:limit]]
    return response_bodies.Page(items=items, next=following)


@router.get("/{batch_id}")
def get(batch_id: _Id, caller: auth.Reader) -> response_bodies.Batch:
    """A batch of this key (an admin's: of any), with its jobs as they stand."""
    return _body(teams.batch(caller, batch_id))


async def _submit(
    caller: auth.Caller, item: dict[str, Any], idempotency_key: str | None
) -> dict[str, Any]:
    """`job_id` of the job, or the problem that refused it."""
    try:
        job = request_bodies.NewJob.model_validate(item)
        made = await submission.submit(caller, submission.from_json(caller, job, idempotency_key))
    except pydantic.ValidationError as error:
        return {"problem": problems.content_of_invalid(error)}
    except (errors.ServiceError, engine_errors.FelixError) as error:
        return {"problem": problems.content_of(error)}
    return {"job_id": made.job.id}


def _body(batch: teams.Batch) -> response_bodies.Batch:
    row = batch.row
    return response_bodies.Batch(id=row.id, created_at=row.created_at, items=batch.items)


def _item_key(idempotency: store_jobs.IdempotencyKey | None, number: int) -> str | None:
    """The key of one job: of this batch and of no other request."""
    if idempotency is None:
        return None
    text = f"{idempotency.key}|{idempotency.request_sha256}|{number}"
    return f"batch-{hashlib.sha256(text.encode()).hexdigest()}"


templates_router = fastapi.APIRouter(prefix="/v1/templates", tags=["templates"])

_Name = Annotated[
    str, fastapi.Path(pattern=request_bodies.TEMPLATE_NAME, max_length=100, examples=["nightly"])
]


@templates_router.put("/{name}")
def save(
    name: _Name, body: request_bodies.NewJob, caller: auth.Submitter
) -> response_bodies.Template:
    """Save the body of `POST /v1/jobs` under a name of this key; an earlier one is replaced."""
    template = teams.save_template(caller, name, body)
    return response_bodies.Template.model_validate(template)


@templates_router.get("", name="every")
def every_template(caller: auth.Submitter) -> response_bodies.Listed[response_bodies.Template]:
    """The templates of this key, by name."""
    with caller.read() as tx:
        return response_bodies.listed(
            response_bodies.Template, requests.templates(tx, caller.key.id)
        )


@templates_router.delete("/{name}", status_code=204)
def delete(name: _Name, caller: auth.Submitter) -> None:
    """Remove a template of this key; its jobs stay."""
    teams.delete_template(caller, name)


@templates_router.post(
    "/{name}/jobs", status_code=201, responses=request_bodies.MADE_JOB, name="submit"
)
async def submit_template(
    name: _Name,
    changes: request_bodies.TemplateChanges,
    caller: auth.Submitter,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Queue a job of a template, with the fields that the body changes.

    Fields of `workload`, `params` and `options` are changed one by one, others as a whole.
    """
    with caller.read() as tx:
        template = requests.get_template(tx, caller.key.id, name)
    body = _job(teams.merged_with_template(template.job, changes.job))
    made = await submission.submit(caller, submission.from_json(caller, body, idempotency_key))
    return jobs.made_body(caller, response, made)


def _job(content: Mapping[str, Any]) -> request_bodies.NewJob:
    try:
        return request_bodies.NewJob.model_validate(content)
    except pydantic.ValidationError as error:
        raise problems.malformed(error, "job") from error
