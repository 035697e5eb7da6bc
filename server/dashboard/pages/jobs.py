"""The table of jobs: filters and order in the address, pages by cursor, newest first at first."""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

import fastapi

from server import actions, states
from server.dashboard import render
from server.dashboard.pages import job as job_page
from server.store import job_lists, keys, rows
from server.store import tuners as store_tuners
from server.web import auth

router = render.router()

#: Jobs of a page.
LIMIT = 50

_S = states.State
#: Choices of the state filter besides the states.
GROUPS = {"active": frozenset(set(_S) - states.ENDED), "ended": states.ENDED}

#: Orders of the table, in words; those of `DESCENDING` begin with the largest.
SORTS: Mapping[job_lists.Sort, str] = {
    job_lists.Sort.NUMBER: "newest",
    job_lists.Sort.NAME: "name",
    job_lists.Sort.STATE: "state",
    job_lists.Sort.OWNER: "owner",
    job_lists.Sort.PRIORITY: "priority",
    job_lists.Sort.TRIALS: "trials",
    job_lists.Sort.LATENCY: "best latency",
    job_lists.Sort.SPEEDUP: "speed-up",
}
DESCENDING = frozenset(
    {job_lists.Sort.NUMBER, job_lists.Sort.PRIORITY, job_lists.Sort.TRIALS, job_lists.Sort.SPEEDUP}
)

_Text = Annotated[str, fastapi.Query(max_length=200)]
_Cursor = Annotated[str, fastapi.Query(max_length=1000)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The filter as the form has it; empty fields select all.

    `sort` is a `job_lists.Sort` in its usual direction, with a `-` before it in the other one.
    """

    q: str = ""
    state: str = ""
    target: str = ""
    tag: str = ""
    mine: bool = False
    sort: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it selects all jobs."""
        return dataclasses.replace(self, sort="") == Filter()

    @property
    def sorted_by(self) -> job_lists.Sort:
        """What the table is sorted by; by number if that is unknown."""
        name = self.sort.removeprefix("-")
        return job_lists.Sort(name) if name in set(job_lists.Sort) else job_lists.Sort.NUMBER

    @property
    def descending(self) -> bool:
        """Whether the largest values come first."""
        return (self.sorted_by in DESCENDING) != self.sort.startswith("-")

    def link(self, **changes: object) -> str:
        """The address of the table with this filter, changed."""
        values = dataclasses.asdict(self) | {"mine": int(self.mine)} | changes
        query = {name: value for name, value in values.items() if value}
        return "/dashboard" + (f"?{urllib.parse.urlencode(query)}" if query else "")

    def sort_link(self, name: str) -> str:
        """The address of the table sorted by a column; the other way round if it is already."""
        again = self.sorted_by == name and not self.sort.startswith("-")
        text = f"-{name}" if again else name
        return self.link(sort="" if text == job_lists.Sort.NUMBER else text)


async def _filter(
    q: _Text = "",
    state: _Text = "",
    target: _Text = "",
    tag: _Text = "",
    mine: bool = False,
    sort: _Text = "",
) -> Filter:
    return Filter(q=q.strip(), state=state, target=target, tag=tag.strip(), mine=mine, sort=sort)


@router.get("/dashboard")
def table(
    viewer: render.Viewer,
    filter_: Annotated[Filter, fastapi.Depends(_filter)],
    after: _Cursor | None = None,
) -> fastapi.Response:
    """Jobs, counts by state, whether tuners are alive."""
    selection = job_lists.Filter(
        states=tuple(chosen_states(filter_.state)),
        target_key=filter_.target or None,
        tags=(filter_.tag,) if filter_.tag else (),
        text=filter_.q or None,
        key_id=viewer.key.id if filter_.mine else None,
    )
    sort = filter_.sorted_by
    cursor = None if after is None else job_lists.Cursor.of(after, sort.kind)
    with viewer.read() as tx:
        page = job_lists.sorted_page(tx, selection, sort, filter_.descending, LIMIT, cursor)
        owners = keys.names(tx, (job.key_id for job in page.items))
        counts = job_lists.counts(tx)
        tuners = store_tuners.every(tx, viewer.services.settings.stale_s)
    return viewer.page(
        "jobs.html",
        jobs=page.items,
        owners=owners,
        verbs={job.id: " ".join(verbs(viewer, job)) for job in page.items},
        next=page.next,
        after=after,
        filter=filter_,
        sorts=SORTS,
        counts=counts,
        total=sum(counts.values()),
        groups=GROUPS,
        targets=_targets(tuners, page.items, filter_.target),
        n_alive=sum(tuner.is_alive for tuner in tuners),
    )


def verbs(viewer: auth.Caller, job: rows.Job) -> list[str]:
    """What this viewer can do with the job now, in a selection of several."""
    names = [verb for verb, _, _ in job_page.allowed(viewer, job)]
    is_deletable = job.state in states.ENDED and actions.may_change(viewer, job)
    return [*names, "delete"] if is_deletable else names


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
