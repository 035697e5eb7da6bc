"""Templates of the caller's key: named requests for jobs, to be submitted with changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server import errors, job_actions, submission
from server.store import jobs, requests, rows
from server.web import auth, dependencies, request_bodies

#: Settings of a job that a template of it has, where they are not the default.
_SETTINGS = ("target", "trials", "seconds", "seed", "strategy", "priority", "note")


def save(
    services: dependencies.Services, caller: auth.Caller, name: str, body: request_bodies.NewJob
) -> rows.Template:
    """Save a request under a name; an earlier template of that name is replaced.

    Raises:
        TooLarge: its program is longer than the caller's files may be.
        QuotaExceeded: the key has as many templates as it may have.
    """
    submission.refuse_long(body, job_actions.upload_limit(services, caller))
    content = body.model_dump(mode="json", exclude_unset=True)
    with caller.write() as tx:
        template = requests.save_template(tx, caller.key.id, name, content)
        caller.audit(tx, "template.save", f"template {name}")
    return template


def delete(caller: auth.Caller, name: str) -> None:
    """Remove a template; its jobs stay.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        requests.delete_template(tx, caller.key.id, name)
        caller.audit(tx, "template.delete", f"template {name}")


def request_of(caller: auth.Caller, job_id: int) -> request_bodies.NewJob:
    """The request that makes a job like this one; its name is left to be made anew.

    Raises:
        NotFound
        InvalidRequest: the job is of a file that requests in JSON cannot have.
    """
    with caller.read() as tx:
        job = jobs.get(tx, job_id)
        if not can_be_template(job):
            raise errors.InvalidRequest(
                "only jobs of operators and of TIR programs can be templates: "
                "a model or a database is a file, which a template cannot have"
            )
        programs = jobs.programs(tx, job_id) if job.kind == "tir" else []
    if job.kind == "operator":
        workload = {"kind": "operator", "name": job.op, "params": job.workload.get("params", {})}
    else:
        workload = {"kind": "tir", "name": job.op, "program": programs[0]}
    defaults = request_bodies.JobSettings()
    settings = {
        name: getattr(job, name)
        for name in _SETTINGS
        if getattr(job, name) != getattr(defaults, name)
    }
    if job.strategy == submission.default_strategy(job.target_key):
        del settings["strategy"]
    content = {"workload": workload, **settings}
    if job.tags:
        content["tags"] = list(job.tags)
    if job.options:
        content["options"] = job.options
    return request_bodies.NewJob.model_validate(content)


def can_be_template(job: rows.Job) -> bool:
    """Whether a template can have what this job tunes."""
    return job.kind in ("operator", "tir")


def merged(job: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A request with changes; objects are merged, anything else is replaced."""
    result = dict(job)
    for name, value in changes.items():
        before = result.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            result[name] = merged(before, value)
        else:
            result[name] = value
    return result
