"""What callers do to batches, projects, templates and webhooks.

Routes of the API and forms of the dashboard call these, so that both do, refuse and record the
same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import orm

from felix.search import strategies
from server import errors, notifications, states, submission
from server.database import models
from server.store import jobs, projects, requests, rows, statements, webhooks
from server.web import auth, request_bodies, response_bodies


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A batch and what became of it: of each job that was asked for the job, or the problem that
    refused it. A job that was deleted meanwhile has its number alone."""

    row: rows.Batch
    items: list[response_bodies.BatchItem]

    @property
    def n_refused(self) -> int:
        """Jobs that were not made."""
        return sum(item.job_id is None for item in self.items)

    @property
    def n_ended(self) -> int:
        """Jobs that need no tuner any more, deleted ones too."""
        return sum(
            item.job_id is not None and (item.state is None or item.state in states.ENDED)
            for item in self.items
        )

    @property
    def n_jobs(self) -> int:
        """Jobs that were made."""
        return len(self.items) - self.n_refused

    @property
    def progress(self) -> float:
        """Share of its jobs that have ended, 0 to 1."""
        return self.n_ended / self.n_jobs if self.n_jobs else 1.0

    @property
    def counts(self) -> dict[states.State, int]:
        """Jobs by state; states without jobs are left out."""
        reached = [item.state for item in self.items if item.state is not None]
        return {state: reached.count(state) for state in states.State if state in reached}


def batch(caller: auth.Caller, batch_id: int) -> Batch:
    """One batch.

    Raises:
        NotFound
    """
    with caller.read() as tx:
        row = requests.get_batch(tx, batch_id, _key_id(caller))
        return _batches_of(tx, [row])[0]


def page_of_batches(caller: auth.Caller, limit: int, after: int | None = None) -> list[Batch]:
    """Batches, newest first; `after` is the last number of the page before."""
    with caller.read() as tx:
        return _batches_of(tx, requests.page_of_batches(tx, _key_id(caller), limit, after))


def _key_id(caller: auth.Caller) -> int | None:
    return None if caller.key.can_admin else caller.key.id


def _batches_of(tx: orm.Session, listed: Sequence[rows.Batch]) -> list[Batch]:
    job_ids = [item["job_id"] for row in listed for item in row.items if "job_id" in item]
    by_job = statements.by_number(tx, models.Job.id, models.Job.state, job_ids)

    def read(item: Mapping[str, Any]) -> response_bodies.BatchItem:
        job_id = item.get("job_id")
        return response_bodies.BatchItem(
            job_id=job_id, state=by_job.get(job_id or 0), problem=item.get("problem")
        )

    return [Batch(row, list(map(read, row.items))) for row in listed]


def create_project(caller: auth.Caller, body: request_bodies.NewProject) -> rows.Project:
    """Make a project.

    Raises:
        Conflict: there is one of that name.
    """
    with caller.write() as tx:
        project = projects.create(tx, **body.model_dump())
        caller.audit(tx, "project.create", f"project {project.name}")
    return project


def limit_project(
    caller: auth.Caller, name: str, body: request_bodies.ProjectLimits
) -> rows.Project:
    """Replace the limits of a project.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        project = projects.change(tx, name, **body.model_dump())
        caller.audit(tx, "project.change", f"project {name}", **body.model_dump())
    return project


#: Settings of a job that a template of it has, where they are not the default.
_SETTINGS = ("target", "trials", "seconds", "seed", "strategy", "priority", "note")


def save_template(caller: auth.Caller, name: str, body: request_bodies.NewJob) -> rows.Template:
    """Save a request under a name; an earlier template of that name is replaced.

    Raises:
        TooLarge: its program is longer than the caller's files may be.
        QuotaExceeded: the key has as many templates as it may have.
    """
    submission.refuse_long(caller, body)
    content = body.model_dump(mode="json", exclude_unset=True)
    with caller.write() as tx:
        template = requests.save_template(tx, caller.key.id, name, content)
        caller.audit(tx, "template.save", f"template {name}")
    return template


def delete_template(caller: auth.Caller, name: str) -> None:
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
        InvalidRequest: the job is of a file that requests in JSON cannot have, or of a strategy
            that there is no more.
    """
    with caller.read() as tx:
        job = jobs.get(tx, job_id)
        if not can_be_template(job):
            raise errors.InvalidRequest(
                "only jobs of operators and of TIR programs can be templates: "
                "a model or a database is a file, which a template cannot have"
            )
        if why := strategies.problem(job.strategy):
            raise errors.InvalidRequest(why)
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


def merged_with_template(job: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A request with changes; objects are merged, anything else is replaced."""
    result = dict(job)
    for name, value in changes.items():
        before = result.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            result[name] = merged_with_template(before, value)
        else:
            result[name] = value
    return result


def create_webhook(
    caller: auth.Caller, body: request_bodies.NewWebhook
) -> webhooks.CreatedWebhook:
    """Make a webhook; its secret is in the result and nowhere else.

    Raises:
        InvalidRequest: it is no address that notifications may go to.
        QuotaExceeded: the project has as many as it may have.
    """
    notifications.check_url(body.url, caller.services.settings.webhook_allow_private)
    with caller.write() as tx:
        made = webhooks.create(tx, caller.key.project, body.url, body.reported, caller.key.id)
        caller.audit(tx, "webhook.create", f"webhook {made.webhook.id}", url=body.url)
    return made


def delete_webhook(caller: auth.Caller, webhook_id: int) -> None:
    """Remove a webhook and its notifications.

    Raises:
        NotFound
    """
    with caller.write() as tx:
        webhooks.delete(tx, webhook_id)
        caller.audit(tx, "webhook.delete", f"webhook {webhook_id}")
