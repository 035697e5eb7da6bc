"""Changing a job, and what is done with several at once: comparing, pausing, deleting, ..."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

import fastapi
import pydantic
from starlette import responses

from server import actions, errors, states
from server.dashboard import chart_data, render
from server.dashboard.pages import access
from server.store import job_lists, jobs, rows
from server.web import auth, request_bodies

router = render.router()

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


@router.post("/dashboard/selection")
def act(viewer: render.Viewer, form: access.Form) -> fastapi.Response:
    """Do it and show the table again; or what was refused; or the question before."""
    numbers = numbers_of(form.get("job", []))[:MAX_SELECTED]
    verb = (form.get("verb") or [""])[-1]
    back = access.inside((form.get("back") or [access.HOME])[-1])
    if verb == "compare":
        query = "&".join(f"job={number}" for number in numbers)
        return responses.RedirectResponse(f"/dashboard/compare?{query}", 303)
    if verb not in VERBS:
        raise errors.NotFound("there is no such action")
    viewer.need("submit")
    if verb in LOSSES and "sure" not in form:
        with viewer.read() as tx:
            listed = jobs.some(tx, numbers)
        return _page(viewer, verb, back, listed, {})
    refusals = {number: _refusal(viewer, verb, number) for number in numbers}
    if not any(refusals.values()):
        return responses.RedirectResponse(back, 303)
    return _page(viewer, verb, back, [], refusals)


def _page(
    viewer: render.LoggedIn,
    verb: str,
    back: str,
    listed: Sequence[rows.Job],
    refusals: Mapping[int, str],
) -> fastapi.Response:
    label, done = VERBS[verb]
    return viewer.page(
        "selection.html",
        verb=verb,
        label=label,
        done=done,
        loss=LOSSES.get(verb, ""),
        back=back,
        jobs=listed,
        refusals=refusals,
    )


def _refusal(viewer: auth.Caller, verb: str, number: int) -> str:
    """Do it to one job; why not, or nothing."""
    try:
        if number > request_bodies.MAX_INT:
            raise errors.NotFound(f"there is no job {number}")
        if verb == "delete":
            actions.delete_job(viewer, number)
        else:
            actions.move_job(viewer, number, actions.Action(verb))
    except errors.ServiceError as error:
        return str(error)
    return ""


compare_router = render.router()

_NUMBERS = re.compile(r"[0-9]{1,9}")


@compare_router.get("/dashboard/compare")
def compare(
    viewer: render.Viewer, job: Annotated[list[str] | None, fastapi.Query(max_length=200)] = None
) -> fastapi.Response:
    """`?job=3&job=7`, or numbers with commas in one field."""
    numbers = numbers_of(job or [])
    chosen = numbers[: request_bodies.MAX_COMPARED]
    with viewer.read() as tx:
        recent = job_lists.page(tx, limit=40).items
        compared = jobs.some(tx, chosen)
        chart = chart_data.compared(tx, compared)
    found = {row.id for row in compared}
    bests = [row.best_us for row in compared if row.best_us is not None]
    return viewer.page(
        "compare.html",
        jobs=compared,
        chart=chart,
        missing=[number for number in chosen if number not in found],
        too_many=len(numbers) > request_bodies.MAX_COMPARED,
        most=request_bodies.MAX_COMPARED,
        best_us=min(bests, default=None),
        recent=[row for row in recent if row.id not in numbers and row.n_trials],
        is_live=any(row.state not in states.ENDED for row in compared),
        mixed=len({row.flops for row in compared}) > 1,
    )


def numbers_of(texts: list[str]) -> list[int]:
    """Job numbers in any writing, each once."""
    numbers = [int(digits) for text in texts for digits in _NUMBERS.findall(text)]
    return [number for number in dict.fromkeys(numbers) if number > 0]


changes_router = render.router("/dashboard/jobs/{job_id}")


@changes_router.post("/change")
def change(
    job_id: request_bodies.Id, viewer: render.Submitter, form: access.Form
) -> fastapi.Response:
    """Store what the form has."""
    texts = access.texts_of(form)
    tags = [tag.strip() for tag in texts.get("tags", "").split(",") if tag.strip()]
    values = {name: texts[name] for name in ("name", "note", "priority") if name in texts}
    try:
        changes = request_bodies.Changes.model_validate({**values, "tags": tags})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ", ".join(map(str, first["loc"]))
        raise errors.InvalidRequest(f"{where}: {first['msg']}") from error
    actions.change_job(viewer, job_id, changes)
    return responses.RedirectResponse(f"/dashboard/jobs/{job_id}", 303)


@changes_router.post("/delete")
def delete(
    job_id: request_bodies.Id, viewer: render.Submitter, _: access.Form
) -> fastapi.Response:
    """Remove an ended job with all it has."""
    actions.delete_job(viewer, job_id)
    return responses.RedirectResponse(access.HOME, 303)
