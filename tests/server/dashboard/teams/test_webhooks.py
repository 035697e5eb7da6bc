"""The pages of webhooks: made with a secret that is shown once, tried, deleted; deliveries."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server.dashboard.pages import projects
from server.store import webhooks
from tests.server.dashboard.conftest import Pages, words
from tests.support import api_rows

URL = "https://ci.example/felix?a=<b>"


def send(pages: Pages, tail: str, status: int, **fields: Any) -> str:
    """Send a form; the page that comes back, or where it leads."""
    data = {"csrf_token": pages.csrf, **fields}
    response = pages.client.post(f"/dashboard/webhooks{tail}", data=data)
    assert response.status_code == status, response.text[:2000]
    return response.headers.get("location", response.text)


def made(pages: Pages) -> int:
    """A webhook of the key that is logged in."""
    secret_page = send(pages, "", 200, url=URL, state=["succeeded", "failed"])
    number = re.search(r"/dashboard/webhooks/(\d+)", secret_page)
    assert number is not None
    return int(number.group(1))


def test_a_secret_is_shown_once(pages: Pages) -> None:
    assert "None yet" in words(pages.get("/dashboard/webhooks"))
    page = send(pages, "", 200, url=URL, state=["succeeded", "failed"])
    secret = re.search(r"whsec_[\w-]+", page)
    assert secret is not None and "shown only now" in page and "a=&lt;b&gt;" in page
    for address in ("/dashboard/webhooks", "/dashboard/webhooks/1"):
        later = pages.get(address)
        assert "a=&lt;b&gt;" in later and "succeeded, failed" in later
        assert secret.group() not in later and "whsec_" not in later
    assert "submitter" in words(pages.get("/dashboard/webhooks")).partition("New webhook")[0]
    pages.log_in("admin")
    assert "webhook.create" in pages.get("/dashboard/audit")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"url": ""}, "url"),
        ({"url": "http://ci.example/"}, "url"),
        ({"url": "https://127.0.0.1/"}, "url"),
        ({"state": []}, "states"),
        ({"state": ["pausing"]}, "states"),
    ],
)
def test_wrong_fields_are_reported_and_the_rest_stays(
    pages: Pages, fields: dict[str, Any], wrong: str
) -> None:
    page = send(pages, "", 422, **({"url": URL, "state": ["queued"]} | fields))
    assert f'id="k-{wrong}-wrong"' in page and page.count('class="wrong"') == 1
    if "url" in fields:
        ticked = re.findall(r'name="state" value="(\w+)" checked', page)
        assert ticked == ["queued"]
    else:
        assert "a=&lt;b&gt;" in page
    with pages.service.db.read() as tx:
        assert webhooks.every(tx) == []


def test_deliveries_have_state_and_last_error(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, db = made(pages), pages.service.db
    api_rows.finished(db, pages.service.blobs)
    with db.write() as tx:
        (due,) = webhooks.lease(tx, 5, 60.0)
        webhooks.note(tx, due, webhooks.Reply(None, "no <answer>"), None)
    text = words(pages.get(f"/dashboard/webhooks/{number}"))
    assert "job-1-" in text and "dead 1 no <answer> –" in text and '"type":"job.succeeded"' in text
    send(pages, f"/{number}/deliveries/{due.id}/retry", 303)
    assert send(pages, f"/{number}/test", 303) == f"/dashboard/webhooks/{number}"
    assert "pending 0" in words(pages.get(f"/dashboard/webhooks/{number}?state=pending"))
    assert "None in this state" in pages.get(f"/dashboard/webhooks/{number}?state=dead")
    monkeypatch.setattr(projects, "DELIVERIES_LIMIT", 1)
    newest = pages.get(f"/dashboard/webhooks/{number}")
    assert newest.count('data-key="delivery-') == 1 and "test-" in newest
    older = re.search(r'href="(\?after=\d+)" rel="next"', newest)
    assert older is not None
    assert "job-1-" in pages.get(f"/dashboard/webhooks/{number}{older.group(1)}")
    for tail in (f"/{number}/deliveries/999/retry", "/999/test", "/999/delete"):
        send(pages, tail, 404)
    assert send(pages, f"/{number}/delete", 303) == "/dashboard/webhooks"
    pages.get(f"/dashboard/webhooks/{number}", 404)


def test_reading_is_not_enough_and_forms_need_the_token(pages: Pages) -> None:
    number = made(pages)
    tails = ("", f"/{number}/test", f"/{number}/delete", f"/{number}/deliveries/1/retry")
    forged = {"csrf_token": "x", "url": URL, "state": "queued"}
    for tail in tails:
        address = f"/dashboard/webhooks{tail}"
        assert pages.client.post(address, data=forged).status_code == 403, tail
    pages.log_in("read")
    assert "/dashboard/webhooks" not in pages.get("/dashboard")
    for address in ("/dashboard/webhooks", f"/dashboard/webhooks/{number}"):
        assert "scope submit" in pages.get(address, 403)
    for tail in tails:
        send(pages, tail, 403, url=URL, state="queued")
    with pages.service.db.read() as tx:
        assert len(webhooks.every(tx)) == 1 and webhooks.deliveries(tx, number) == []
