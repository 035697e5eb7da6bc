"""`/v1/jobs`: submit, list, read, change, delete."""

from __future__ import annotations

from typing import Annotated, Any

import fastapi
from sqlalchemy import orm

from server import job_actions, states, submission
from server.api import paging
from server.cache import response_cache
from server.store import jobs
from server.web import (
    auth,
    dependencies,
    request_bodies,
    response_bodies,
    shared_response,
    uploads,
)

router = fastapi.APIRouter(prefix="/v1/jobs", tags=["jobs"])

_Text = Annotated[str | None, fastapi.Query(max_length=200)]
_MADE: dict[int | str, dict[str, Any]] = {
    200: {"model": response_bodies.Job, "description": "An earlier request made it"},
    201: {"headers": {"Location": {"schema": {"type": "string"}}}},
}
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "contentMediaType": "application/octet-stream"},
                        "job": {
                            "type": "string",
                            "description": "JSON: kind (onnx or tir), shapes, and the fields of "
                            "`POST /v1/jobs` but for workload",
                            "examples": ['{"kind": "onnx", "target": "llvm", "trials": 256}'],
                        },
                    },
                }
            }
        },
    }
}


@router.post("", status_code=201, responses=_MADE)
async def submit(
    body: request_bodies.NewJob,
    caller: auth.Submitter,
    services: dependencies.ServicesDep,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Queue a job for an operator of the catalogue or a serialized program."""
    submission.refuse_long(body, job_actions.upload_limit(services, caller))
    made = await submission.submit(services, caller, submission.from_json(body, idempotency_key))
    return _made(response, made)


@router.post("/upload", status_code=201, responses=_MADE, openapi_extra=_FORM)
async def upload(
    request: fastapi.Request,
    caller: auth.Submitter,
    services: dependencies.ServicesDep,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Queue a job for an ONNX model or a TIR file."""
    async with uploads.receive(request, job_actions.upload_limit(services, caller)) as file:
        from_upload = submission.from_upload(file, idempotency_key)
        made = await submission.submit(services, caller, from_upload)
    return _made(response, made)


@router.get("")
def find(
    request: fastapi.Request,
    response: fastapi.Response,
    caller: auth.Reader,
    services: dependencies.ServicesDep,
    state: Annotated[list[states.State] | None, fastapi.Query()] = None,
    target_key: _Text = None,
    kind: _Text = None,
    op: _Text = None,
    tag: Annotated[list[str] | None, fastapi.Query(max_length=32)] = None,
    q: Annotated[_Text, fastapi.Query(description="part of name or operator")] = None,
    mine: Annotated[bool, fastapi.Query(description="only jobs of this key")] = False,
    oldest_first: bool = False,
    limit: request_bodies.Limit = 50,
    after: request_bodies.After = None,
) -> response_bodies.Page[response_bodies.Job]:
    """Jobs by number, newest first. Several states mean any of them, several tags all of them."""
    chosen = jobs.Filter(
        states=tuple(state or ()),
        target_key=target_key,
        kind=kind,
        op=op,
        tags=tuple(tag or ()),
        text=q,
        key_id=caller.key.id if mine else None,
    )
    with services.db.read() as tx:
        page = jobs.page(tx, chosen, limit, after, oldest_first)
    paging.link(request, response, page.next)
    items = [response_bodies.Job.model_validate(job) for job in page.jobs]
    return response_bodies.Page(items=items, next=page.next)


@router.get("/{job_id}", response_model=response_bodies.Job)
async def get(
    job_id: request_bodies.Id, caller: auth.Reader, services: dependencies.ServicesDep
) -> fastapi.Response:
    """A job."""

    def read(tx: orm.Session) -> response_bodies.Job:
        return response_bodies.Job.model_validate(jobs.get(tx, job_id))

    return await shared_response.respond(services, response_cache.Query("job", (job_id,)), read)


@router.patch("/{job_id}")
def change(
    job_id: request_bodies.Id,
    body: request_bodies.Changes,
    caller: auth.Submitter,
    services: dependencies.ServicesDep,
) -> response_bodies.Job:
    """Change name, note, priority or tags, in any state."""
    return response_bodies.Job.model_validate(job_actions.change(services, caller, job_id, body))


@router.delete("/{job_id}", status_code=204)
def delete(
    job_id: request_bodies.Id, caller: auth.Submitter, services: dependencies.ServicesDep
) -> None:
    """Remove an ended job with trials, events and artifacts."""
    job_actions.delete(services, caller, job_id)


def _made(response: fastapi.Response, made: jobs.Made) -> response_bodies.Job:
    response.headers["Location"] = f"/v1/jobs/{made.job.id}"
    if not made.is_new:
        response.status_code = 200
    return response_bodies.Job.model_validate(made.job)
