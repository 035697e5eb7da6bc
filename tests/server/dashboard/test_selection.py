"""The table of jobs and what is done with several of them, in process."""

from __future__ import annotations

import re

import pytest

from server import states
from server.store import job_lists, leases
from tests.server.dashboard.conftest import Pages, words
from tests.support import api_rows, service_fakes

S = states.State


def key_id(pages: Pages) -> int:
    """The key of whoever is logged in."""
    return pages.service.keys["submit"].key.id


def names(page: str) -> list[str]:
    """The jobs of a table, in its order."""
    return re.findall(r'class="name" href="[^"]*" title="([^"]*)"', page)


def chosen(pages: Pages, verb: str, *numbers: int, **more: str) -> dict[str, object]:
    """The form of a selection as a browser sends it."""
    selected = [str(number) for number in numbers]
    return {"csrf_token": pages.csrf, "verb": verb, "job": selected, **more}


def test_the_table_is_sorted_on_the_server_and_paged(pages: Pages) -> None:
    for number in range(53):
        api_rows.queued(pages.service.db, name=f"j{number:02}", priority=number % 5)
    first = pages.get("/dashboard?sort=name")
    assert names(first) == [f"j{number:02}" for number in range(50)]
    assert 'aria-sort="ascending"' in first
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following is not None
    assert names(pages.get(following[1].replace("&amp;", "&"))) == ["j50", "j51", "j52"]
    assert names(pages.get("/dashboard?sort=-name"))[0] == "j52"
    assert names(pages.get("/dashboard?sort=priority"))[:2] == ["j49", "j44"]
    assert names(pages.get("/dashboard?sort=nonsense"))[0] == "j52"
    for bad in ("sort=name&after=4", "after=x", "sort=latency&after=4:NaN"):
        pages.get(f"/dashboard?{bad}", 422)


def test_owner_priority_and_the_reason_of_a_failure_are_shown(pages: Pages) -> None:
    service = pages.service
    claim = api_rows.running(service.db, service.keys["admin"].key.id, name="breaks")
    with service.db.write() as tx:
        leases.fail(tx, claim.fence, "wrong_result", "C[0] is 1 <not> 2", None)
    api_rows.queued(service.db, key_id(pages), name="urgent", priority=42)
    text = words(pages.get("/dashboard"))
    assert "wrong result: C[0] is 1 <not> 2" in text
    assert (
        f"breaks #1 · gemm wrong result: C[0] is 1 <not> 2 failed {_name(pages, 'admin')}" in text
    )
    assert f"urgent #2 · gemm queued {_name(pages, 'submit')} P priority 42" in text


def test_a_selection_is_paused_resumed_and_retried(pages: Pages) -> None:
    db, client = pages.service.db, pages.client
    one, two = (api_rows.queued(db, key_id(pages)).id for _ in range(2))
    page = pages.get("/dashboard")
    assert 'data-verbs="pause cancel"' in page and "formaction" not in page
    response = client.post(
        "/dashboard/selection", data=chosen(pages, "pause", one, two, back="/dashboard?sort=name")
    )
    assert response.status_code == 303
    assert response.headers["location"] == "/dashboard?sort=name"
    assert {service_fakes.get(db, number).state for number in (one, two)} == {S.PAUSED}
    client.post("/dashboard/selection", data=chosen(pages, "resume", two))
    response = client.post("/dashboard/selection", data=chosen(pages, "pause", one, two, 99))
    text = words(response.text)
    assert response.status_code == 200 and "1 of 3 not paused" in text
    assert "#99 there is no job 99" in text and f"Done: #{one}, #{two}." in text
    assert service_fakes.get(db, two).state is S.PAUSED


def test_what_cannot_be_undone_is_asked_for_first(pages: Pages) -> None:
    db, client = pages.service.db, pages.client
    one, two = (api_rows.queued(db, key_id(pages), name=f"<b>{n}</b>").id for n in range(2))
    question = client.post("/dashboard/selection", data=chosen(pages, "cancel", one, two))
    assert question.status_code == 200 and "Cancel 2 jobs?" in question.text
    assert "<b>0</b>" in words(question.text) and "<b>0</b>" not in question.text
    assert service_fakes.get(db, one).state is S.QUEUED
    client.post("/dashboard/selection", data=chosen(pages, "cancel", one, two, sure="1"))
    assert service_fakes.get(db, one).state is S.CANCELLED
    client.post("/dashboard/selection", data=chosen(pages, "delete", one, sure="1"))
    with db.read() as tx:
        assert [job.id for job in job_lists.page(tx).jobs] == [two]


def test_a_selection_is_refused_as_single_jobs_are(pages: Pages) -> None:
    db, client = pages.service.db, pages.client
    mine = api_rows.queued(db, key_id(pages)).id
    foreign = api_rows.queued(db, pages.service.keys["admin"].key.id).id
    response = client.post("/dashboard/selection", data=chosen(pages, "pause", mine, foreign))
    assert "1 of 2 not paused" in words(response.text) and "another key" in response.text
    assert service_fakes.get(db, foreign).state is S.QUEUED
    form = chosen(pages, "resume", mine)
    assert client.post("/dashboard/selection", data=form | {"csrf_token": "x"}).status_code == 403
    assert (
        client.post("/dashboard/selection", data=chosen(pages, "explode", mine)).status_code == 404
    )
    away = chosen(pages, "resume", mine, back="https://evil.example/")
    assert client.post("/dashboard/selection", data=away).headers["location"] == "/dashboard"
    huge = chosen(pages, "pause", 999999999, sure="1")
    assert "there is no job" in client.post("/dashboard/selection", data=huge).text
    assert (
        "No job is selected"
        in client.post("/dashboard/selection", data=chosen(pages, "delete")).text
    )
    compared = client.post("/dashboard/selection", data=chosen(pages, "compare", mine, foreign))
    assert compared.headers["location"] == f"/dashboard/compare?job={mine}&job={foreign}"
    pages.log_in("read")
    assert (
        client.post("/dashboard/selection", data=chosen(pages, "pause", mine)).status_code == 403
    )


@pytest.mark.parametrize("scope", ["read", "submit", "admin"])
def test_the_navigation_has_what_the_key_may_see(pages: Pages, scope: str) -> None:
    pages.log_in(scope)
    page = pages.get("/dashboard/reference")
    assert ('href="/dashboard/keys"' in page) == (scope == "admin")
    assert re.search(r'href="/dashboard/reference" aria-current="page"', page)


def _name(pages: Pages, scope: str) -> str:
    return pages.service.keys[scope].key.name
