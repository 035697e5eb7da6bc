"""What is done with several jobs at once: comparing, pausing, cancelling, deleting, ...

What cannot be undone is asked for first, with the names of the jobs. Each job is a transaction of
its own; what was refused is shown with its reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import anyio.to_thread
import fastapi
from starlette import responses

from server import actions, errors
from server.dashboard import render
from server.dashboard.pages import compare, logins
from server.store import jobs, rows
from server.web import auth, dependencies, request_bodies

router = fastapi.APIRouter(route_class=render.Page, include_in_schema=False)

#: Jobs of a selection at most: those of a batch, and more than those of a page of the table.
MAX_SELECTED = request_bodies.MAX_BATCH

#: What a selection can do besides comparing: as it is asked for, and as it was done.
VERBS: Mapping[str, tuple[str, str]] = {
    "pause": ("Pause", "paused"),
    "resume": ("Resume", "resumed"),
    "stop": ("Stop early", "stopped early"),
    "cancel": ("Cancel", "cancelled"),
    "retry": ("Retry", "retried"),
    "delete": ("Delete", "deleted"),
}

#: What is lost, for the question before it.
LOSSES = {
    "cancel": "What was measured stays readable, but there will be no artifact.",
    "delete": "All trials, events and files go with them. This cannot be undone.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job; `refusal` says why nothing was done, empty if it was."""

    number: int
    refusal: str


@router.post("/dashboard/selection")
async def act(
    request: fastapi.Request, viewer: render.Viewer, services: dependencies.ServicesDep
) -> fastapi.Response:
    """Do it and show the table again; or what was refused; or the question before."""
    form = await logins.checked_form(request, viewer)
    numbers = compare.numbers_of(form.get("job", []))[:MAX_SELECTED]
    verb = (form.get("verb") or [""])[-1]
    back = logins.inside((form.get("back") or [logins.HOME])[-1])
    if verb == "compare":
        query = "&".join(f"job={number}" for number in numbers)
        return responses.RedirectResponse(f"/dashboard/compare?{query}", 303)
    if verb not in VERBS:
        raise errors.NotFound("there is no such action")
    if not viewer.can("submit"):
        raise errors.Forbidden("this needs a key with the scope submit")
    if verb in LOSSES and "sure" not in form:
        listed = await anyio.to_thread.run_sync(_existing, viewer, numbers)
        return _page(request, viewer, verb, back, listed, [])
    outcomes = await anyio.to_thread.run_sync(_each, services, viewer, verb, numbers)
    if not any(outcome.refusal for outcome in outcomes):
        return responses.RedirectResponse(back, 303)
    return _page(request, viewer, verb, back, [], outcomes)


def _page(
    request: fastapi.Request,
    viewer: auth.Caller,
    verb: str,
    back: str,
    listed: Sequence[rows.Job],
    outcomes: Sequence[Outcome],
) -> fastapi.Response:
    label, done = VERBS[verb]
    return render.page(
        request,
        "selection.html",
        viewer,
        verb=verb,
        label=label,
        done=done,
        loss=LOSSES.get(verb, ""),
        back=back,
        jobs=listed,
        outcomes=outcomes,
    )


def _existing(viewer: auth.Caller, numbers: Sequence[int]) -> list[rows.Job]:
    with viewer.read() as tx:
        return jobs.some(tx, numbers)


def _each(
    services: dependencies.Services, viewer: auth.Caller, verb: str, numbers: Sequence[int]
) -> list[Outcome]:
    return [Outcome(number, _refusal(services, viewer, verb, number)) for number in numbers]


def _refusal(services: dependencies.Services, viewer: auth.Caller, verb: str, number: int) -> str:
    """Do it to one job; why not, or nothing."""
    try:
        if number > request_bodies.MAX_INT:
            raise errors.NotFound(f"there is no job {number}")
        if verb == "delete":
            actions.delete_job(services, viewer, number)
        else:
            actions.move_job(services, viewer, number, actions.Action(verb))
    except errors.ServiceError as error:
        return str(error)
    return ""
