"""`/v1/jobs`: submit, list, read, change, delete."""

from __future__ import annotations

from typing import Annotated

import fastapi
from sqlalchemy import orm

from server import actions, states, submission
from server.api import responding
from server.api.jobs import estimates
from server.store import job_lists, jobs, reuse
from server.web import auth, dependencies, request_bodies, response_bodies, uploads

router = fastapi.APIRouter(prefix="/v1/jobs", tags=["jobs"])

_Text = Annotated[str | None, fastapi.Query(max_length=200)]
_FORM = uploads.form(
    "application/octet-stream",
    job={
        "type": "string",
        "description": "JSON: kind (onnx or tir), shapes, network, and the fields of "
        "`POST /v1/jobs` but for workload",
        "examples": ['{"kind": "onnx", "target": "llvm", "trials": 256}'],
    },
)


@router.post("", status_code=201, responses=request_bodies.MADE_JOB)
async def submit(
    body: request_bodies.NewJob,
    caller: auth.Submitter,
    services: dependencies.ServicesDep,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Queue a job for an operator of the catalogue or a serialized program."""
    submission.refuse_long(body, actions.upload_limit(services, caller))
    made = await submission.submit(services, caller, submission.from_json(body, idempotency_key))
    return estimates.made_body(services, caller, response, made)


@router.post("/upload", status_code=201, responses=request_bodies.MADE_JOB, openapi_extra=_FORM)
async def upload(
    request: fastapi.Request,
    caller: auth.Submitter,
    services: dependencies.ServicesDep,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Queue a job for an ONNX model or a TIR file."""
    async with uploads.receive(request, actions.upload_limit(services, caller)) as file:
        from_upload = submission.from_upload(file, idempotency_key)
        made = await submission.submit(services, caller, from_upload)
    return estimates.made_body(services, caller, response, made)


async def chosen_jobs(
    caller: auth.Reader,
    state: Annotated[list[states.State] | None, fastapi.Query()] = None,
    target_key: _Text = None,
    kind: _Text = None,
    op: _Text = None,
    tag: Annotated[list[str] | None, fastapi.Query(max_length=32)] = None,
    program: Annotated[
        _Text, fastapi.Query(description="`program_key` or `task_key` of one of its tasks")
    ] = None,
    q: Annotated[_Text, fastapi.Query(description="part of name or operator")] = None,
    mine: Annotated[bool, fastapi.Query(description="only jobs of this key")] = False,
    project: Annotated[_Text, fastapi.Query(description="for admins: only this project")] = None,
) -> job_lists.Filter:
    """The filter of a request for jobs."""
    return job_lists.Filter(
        states=tuple(state or ()),
        target_key=target_key,
        kind=kind,
        op=op,
        tags=tuple(tag or ()),
        text=q,
        program=program,
        key_id=caller.key.id if mine else None,
        project=project,
    )


Chosen = Annotated[job_lists.Filter, fastapi.Depends(chosen_jobs)]


@router.get("")
def find(
    request: fastapi.Request,
    response: fastapi.Response,
    caller: auth.Reader,
    chosen: Chosen,
    oldest_first: bool = False,
    limit: request_bodies.Limit = 50,
    after: request_bodies.After = None,
) -> response_bodies.Page[response_bodies.Job]:
    """Jobs by number, newest first. Several states mean any of them, several tags all of them."""
    with caller.read() as tx:
        page = job_lists.page(tx, chosen, limit, after, oldest_first)
    responding.link(request, response, page.next)
    items = [response_bodies.Job.model_validate(job) for job in page.jobs]
    return response_bodies.Page(items=items, next=page.next)


@router.get("/{job_id}", response_model=response_bodies.Job)
async def get(
    job_id: request_bodies.Id, caller: auth.Reader, services: dependencies.ServicesDep
) -> fastapi.Response:
    """A job."""

    def read(tx: orm.Session) -> response_bodies.Job:
        return estimates.job_body(tx, services, jobs.get(tx, job_id))

    return await responding.respond(services, caller, "job", (job_id,), read)


@router.get("/{job_id}/similar")
def similar(
    job_id: request_bodies.Id, caller: auth.Reader
) -> response_bodies.Listed[response_bodies.SimilarJob]:
    """Other jobs of the same operator or with a program of this one, the newest twenty."""
    with caller.read() as tx:
        others = reuse.similar(tx, job_id)
    return response_bodies.Listed(
        items=[response_bodies.SimilarJob.model_validate(job) for job in others]
    )


@router.patch("/{job_id}")
def change(
    job_id: request_bodies.Id,
    body: request_bodies.Changes,
    caller: auth.Submitter,
    services: dependencies.ServicesDep,
) -> response_bodies.Job:
    """Change name, note, priority or tags, in any state."""
    return response_bodies.Job.model_validate(actions.change_job(services, caller, job_id, body))


@router.delete("/{job_id}", status_code=204)
def delete(
    job_id: request_bodies.Id, caller: auth.Submitter, services: dependencies.ServicesDep
) -> None:
    """Remove an ended job with trials, events and artifacts."""
    actions.delete_job(services, caller, job_id)
