"""Files of jobs: artifacts, databases in and out, the log as text."""

from __future__ import annotations

import base64
import json
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import anyio.to_thread
import fastapi
from sqlalchemy import orm
from starlette import responses

from server import actions, errors, states, submission
from server.api import jobs as job_routes
from server.api import responding
from server.parsing import databases
from server.store import artifacts, events, job_lists, jobs, rows
from server.web import auth, request_bodies, response_bodies, uploads

artifacts_router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}/artifacts", tags=["artifacts"])

_Name = Annotated[str, fastapi.Path(max_length=300)]


@artifacts_router.get("")
def every(
    job_id: request_bodies.Id, caller: auth.Reader
) -> response_bodies.Listed[response_bodies.Artifact]:
    """The artifacts of a job, by name."""
    with caller.read() as tx:
        jobs.get(tx, job_id)
        files = artifacts.of_job(tx, job_id)
    return response_bodies.listed(response_bodies.Artifact, files)


@artifacts_router.get("/{name}", **responding.file_of("application/octet-stream"))
def download(job_id: request_bodies.Id, name: _Name, caller: auth.Reader) -> fastapi.Response:
    """The content; `ETag` and `Repr-Digest` are its sha256."""
    with caller.read() as tx:
        artifact = artifacts.get(tx, job_id, name)
    digest = base64.b64encode(bytes.fromhex(artifact.sha256)).decode()
    quoted = urllib.parse.quote(artifact.name, safe="")
    return responses.StreamingResponse(
        caller.services.blobs.read(artifact.sha256),
        media_type=artifact.media_type,
        headers={
            "Content-Length": str(artifact.size_bytes),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quoted}",
            "ETag": f'"{artifact.sha256}"',
            "Repr-Digest": f"sha-256=:{digest}:",
            "X-Sha256": artifact.sha256,
            "Cache-Control": "private, no-cache",
        },
    )


databases_router = fastapi.APIRouter(tags=["databases"])

#: Jobs whose results one database may have.
MAX_JOBS = 200
#: Bytes of artifacts that one export reads.
MAX_READ_BYTES = 512 << 20

_Job = Annotated[int, fastapi.Query(ge=1, le=request_bodies.MAX_INT)]
_Text = Annotated[str | None, fastapi.Query(max_length=200)]
_FORM = uploads.form("application/zip", example="database.zip")


@databases_router.post(
    "/v1/databases", status_code=201, responses=request_bodies.MADE_JOB, openapi_extra=_FORM
)
async def import_database(
    request: fastapi.Request,
    caller: auth.Submitter,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Import a zip of `database_workload.json` and `database_tuning_record.json`.

    It becomes a job that has ended, of kind `database`, with a task for each program. Jobs of
    these programs measure its fastest schedules first.
    """
    limit = actions.upload_limit(caller)
    async with uploads.receive(request, limit) as file:
        made = await submission.import_database(caller, file, idempotency_key)
    return job_routes.made_body(caller, response, made)


@databases_router.get("/v1/database", **responding.file_of("application/zip", fastapi.Response))
async def export_database(
    caller: auth.Reader,
    job: Annotated[list[_Job] | None, fastapi.Query(max_length=MAX_JOBS)] = None,
    tag: Annotated[list[str] | None, fastapi.Query(max_length=32)] = None,
    op: _Text = None,
    program: _Text = None,
    target_key: _Text = None,
    mine: Annotated[bool, fastapi.Query(description="only jobs of this key")] = False,
) -> fastapi.Response:
    """The best schedules of several jobs as one MetaSchedule database, a zip that plain TVM loads.

    `?job=1&job=2`, or a filter: of the jobs that succeeded, the newest 200. An imported database
    gives the records that were imported. Equal records are one. A generated kernel has no trace,
    so it has no record; where it is all that a job has, the zip's `left_out.txt` names the job.
    """
    chosen = job_lists.Filter(
        states=(states.State.SUCCEEDED,),
        tags=tuple(tag or ()),
        op=op,
        program=program,
        target_key=target_key,
        key_id=caller.key.id if mine else None,
    )
    content = await anyio.to_thread.run_sync(_export, caller, job, chosen)
    headers = {"Content-Disposition": 'attachment; filename="database.zip"'}
    return fastapi.Response(content, media_type="application/zip", headers=headers)


def _export(caller: auth.Caller, job_ids: list[int] | None, chosen: job_lists.Filter) -> bytes:
    with caller.read() as tx:
        sources = _sources(tx, job_ids, chosen)
    if not sources:
        raise errors.NotFound("no job of these has an artifact with a database")
    by_content: dict[str, list[int]] = {}
    for source in sources:
        by_content.setdefault(source.sha256, []).append(source.job_id)
    merged: list[databases.Database] = []
    left_out: list[int] = []
    for sha256, numbers in by_content.items():
        with tempfile.TemporaryFile() as file:
            for chunk in caller.services.blobs.read(sha256):
                file.write(chunk)
            file.seek(0)
            of_job = databases.unpack_any(file)
        merged += of_job
        left_out += [] if of_job else numbers
    if not merged:
        raise errors.NotFound("these jobs have generated kernels alone: no trace makes them")
    return databases.pack(databases.merge(merged), _note(left_out))


def _note(left_out: Sequence[int]) -> str:
    """Why some jobs have no record."""
    if not left_out:
        return ""
    jobs_text = ", ".join(map(str, sorted(left_out)))
    return (
        f"left out, because their best kernels are generated and have no trace: jobs {jobs_text}\n"
    )


def _sources(
    tx: orm.Session, job_ids: list[int] | None, chosen: job_lists.Filter
) -> list[rows.Artifact]:
    """The files of the jobs that have their databases; jobs that are named must have one."""
    if job_ids is None:
        selected = list(job_lists.page(tx, chosen, MAX_JOBS).items)
    else:
        selected = [jobs.get(tx, number) for number in dict.fromkeys(job_ids)]
    sources, size_bytes = [], 0
    for job in selected:
        kind = "input" if job.kind == "database" else "bundle"
        of_job = [each for each in artifacts.of_job(tx, job.id) if each.kind == kind]
        if job_ids is not None and not of_job:
            raise errors.Conflict(f"job {job.id} has no artifact: leave it out")
        sources += of_job
        size_bytes += sum(source.size_bytes for source in of_job)
        if size_bytes > MAX_READ_BYTES:
            raise errors.InvalidRequest(
                f"the artifacts of these jobs have more than {MAX_READ_BYTES} bytes: take fewer"
            )
    return sources


log_router = fastapi.APIRouter(prefix="/v1/jobs/{job_id}", tags=["events"])

#: Events of one transaction.
LOG_BATCH = 500


@log_router.get("/log", **responding.file_of("text/plain"))
def log(
    job_id: request_bodies.Id,
    caller: auth.Reader,
    all_: Annotated[
        bool, fastapi.Query(alias="all", description="also each trial, round and checkpoint")
    ] = False,
) -> fastapi.Response:
    """The log of a job as text, oldest first; where the time went at its end."""
    with caller.read() as tx:
        job = jobs.get(tx, job_id)
    kinds = tuple(kind for kind in events.Type if all_ or kind not in events.FREQUENT)
    return responses.StreamingResponse(
        _lines(caller, job, kinds), media_type="text/plain; charset=utf-8"
    )


def _lines(caller: auth.Caller, job: rows.Job, kinds: tuple[events.Type, ...]) -> Iterator[str]:
    seq = 0
    while True:
        with caller.read() as tx:
            page = events.after(tx, job.id, seq, LOG_BATCH, kinds)
        yield "".join(_line(event) for event in page)
        if len(page) < LOG_BATCH:
            break
        seq = page[-1].seq
    times = {name: value for name, value in (job.breakdown or {}).items() if value}
    if times:
        yield f"# where the time went: {_pairs(times)}\n"


def _line(event: rows.Event) -> str:
    move = {"from": event.from_state, "to": event.to_state}
    at = event.at.isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{at} {event.seq} {event.type} {_pairs({**move, **event.payload})}".rstrip() + "\n"


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={_value(value)}" for name, value in values.items() if value is not None
    )


def _value(value: Any) -> str:
    """One word, or JSON: no text of a program can begin a line of its own."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value.isalnum() and value.isascii():
        return value
    return json.dumps(value)
