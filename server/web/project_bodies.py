"""Bodies of requests and responses about projects and webhooks."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from server import states as job_states
from server.web import request_bodies, response_bodies

#: Names of projects are permanent and appear in addresses.
ProjectName = Annotated[
    str, pydantic.Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", examples=["vision"])
]

ReportedState = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]

#: Bytes of a webhook's address.
MAX_URL = 2000

_Limit = Annotated[int | None, pydantic.Field(ge=0, le=request_bodies.MAX_INT)]


class ProjectLimits(request_bodies.RequestBody):
    """What a project may have; null is the service's limit, or none."""

    max_running_jobs: _Limit = pydantic.Field(
        default=None, description="jobs of all its keys that are not finished", examples=[8]
    )
    max_trials: Annotated[int | None, pydantic.Field(ge=1, le=request_bodies.MAX_INT)] = (
        pydantic.Field(default=None, description="of one job")
    )
    max_bytes: Annotated[int | None, pydantic.Field(ge=0, le=2**62)] = pydantic.Field(
        default=None, description="of uploads and artifacts, each content counted once"
    )
    retention_days: Annotated[int | None, pydantic.Field(ge=1, le=36_500)] = pydantic.Field(
        default=None,
        description="files of jobs that ended so long ago are removed, unless tagged `keep`",
    )


class NewProject(ProjectLimits):
    """A project."""

    name: ProjectName


class Project(response_bodies.ResponseBody):
    """A team: its keys see its jobs and no others."""

    name: str = pydantic.Field(examples=["vision"])
    created_at: response_bodies.Time
    max_running_jobs: int | None
    max_trials: int | None
    max_bytes: int | None
    retention_days: int | None


class ProjectUsage(Project):
    """A project, and what it has now."""

    n_running_jobs: int = pydantic.Field(description="jobs that are not finished")
    n_bytes: int = pydantic.Field(description="of uploads and artifacts")


class NewWebhook(request_bodies.RequestBody):
    """An address that is told of changes of the project's jobs."""

    url: str = pydantic.Field(
        min_length=1, max_length=MAX_URL, examples=["https://ci.example/felix"]
    )
    states: list[ReportedState] = pydantic.Field(
        default=["running", "paused", "succeeded", "failed", "cancelled"],
        min_length=1,
        max_length=6,
        description="what is reported",
    )

    @property
    def reported(self) -> list[job_states.State]:
        """The states, each once."""
        return [job_states.State(name) for name in dict.fromkeys(self.states)]


class Webhook(response_bodies.ResponseBody):
    """A webhook; its secret is shown once, when it is made."""

    id: int
    project: str
    url: str
    states: list[str]
    created_at: response_bodies.Time
    key_id: int | None = pydantic.Field(description="the key that made it")


class MadeWebhook(response_bodies.ResponseBody):
    """A new webhook, with the secret that signs its notifications."""

    webhook: Webhook
    secret: str = pydantic.Field(description="shown only now", examples=["whsec_..."])


class Delivery(response_bodies.ResponseBody):
    """One notification: `pending` until the receiver accepts it, `dead` if it never did."""

    id: int
    webhook_id: int
    event_id: str = pydantic.Field(
        description="the same for all tries: receivers drop what they have", examples=["job-7-2"]
    )
    body: str = pydantic.Field(description="the JSON that is sent")
    state: str = pydantic.Field(examples=["delivered"])
    attempts: int
    created_at: response_bodies.Time
    not_before: response_bodies.Time = pydantic.Field(description="earliest time of the next try")
    delivered_at: response_bodies.Time | None
    last_status: int | None = pydantic.Field(description="HTTP status of the last try")
    last_error: str | None
