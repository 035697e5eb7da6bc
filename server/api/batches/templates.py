"""`/v1/templates`: named requests for jobs, to be submitted with changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import fastapi
import pydantic
from fastapi import exceptions

from server import actions, submission, teams
from server.api.jobs import estimates
from server.store import requests
from server.web import auth, dependencies, request_bodies, response_bodies

router = fastapi.APIRouter(prefix="/v1/templates", tags=["templates"])

_Name = Annotated[
    str,
    fastapi.Path(pattern=request_bodies.TEMPLATE_NAME, max_length=100, examples=["nightly"]),
]


@router.put("/{name}")
def save(
    name: _Name,
    body: request_bodies.NewJob,
    caller: auth.Submitter,
    services: dependencies.ServicesDep,
) -> response_bodies.Template:
    """Save the body of `POST /v1/jobs` under a name of this key; an earlier one is replaced."""
    template = teams.save_template(services, caller, name, body)
    return response_bodies.Template.model_validate(template)


@router.get("")
def every(
    caller: auth.Submitter, services: dependencies.ServicesDep
) -> response_bodies.Listed[response_bodies.Template]:
    """The templates of this key, by name."""
    with caller.read() as tx:
        saved = requests.templates(tx, caller.key.id)
    return response_bodies.Listed(
        items=[response_bodies.Template.model_validate(template) for template in saved]
    )


@router.delete("/{name}", status_code=204)
def delete(name: _Name, caller: auth.Submitter, services: dependencies.ServicesDep) -> None:
    """Remove a template of this key; its jobs stay."""
    teams.delete_template(caller, name)


@router.post("/{name}/jobs", status_code=201, responses=request_bodies.MADE_JOB)
async def submit(
    name: _Name,
    changes: request_bodies.TemplateChanges,
    caller: auth.Submitter,
    services: dependencies.ServicesDep,
    response: fastapi.Response,
    idempotency_key: request_bodies.IdempotencyKey = None,
) -> response_bodies.Job:
    """Queue a job of a template, with the fields that the body changes.

    Fields of `workload`, `params` and `options` are changed one by one, others as a whole.
    """
    with caller.read() as tx:
        template = requests.get_template(tx, caller.key.id, name)
    body = _job(teams.merged_with_template(template.job, changes.job))
    submission.refuse_long(body, actions.upload_limit(services, caller))
    made = await submission.submit(services, caller, submission.from_json(body, idempotency_key))
    return estimates.made_body(services, caller, response, made)


def _job(content: Mapping[str, Any]) -> request_bodies.NewJob:
    try:
        return request_bodies.NewJob.model_validate(content)
    except pydantic.ValidationError as error:
        details = [{**each, "loc": ("body", "job", *each["loc"])} for each in error.errors()]
        raise exceptions.RequestValidationError(details) from error
