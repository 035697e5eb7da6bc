"""`/v1/jobs.csv`: the list of jobs for spreadsheets, streamed page by page."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Iterable, Iterator

import fastapi
from starlette import responses

from server.api import responding
from server.api.jobs import jobs as job_routes
from server.store import job_lists, rows
from server.web import auth

router = fastapi.APIRouter(tags=["jobs"])

#: Columns of the CSV file, in order.
COLUMNS = (
    "id", "project", "name", "state", "reason", "error", "message", "priority", "kind", "op",
    "target", "target_key", "key_id", "tags", "trials", "seconds", "n_tasks", "n_trials",
    "n_failed", "best_us", "unscheduled_us", "speedup", "gflops", "elapsed_s", "measured_s",
    "created_at", "started_at", "finished_at", "note",
)  # fmt: skip

#: Jobs of one transaction.
BATCH = 500


@router.get(
    "/v1/jobs.csv",
    response_class=responses.StreamingResponse,
    responses={200: {"content": {"text/csv": {}}}},
)
def as_csv(caller: auth.Reader, chosen: job_routes.Chosen) -> fastapi.Response:
    """The jobs that `GET /v1/jobs` lists, all of them, newest first."""
    return responses.StreamingResponse(
        _lines(caller, chosen),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="jobs.csv"'},
    )


def _lines(caller: auth.Caller, chosen: job_lists.Filter) -> Iterator[str]:
    yield _written([COLUMNS])
    after: int | None = None
    while True:
        with caller.read() as tx:
            page = job_lists.page(tx, chosen, BATCH, after)
        yield _written([[_cell(job, name) for name in COLUMNS] for job in page.jobs])
        after = page.next
        if after is None:
            return


def _cell(job: rows.Job, name: str) -> object:
    value = getattr(job, name)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return responding.safe_cell(" ".join(value) if name == "tags" else value)


def _written(lines: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue()
