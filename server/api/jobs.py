"""`/v1/jobs`: submit, list, read, change, move, delete; as CSV; `/v1/estimate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import fastapi
from sqlalchemy import orm
from starlette import responses

from server import actions, states, submission
from server.api import responding
from server.store import job_lists, jobs, networks, queue, reuse, rows
from server.web import auth, request_bodies, response_bodies, uploads

router = fastapi.APIRouter(prefix="/v1/jobs", tags=["jobs"])

_Text = Annotated[str | None, fastapi.Query(max_length=200)]
_FORM = uploads.form(
    "application/octet-stream",
    job={
        "type": "string",
        "description": "JSON: kind (onnx or tir), shapes, values, network, and the fields of "
        "`POST /v1/jobs` but for workload",
        "examples": ['{"kind": "onnx", "target": "llvm", "trials": 256}'],
    },
)


@router.post("", status_code=201, responses=request_bodies.MADE_JOB)
async def submit(
    body: request_bodies.NewJob,
    caller: auth.Submitter,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Queue a job for an operator of the catalogue or a serialized program."""
    made = await submission.submit(caller, submission.from_json(caller, body, idempotency_key))
    return made_body(caller, response, made)


@router.post("/upload", status_code=201, responses=request_bodies.MADE_JOB, openapi_extra=_FORM)
async def upload(
    request: fastapi.Request,
    caller: auth.Submitter,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Queue a job for an ONNX model or a TIR file."""
    async with uploads.receive(request, actions.upload_limit(caller)) as file:
        from_upload = submission.from_upload(file, idempotency_key)
        made = await submission.submit(caller, from_upload)
    return made_body(caller, response, made)


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
    items = [response_bodies.Job.model_validate(job) for job in page.items]
    return response_bodies.Page(items=items, next=page.next)


@router.get("/{job_id}", response_model=response_bodies.Job)
async def get(job_id: request_bodies.Id, caller: auth.Reader) -> fastapi.Response:
    """A job."""
    stale_s = caller.services.settings.stale_s
    return await responding.respond(
        caller, "job", (job_id,), lambda tx: job_body(tx, jobs.get(tx, job_id), stale_s)
    )


@router.get("/{job_id}/similar")
def similar(
    job_id: request_bodies.Id, caller: auth.Reader
) -> response_bodies.Listed[response_bodies.SimilarJob]:
    """Other jobs of the same operator or with a program of this one, the newest twenty."""
    with caller.read() as tx:
        return response_bodies.listed(response_bodies.SimilarJob, reuse.similar(tx, job_id))


@router.patch("/{job_id}")
def change(
    job_id: request_bodies.Id, body: request_bodies.Changes, caller: auth.Submitter
) -> response_bodies.Job:
    """Change name, note, priority or tags, in any state."""
    return response_bodies.Job.model_validate(actions.change_job(caller, job_id, body))


@router.delete("/{job_id}", status_code=204)
def delete(job_id: request_bodies.Id, caller: auth.Submitter) -> None:
    """Remove an ended job with trials, events and artifacts."""
    actions.delete_job(caller, job_id)


control_router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["control"])

_MEANINGS = {
    actions.Action.PAUSE: "Stop tuning for now; everything measured stays.",
    actions.Action.RESUME: "Go on with a paused job.",
    actions.Action.CANCEL: "Drop the job; what was measured stays readable, there is no artifact.",
    actions.Action.STOP: "End the job early, with the artifact of the best schedules so far.",
    actions.Action.RETRY: "Go on with a failed or cancelled job, with all it has measured.",
}


def _moving(action: actions.Action) -> Callable[..., response_bodies.Job]:
    def move(job_id: request_bodies.Id, caller: auth.Submitter) -> response_bodies.Job:
        return response_bodies.Job.model_validate(actions.move_job(caller, job_id, action))

    return move


for _action, _meaning in _MEANINGS.items():
    control_router.post(f"/{_action}", name=_action, description=_meaning)(_moving(_action))


estimates_router = fastapi.APIRouter(prefix="/v1/estimate", tags=["jobs"])


@estimates_router.post("")
async def estimate(
    body: request_bodies.NewJob, caller: auth.Submitter
) -> response_bodies.Estimate:
    """What a job would take if it were submitted now; nothing is queued."""
    new = await submission.read(caller, submission.from_json(caller, body, None))
    work = queue.Work(
        target_key=new.target_key,
        trials=new.trials,
        seconds=new.seconds,
        priority=new.priority,
        key_id=caller.key.id,
    )
    with caller.read() as tx:
        made = queue.estimate(tx, work, caller.services.settings.stale_s)
    return response_bodies.Estimate.model_validate(made)


def job_body(tx: orm.Session, job: rows.Job, stale_s: float) -> response_bodies.Job:
    """A job as a response: with its network, and while it is queued with its estimate."""
    body = response_bodies.Job.model_validate(job)
    more: dict[str, response_bodies.ResponseBody] = {}
    network = networks.of_job(tx, job.id, jobs.tasks(tx, job.id)) if job.kind == "onnx" else None
    if network is not None:
        more["network"] = response_bodies.Network.model_validate(network)
    if job.state is states.State.QUEUED:
        work = queue.Work(job_id=job.id, **{name: getattr(job, name) for name in queue.OF_JOB})
        estimated = queue.estimate(tx, work, stale_s)
        more["estimate"] = response_bodies.Estimate.model_validate(estimated)
    return body.model_copy(update=more)


def made_body(
    caller: auth.Caller, response: fastapi.Response, made: jobs.RequestedJob
) -> response_bodies.Job:
    """The response to a request that made a job, or whose repetition did not."""
    response.headers["Location"] = f"/v1/jobs/{made.job.id}"
    if not made.is_new:
        response.status_code = 200
    with caller.read() as tx:
        return job_body(tx, made.job, caller.services.settings.stale_s)


listing_router = fastapi.APIRouter(tags=["jobs"])

#: Columns of the CSV file, in order.
COLUMNS = (
    "id", "project", "name", "state", "reason", "error", "message", "priority", "kind", "op",
    "target", "target_key", "key_id", "tags", "trials", "seconds", "n_tasks", "n_trials",
    "n_failed", "best_us", "unscheduled_us", "speedup", "gflops", "elapsed_s", "measured_s",
    "created_at", "started_at", "finished_at", "note",
)  # fmt: skip

#: Jobs of one transaction.
CSV_BATCH = 500


@listing_router.get("/v1/jobs.csv", **responding.file_of("text/csv"))
def as_csv(caller: auth.Reader, chosen: Chosen) -> fastapi.Response:
    """The jobs that `GET /v1/jobs` lists, all of them, newest first."""
    return responses.StreamingResponse(
        _lines(caller, chosen),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="jobs.csv"'},
    )


def _lines(caller: auth.Caller, chosen: job_lists.Filter) -> Iterator[str]:
    yield responding.csv_text([COLUMNS])
    after: int | None = None
    while True:
        with caller.read() as tx:
            page = job_lists.page(tx, chosen, CSV_BATCH, after)
        yield responding.csv_text([_cell(job, name) for name in COLUMNS] for job in page.items)
        after = page.next
        if after is None:
            return


def _cell(job: rows.Job, name: str) -> object:
    value = getattr(job, name)
    return responding.cell(" ".join(value) if name == "tags" else value)
