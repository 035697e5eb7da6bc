"""The pages of projects and of their webhooks: whose they are, and what is shown once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server.dashboard.pages import projects as projects_page
from server.store import keys, projects, webhooks
from tests.server.dashboard.conftest import Pages, words
from tests.support import api_rows, service_fakes


def test_a_key_sees_its_own_project_and_changes_nothing(pages: Pages) -> None:
    with pages.service.db.write() as tx:
        projects.create(tx, "secret-team")
        projects.change(tx, "default", max_running_jobs=4, max_bytes=10**9)
    api_rows.finished(pages.service.db, pages.service.blobs)
    api_rows.queued(pages.service.db)
    for scope in ("read", "submit"):
        pages.log_in(scope)
        page = pages.get("/dashboard/projects")
        assert 'href="/dashboard/projects" aria-current="page"' in page
        assert "default 1 of 4 11 B of 1.00 GB" in words(page)
        one = pages.get("/dashboard/projects/default")
        assert "Unfinished jobs 1 of 4 25 %" in words(one)
        assert "<form method" not in one.partition("<main")[2]
        assert "secret-team" not in page and "submitter" not in one.partition("<main")[2]
        pages.get("/dashboard/projects/secret-team", 404)


def test_an_administrator_makes_and_limits_projects(pages: Pages) -> None:
    pages.log_in("admin")
    gone = service_fakes.key(pages.service.db, "gone <b>")
    service_fakes.write(pages.service.db, keys.revoke, gone.key.id)
    limits = {"max_running_jobs": "8", "max_trials": "", "max_gb": "0.5", "retention_days": "90"}
    made = pages.send("/dashboard/projects", 303, name="vision", **limits)
    assert made == "/dashboard/projects/vision"
    page = pages.get(made)
    assert "No key belongs to this project yet" in page and 'value="0.5"' in page
    assert "default 3 0 0 B" in words(pages.get("/dashboard/projects"))  # one of four is revoked
    members = pages.get("/dashboard/projects/default")
    assert "gone &lt;b&gt;" in members and "revoked" in members and "submitter" in members
    pages.send(made, 303, max_trials="50", max_gb="2e-9")
    vision = service_fakes.read(pages.service.db, projects.get, "vision")
    assert (vision.max_running_jobs, vision.max_trials, vision.max_bytes) == (None, 50, 2)
    assert vision.retention_days is None
    audit = pages.get("/dashboard/audit")
    assert "project.create" in audit and "project.change" in audit
    pages.send("/dashboard/projects/nothing", 404, max_trials="1")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"name": ""}, ["name"]),
        ({"name": "No Spaces"}, ["name"]),
        ({"name": "default"}, ["name"]),
        ({"max_trials": "0", "max_gb": "much"}, ["max_trials", "max_gb"]),
        ({"max_gb": "inf", "retention_days": "x"}, ["max_gb", "retention_days"]),
    ],
)
def test_wrong_fields_are_reported_and_the_rest_stays(
    pages: Pages, fields: dict[str, str], wrong: list[str]
) -> None:
    pages.log_in("admin")
    page = pages.send("/dashboard/projects", 422, **({"name": "ok", "max_trials": "7"} | fields))
    assert page.count('class="wrong"') == len(wrong)
    assert all(f'id="k-{name}-wrong"' in page for name in wrong)
    if "max_trials" not in fields:
        assert 'value="7"' in page
    if "name" not in fields:
        again = pages.send("/dashboard/projects/default", 422, **fields)
        assert all(f'id="k-{name}-wrong"' in again for name in wrong)
    with pages.service.db.read() as tx:
        (only,) = projects.every(tx)
        assert only.max_trials is None


URL = "https://ci.example/felix?a=<b>"


def test_a_secret_is_shown_once(pages: Pages) -> None:
    assert "None yet" in words(pages.get("/dashboard/webhooks"))
    page = pages.send("/dashboard/webhooks", 200, url=URL, state=["succeeded", "failed"])
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
def test_wrong_fields_of_webhooks_are_reported_and_the_rest_stays(
    pages: Pages, fields: dict[str, Any], wrong: str
) -> None:
    page = pages.send("/dashboard/webhooks", 422, **({"url": URL, "state": ["queued"]} | fields))
    assert f'id="k-{wrong}-wrong"' in page and page.count('class="wrong"') == 1
    if "url" in fields:
        ticked = re.findall(r'name="state" value="(\w+)" checked', page)
        assert ticked == ["queued"]
    else:
        assert "a=&lt;b&gt;" in page
    assert service_fakes.read(pages.service.db, webhooks.every) == []


def test_deliveries_have_state_and_last_error(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, db = 1, pages.service.db
    pages.send("/dashboard/webhooks", 200, url=URL, state=["succeeded", "failed"])
    api_rows.finished(db, pages.service.blobs)
    (due,) = service_fakes.write(db, webhooks.lease, 5, 60.0)
    service_fakes.write(db, webhooks.note, due, webhooks.Reply(None, "no <answer>"), None)
    text = words(pages.get(f"/dashboard/webhooks/{number}"))
    assert "job-1-" in text and "dead 1 no <answer> –" in text and '"type":"job.succeeded"' in text
    pages.send(f"/dashboard/webhooks/{number}/deliveries/{due.id}/retry", 303)
    assert pages.send(f"/dashboard/webhooks/{number}/test", 303) == f"/dashboard/webhooks/{number}"
    assert "pending 0" in words(pages.get(f"/dashboard/webhooks/{number}?state=pending"))
    assert "None in this state" in pages.get(f"/dashboard/webhooks/{number}?state=dead")
    monkeypatch.setattr(projects_page, "DELIVERIES_LIMIT", 1)
    newest = pages.get(f"/dashboard/webhooks/{number}")
    assert newest.count('data-key="delivery-') == 1 and "test-" in newest
    older = re.search(r'href="(\?after=\d+)" rel="next"', newest)
    assert older is not None
    assert "job-1-" in pages.get(f"/dashboard/webhooks/{number}{older.group(1)}")
    for tail in (f"/{number}/deliveries/999/retry", "/999/test", "/999/delete"):
        pages.send(f"/dashboard/webhooks{tail}", 404)
    assert pages.send(f"/dashboard/webhooks/{number}/delete", 303) == "/dashboard/webhooks"
    pages.get(f"/dashboard/webhooks/{number}", 404)
