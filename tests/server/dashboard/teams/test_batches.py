"""The pages of batches: how far they are, what was refused, and what is done with their jobs."""

from __future__ import annotations

import re

import pytest

from server import states
from server.dashboard.pages import batches
from server.store import control, requests
from tests.server.dashboard.conftest import Pages, words
from tests.support import api_rows, service_fakes

PROBLEM = {
    "title": "Invalid request",
    "status": 422,
    "detail": "not <valid>",
    "errors": [{"where": "#/trials", "message": "too few"}],
}


def batch_of(pages: Pages, *job_ids: int, scope: str = "submit", n_refused: int = 0) -> int:
    """A batch of a key with these jobs."""
    items = [{"job_id": number} for number in job_ids] + [{"problem": PROBLEM}] * n_refused
    with pages.service.db.write() as tx:
        return requests.create_batch(tx, pages.service.keys[scope].key.id, items, None).id


def test_a_batch_shows_its_jobs_and_what_was_refused(pages: Pages) -> None:
    assert "A batch is what one request submits" in words(pages.get("/dashboard/batches"))
    db, key_id = pages.service.db, pages.service.keys["submit"].key.id
    done = api_rows.finished(db, pages.service.blobs, key_id, name="done <b>")
    waits, gone = (api_rows.queued(db, key_id, name=name).id for name in ("waits", "gone"))
    number = batch_of(pages, done.id, waits, gone, n_refused=1)
    with db.write() as tx:
        control.cancel(tx, gone)
        control.delete(tx, gone)
    text = words(pages.get("/dashboard/batches"))
    assert "Batch 1 3 jobs 1 queued , 1 succeeded 2 / 3 1 submitter" in text
    page = pages.get(f"/dashboard/batches/{number}")
    text = words(page)
    assert "1 queued 1 succeeded 1 refused by submitter" in text
    assert f"done <b> #{done.id} succeeded" in text and f"#{gone} deleted since" in text
    assert "Item 4 refused not <valid> #/trials too few" in text and "done <b>" not in page
    assert f'href="/dashboard/compare?job={done.id},{waits}"' in page
    assert 'data-verbs="pause cancel"' in page and 'data-verbs="delete"' in page


def test_a_batch_is_cancelled_after_a_question(pages: Pages) -> None:
    db, key_id = pages.service.db, pages.service.keys["submit"].key.id
    jobs = [api_rows.queued(db, key_id).id for _ in range(60)]  # more than a page of jobs
    number = batch_of(pages, *jobs)
    page = pages.get(f"/dashboard/batches/{number}").partition('<form method="post" action="/dash')
    form = page[2].partition("board/selection")[2].partition("</form>")[0]
    fields = re.findall(r'name="(\w+)" value="([^"]*)"', form)
    data: dict[str, list[str]] = {}
    for name, value in fields:
        data.setdefault(name, []).append(value)
    assert "Cancel 60 unfinished" in form and len(data["job"]) == 60
    question = pages.client.post("/dashboard/selection", data=data)
    assert "Cancel 60 jobs?" in question.text
    assert service_fakes.get(db, jobs[0]).state is states.State.QUEUED
    answer = pages.client.post("/dashboard/selection", data=data | {"sure": ["1"]})
    assert answer.headers["location"] == f"/dashboard/batches/{number}"
    assert {service_fakes.get(db, each).state for each in jobs} == {states.State.CANCELLED}
    assert "unfinished" not in words(pages.get(f"/dashboard/batches/{number}"))


def test_batches_are_of_a_key(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = batch_of(pages), batch_of(pages, scope="admin")
    listed = pages.get("/dashboard/batches")
    assert f"/batches/{mine}" in listed and f"/batches/{other}" not in listed
    pages.get(f"/dashboard/batches/{other}", 404)
    pages.log_in("admin")
    monkeypatch.setattr(batches, "LIMIT", 1)
    newest = pages.get("/dashboard/batches")
    assert f"/batches/{other}" in newest and f'href="?after={other}" rel="next"' in newest
    assert f"/batches/{mine}" in pages.get(f"/dashboard/batches?after={other}")
    pages.get(f"/dashboard/batches/{mine}")
    pages.log_in("read")
    assert "/dashboard/batches" not in pages.get("/dashboard")
    for address in ("/dashboard/batches", f"/dashboard/batches/{mine}"):
        assert "scope submit" in pages.get(address, 403)
