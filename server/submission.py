"""Submissions: a workload is parsed in a limited child, its file stored, the job made.

If an earlier request with the same idempotency key made a job, that job is the result. Else the
quota is checked, the workload is parsed, its file stored, and the job made with its row. A
workload that is refused leaves nothing behind.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pydantic
from sqlalchemy import orm

from felix.search import strategies
from server import actions, errors
from server.parsing import databases
from server.parsing import parser as parsing
from server.store import artifacts, imports, jobs, networks, reuse
from server.store import tuners as store_tuners
from server.web import auth, dependencies, request_bodies, uploads

T = TypeVar("T")

#: Trials a task when a job sets neither trials nor seconds.
DEFAULT_TRIALS = 64

#: Requests that may wait for their turn to be parsed.
MAX_WAITING = 32

#: Why files of `torch.export.save` are refused.
PICKLED = (
    "a .pt2 file has pickled objects, which the service does not load: export the model to ONNX "
    "(torch.onnx.export), or tune it on your machine (felix tune)"
)


class Busy(errors.ServiceError):
    """Too many workloads wait to be read: try again."""

    status = 503


@dataclasses.dataclass(frozen=True, slots=True)
class Submission:
    """What to parse and what to store of it."""

    body: request_bodies.JobSettings
    workload: parsing.Workload
    #: the column `workload` of the job
    stored: dict[str, Any]
    idempotency: jobs.IdempotencyKey | None
    upload: uploads.Upload | None = None


def from_json(
    caller: auth.Caller, body: request_bodies.NewJob, idempotency_key: str | None
) -> Submission:
    """The submission of a JSON body.

    Raises:
        TooLarge: its program is longer than the caller's files may be.
    """
    refuse_long(caller, body)
    requested = body.workload
    workload: dict[str, Any]
    if isinstance(requested, request_bodies.OperatorWorkload):
        workload = {"kind": "operator", "params": requested.params}
        stored: dict[str, Any] = {"params": requested.params}
    else:
        content = requested.program.encode()
        workload = {"kind": "tir", "content": content}
        stored = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    parsed = parsing.Workload(name=requested.name, allow_tf32=body.allow_tf32, **workload)
    idempotency = _idempotency(idempotency_key, body, "")
    return Submission(body, parsed, stored | _tf32(body), idempotency)


def from_upload(upload: uploads.Upload, idempotency_key: str | None) -> Submission:
    """The submission of a received file.

    Raises:
        InvalidRequest: it is of a kind that is not read here.
    """
    body = upload.body
    if upload.name.lower().endswith(".pt2"):
        raise errors.InvalidRequest(PICKLED)
    workload = parsing.Workload(
        kind=body.kind,
        name=upload.name,
        shapes=body.shapes,
        values=body.values,
        allow_tf32=body.allow_tf32,
    )
    stored = {
        "file": upload.name,
        "sha256": upload.sha256,
        "size_bytes": upload.size_bytes,
        "shapes": body.shapes,
    }
    if body.values:
        stored["values"] = body.values
    if body.pytorch:
        stored["pytorch"] = True
    idempotency = _idempotency(idempotency_key, body, upload.sha256)
    return Submission(body, workload, stored | _tf32(body), idempotency, upload)


def _tf32(body: request_bodies.JobSettings) -> dict[str, Any]:
    """What the column `workload` says of TF32: nothing where it is not allowed."""
    return {"allow_tf32": True} if body.allow_tf32 else {}


async def submit(caller: auth.Caller, submission: Submission) -> jobs.RequestedJob:
    """Make the job of a submission, or return the one that the same request made before.

    Raises:
        InvalidRequest, Conflict, QuotaExceeded, StorageFull
        Forbidden: the priority needs a scope that the key lacks.
        Busy: too many requests wait.
    """
    actions.check_priority(caller, submission.body.priority)
    earlier = await anyio.to_thread.run_sync(_without_parsing, caller, submission)
    if earlier is not None:
        return earlier
    return await _in_turn(_parse_and_make, caller, submission)


def refuse_long(caller: auth.Caller, body: request_bodies.NewJob) -> None:
    """Refuse a program that is longer than the caller's files may be.

    Raises:
        TooLarge
    """
    workload = body.workload
    if isinstance(workload, request_bodies.TirWorkload):
        limit_bytes = actions.upload_limit(caller)
        if len(workload.program.encode()) > limit_bytes:
            raise uploads.too_large(limit_bytes)


def _idempotency(
    key: str | None, body: pydantic.BaseModel, content_sha256: str
) -> jobs.IdempotencyKey | None:
    content = body.model_dump(mode="json")
    if content["reuse"]:  # the default: requests hash as they did before there was a choice
        del content["reuse"]
    for name in ("allow_tf32", "pytorch"):
        if not content.get(name):
            content.pop(name, None)
    if content.get("network") is None:
        content.pop("network", None)
    return jobs.IdempotencyKey.of(key, [content, content_sha256])


def _without_parsing(caller: auth.Caller, submission: Submission) -> jobs.RequestedJob | None:
    """The job of an earlier request; a full quota is refused before the work of parsing."""
    with caller.read() as tx:
        if submission.idempotency is not None:
            earlier = jobs.made_before(tx, caller.key.id, submission.idempotency)
            if earlier is not None:
                return jobs.RequestedJob(earlier, False)
        quota = actions.quota(caller)
        n_bytes = 0 if submission.upload is None else submission.upload.size_bytes
        jobs.check_quota(tx, submission.body.trials, caller.key.id, quota, n_bytes)
    return None


async def read(caller: auth.Caller, submission: Submission) -> jobs.NewJob:
    """What a submission asks for; nothing is made.

    Raises:
        InvalidRequest
        Busy: too many requests wait.
    """
    return await _in_turn(_read, caller, submission)


async def import_database(
    caller: auth.Caller, upload: uploads.Upload, idempotency_key: str | None
) -> jobs.RequestedJob:
    """Make the job of a MetaSchedule database, or return the one that the same request made.

    Raises:
        InvalidRequest, Conflict, QuotaExceeded
        Busy: too many requests wait.
    """
    return await _in_turn(_import, caller, upload, idempotency_key)


async def _in_turn(work: Callable[..., T], caller: auth.Caller, *more: object) -> T:
    """Do work that parses, when it is its turn."""
    limiter = caller.services.parse_limiter
    if limiter.statistics().tasks_waiting >= MAX_WAITING:
        raise Busy()
    return await anyio.to_thread.run_sync(work, caller, *more, limiter=limiter)


def _read(caller: auth.Caller, submission: Submission) -> jobs.NewJob:
    parsed = caller.services.parser.parse(
        submission.workload, submission.body.target, _devices(caller.services)
    )
    return _new_job(submission, parsed, actions.quota(caller))


def _import(
    caller: auth.Caller, upload: uploads.Upload, idempotency_key: str | None
) -> jobs.RequestedJob:
    idempotency = _idempotency(idempotency_key, upload.body, upload.sha256)
    with open(upload.path, "rb") as file:
        text = databases.merge(databases.unpack(file))
    parsed = caller.services.parser.parse_database(upload.name, text)
    stored = {
        "file": upload.name,
        "sha256": upload.sha256,
        "size_bytes": upload.size_bytes,
        "n_records": parsed.n_records,
        "left_out": list(parsed.notes),
    }
    body = upload.body
    new = jobs.NewJob(
        name=body.name or upload.name,
        kind="database",
        op=upload.name,
        workload=stored,
        target=parsed.target,
        target_key=parsed.target_key,
        tasks=parsed.tasks,
        trials=None,
        seconds=None,
        strategy=default_strategy(parsed.target_key),
        note=body.note,
        tags=tuple(body.tags),
    )
    caller.services.blobs.put(upload.path)
    quota = actions.quota(caller)
    with caller.write() as tx:
        made = imports.create(
            tx, new, parsed.schedules, caller.key.id, idempotency, quota, upload.size_bytes
        )
        if made.is_new:
            _keep(tx, caller, made.job.id, upload)
            caller.audit(tx, "database.import", f"job {made.job.id}", target=new.target)
            made = jobs.RequestedJob(jobs.get(tx, made.job.id), True)
    return made


def _parse_and_make(caller: auth.Caller, submission: Submission) -> jobs.RequestedJob:
    workload, upload = submission.workload, submission.upload
    if upload is not None:
        workload = dataclasses.replace(workload, content=upload.path.read_bytes())
    parsed = caller.services.parser.parse(
        workload, submission.body.target, _devices(caller.services)
    )
    quota = actions.quota(caller)
    new = _new_job(submission, parsed, quota)
    if upload is not None:
        caller.services.blobs.put(upload.path)
    with caller.write() as tx:
        n_bytes = 0 if upload is None else upload.size_bytes
        made = jobs.create(tx, new, caller.key.id, submission.idempotency, quota, n_bytes)
        if made.is_new:
            if upload is not None:
                _keep(tx, caller, made.job.id, upload)
                if upload.body.is_network:
                    name = pathlib.PurePath(upload.name).stem
                    networks.create(tx, made.job.id, name, parsed.groups)
            caller.audit(tx, "job.create", f"job {made.job.id}", op=new.op, target=new.target)
            if submission.body.reuse:
                alive = store_tuners.alive_keys(tx, caller.services.settings.stale_s)
                request = reuse.Request(
                    job_id=made.job.id,
                    new=new,
                    versions=parsed.versions,
                    device_keys=alive,
                    project=caller.key.project,
                    store=caller.services.blobs,
                )
                reuse.apply(tx, request)
            made = jobs.RequestedJob(jobs.get(tx, made.job.id), True)
    return made


def _devices(services: dependencies.Services) -> list[dict[str, Any]]:
    """The devices of the tuners that are there; of all that were, if none is."""
    with services.unrestricted_db.read() as tx:
        tuners = store_tuners.every(tx, services.settings.stale_s)
    alive = [tuner for tuner in tuners if tuner.is_alive]
    return [device for tuner in alive or tuners for device in tuner.devices]


def _new_job(submission: Submission, parsed: parsing.Parsed, quota: jobs.Quota) -> jobs.NewJob:
    body, workload = submission.body, submission.workload
    trials = body.trials
    if trials is None:  # without a budget of trials the quota is one
        default = DEFAULT_TRIALS * len(parsed.tasks)
        trials = quota.max_trials if body.seconds else min(default, quota.max_trials)
    stored = dict(submission.stored)
    if parsed.notes:
        stored["left_out"] = list(parsed.notes)
    default_name = parsed.tasks[0].name if len(parsed.tasks) == 1 else workload.name
    as_requested = {"target", "seconds", "seed", "priority", "note"}
    return jobs.NewJob(
        name=body.name or default_name,
        kind=workload.kind,
        op=workload.name,
        workload=stored,
        target_key=parsed.target_key,
        tasks=parsed.tasks,
        trials=trials,
        strategy=body.strategy or default_strategy(parsed.target_key),
        options=body.chosen_options,
        tags=tuple(body.tags),
        **body.model_dump(include=as_requested),
    )


def default_strategy(target_key: str) -> str:
    """The strategy of a job for a target with such a key that names none."""
    return strategies.DEFAULTS[target_key.partition("/")[0]]


def _keep(tx: orm.Session, caller: auth.Caller, job_id: int, upload: uploads.Upload) -> None:
    """The uploaded file as an artifact: it is downloaded and deleted like the others."""
    artifacts.keep_content(tx, caller.services.blobs, upload.sha256, upload.path)
    new = artifacts.NewArtifact(
        name=f"input-{upload.name}",
        kind="input",
        media_type="application/octet-stream",
        sha256=upload.sha256,
        size_bytes=upload.size_bytes,
    )
    artifacts.attach(tx, job_id, new)
