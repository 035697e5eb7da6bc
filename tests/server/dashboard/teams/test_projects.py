"""The pages of projects: everybody's own, administrators' all, with keys and limits."""

from __future__ import annotations

from typing import Any

import pytest

from server.store import keys, projects
from tests.server.dashboard.conftest import Pages, words
from tests.support import api_rows


def send(pages: Pages, address: str, status: int, **fields: Any) -> str:
    """Send a form; the page that comes back, or where it leads."""
    response = pages.client.post(address, data={"csrf_token": pages.csrf, **fields})
    assert response.status_code == status, response.text[:2000]
    return response.headers.get("location", response.text)


def test_a_key_sees_its_own_project_and_changes_nothing(pages: Pages) -> None:
    with pages.service.db.write() as tx:
        projects.create(tx, "secret-team")
        projects.change(tx, "default", projects.Limits(max_running_jobs=4, max_bytes=10**9))
    api_rows.finished(pages.service.db, pages.service.blobs)
    api_rows.queued(pages.service.db)
    for scope in ("read", "submit"):
        pages.log_in(scope)
        page = pages.get("/dashboard/projects")
        assert 'href="/dashboard/projects" aria-current="page"' in page
        assert "default 1 of 4 11 B of 1.00 GB" in words(page)
        one = pages.get("/dashboard/projects/default")
        assert (
            "Unfinished jobs 1 of 4 25 %" in words(one)
            and "<form method" not in (one.partition("<main")[2])
        )
        assert "secret-team" not in page and "submitter" not in one.partition("<main")[2]
        pages.get("/dashboard/projects/secret-team", 404)
        for address in ("/dashboard/projects", "/dashboard/projects/default"):
            assert "scope admin" in send(pages, address, 403, name="mine", max_running_jobs="9")
    with pages.service.db.read() as tx:
        assert projects.get(tx, "default").max_running_jobs == 4
        assert len(projects.every(tx)) == 2


def test_an_administrator_makes_and_limits_projects(pages: Pages) -> None:
    pages.log_in("admin")
    with pages.service.db.write() as tx:
        gone = keys.create(tx, keys.NewKey(name="gone <b>")).key
        keys.revoke(tx, gone.id)
    limits = {"max_running_jobs": "8", "max_trials": "", "max_gb": "0.5", "retention_days": "90"}
    made = send(pages, "/dashboard/projects", 303, name="vision", **limits)
    assert made == "/dashboard/projects/vision"
    page = pages.get(made)
    assert "No key belongs to this project yet" in page and 'value="0.5"' in page
    assert "default 3 0 0 B" in words(pages.get("/dashboard/projects"))  # one of four is revoked
    members = pages.get("/dashboard/projects/default")
    assert "gone &lt;b&gt;" in members and "revoked" in members and "submitter" in members
    send(pages, made, 303, max_trials="50", max_gb="2e-9")
    with pages.service.db.read() as tx:
        vision = projects.get(tx, "vision")
    assert (vision.max_running_jobs, vision.max_trials, vision.max_bytes) == (None, 50, 2)
    assert vision.retention_days is None
    audit = pages.get("/dashboard/audit")
    assert "project.create" in audit and "project.change" in audit
    send(pages, "/dashboard/projects/nothing", 404, max_trials="1")
    form = {"csrf_token": "x", "name": "stolen"}
    assert pages.client.post("/dashboard/projects", data=form).status_code == 403
    assert pages.client.post(made, data=form).status_code == 403


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
    page = send(pages, "/dashboard/projects", 422, **({"name": "ok", "max_trials": "7"} | fields))
    assert page.count('class="wrong"') == len(wrong)
    assert all(f'id="k-{name}-wrong"' in page for name in wrong)
    if "max_trials" not in fields:
        assert 'value="7"' in page
    if "name" not in fields:
        again = send(pages, "/dashboard/projects/default", 422, **fields)
        assert all(f'id="k-{name}-wrong"' in again for name in wrong)
    with pages.service.db.read() as tx:
        (only,) = projects.every(tx)
        assert only.max_trials is None
