"""The table of jobs: filters in the address, pages by number, newest first."""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Collection, Iterable
from typing import Annotated

import fastapi

from server import states
from server.dashboard import render
from server.store import jobs, rows, workers
from server.web import dependencies, request_bodies

router = fastapi.APIRouter(route_class=render.Page, include_in_schema=False)

#: Jobs of a page.
LIMIT = 50

_S = states.State
#: Choices of the state filter besides the states.
GROUPS = {"active": frozenset(set(_S) - states.ENDED), "ended": states.ENDED}

_Text = Annotated[str, fastapi.Query(max_length=200)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The filter as the form has it; empty fields select all."""

    q: str = ""
    state: str = ""
    target: str = ""
    tag: str = ""
    mine: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it selects all jobs."""
        return self == Filter()

    def link(self, **changes: object) -> str:
        """The address of the table with this filter, changed."""
        values = dataclasses.asdict(self) | {"mine": int(self.mine)} | changes
        query = {name: value for name, value in values.items() if value}
        return "/dashboard" + (f"?{urllib.parse.urlencode(query)}" if query else "")


async def _filter(
    q: _Text = "", state: _Text = "", target: _Text = "", tag: _Text = "", mine: bool = False
) -> Filter:
    return Filter(q=q.strip(), state=state, target=target, tag=tag.strip(), mine=mine)


@router.get("/dashboard")
def table(
    request: fastapi.Request,
    viewer: render.Viewer,
    services: dependencies.ServicesDep,
    filter_: Annotated[Filter, fastapi.Depends(_filter)],
    after: request_bodies.After = None,
) -> fastapi.Response:
    """Jobs, counts by state, whether tuners are alive."""
    selection = jobs.Filter(
        states=tuple(chosen_states(filter_.state)),
        target_key=filter_.target or None,
        tags=(filter_.tag,) if filter_.tag else (),
        text=filter_.q or None,
        key_id=viewer.key.id if filter_.mine else None,
    )
    with services.db.read() as tx:
        page = jobs.page(tx, selection, LIMIT, after)
        counts = jobs.counts(tx)
        tuners = workers.every(tx, services.settings.stale_s)
    return render.page(
        request, "jobs.html", viewer,
        jobs=page.jobs,
        next=page.next,
        after=after,
        filter=filter_,
        counts=counts,
        total=sum(counts.values()),
        groups=GROUPS,
        targets=_targets(tuners, page.jobs, filter_.target),
        n_alive=sum(tuner.is_alive for tuner in tuners),
    )  # fmt: skip


def chosen_states(text: str) -> Collection[states.State]:
    """The states that a filter's word means; of an unknown word none, which selects all."""
    if text in GROUPS:
        return GROUPS[text]
    return [_S(text)] if text in set(map(str, _S)) else []


def _targets(tuners: Iterable[rows.Worker], listed: Iterable[rows.Job], chosen: str) -> list[str]:
    known = {job.target_key.split("/")[0] for job in listed} | {job.target_key for job in listed}
    for tuner in tuners:
        for device in tuner.devices:
            known.update(device.get("target_keys", ()))
    return sorted(known | ({chosen} if chosen else set()))
