"""Who sees pages: logging in and out, the token of forms, revoked keys, foreign sites."""

from __future__ import annotations

import pytest

from server import errors
from server.store import keys
from tests.server.dashboard.conftest import TABS, Pages, words
from tests.support import api_rows, service_fakes


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_actions_need_the_token(pages: Pages, token: str | None) -> None:
    job = api_rows.queued(pages.service.db, pages.key_id)
    data = {} if token is None else {"csrf_token": token}
    for address in (f"/dashboard/jobs/{job.id}/cancel", "/dashboard/submit", "/dashboard/logout"):
        assert pages.client.post(address, data=data).status_code == 403
    assert service_fakes.get(pages.service.db, job.id).state == "queued"
    pages.get("/dashboard")  # still logged in


def test_readers_see_but_do_nothing(pages: Pages) -> None:
    job = api_rows.queued(pages.service.db, pages.key_id)
    pages.log_in("read")
    assert "data-verb" not in pages.get(f"/dashboard/jobs/{job.id}")
    assert "Your key may only read" in words(pages.get("/dashboard/submit"))
    csrf = {"csrf_token": pages.csrf}
    assert pages.client.post(f"/dashboard/jobs/{job.id}/cancel", data=csrf).status_code == 403
    form = {**csrf, "op": "gemm", "p.m": "8", "p.n": "8", "p.k": "8"}
    assert pages.client.post("/dashboard/submit", data=form).status_code == 403


def test_nobody_sees_pages_without_a_login(logged_out: Pages) -> None:
    service = logged_out.service
    job = api_rows.finished(service.db, service.blobs)
    for address in (
        "/dashboard",
        "/dashboard/compare?job=1",
        "/dashboard/devices",
        "/dashboard/submit",
        *(f"/dashboard/jobs/{job.id}{tab}" for tab in TABS),
    ):
        response = logged_out.client.get(address)
        assert response.status_code == 303
        assert response.headers["location"].startswith("/dashboard/login?next=%2Fdashboard")
        assert job.name not in response.text
    assert logged_out.client.get(f"/dashboard/data/jobs/{job.id}/points").status_code == 401
    response = logged_out.client.post(f"/dashboard/jobs/{job.id}/cancel")
    assert response.status_code == 303 and response.headers["location"] == "/dashboard/login"


def test_log_in_and_out(logged_out: Pages) -> None:
    key = logged_out.service.keys["read"].text
    form = {"key": f" {key}\n", "next": "/dashboard/devices"}
    response = logged_out.client.post("/dashboard/login", data=form)
    assert response.status_code == 303 and response.headers["location"] == "/dashboard/devices"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and key not in cookie
    logged_out.get("/dashboard/devices")
    response = logged_out.client.get("/dashboard/login?next=/dashboard/compare")
    assert response.headers["location"] == "/dashboard/compare"
    response = logged_out.client.post("/dashboard/logout", data={"csrf_token": logged_out.csrf})
    assert response.status_code == 303
    assert logged_out.client.get("/dashboard").status_code == 303


def test_wrong_keys_are_told_and_slowed_down(logged_out: Pages) -> None:
    for _ in range(10):
        response = logged_out.client.post("/dashboard/login", data={"key": "felix_a_b"})
        assert response.status_code == 401 and "This key is unknown" in response.text
    response = logged_out.client.post("/dashboard/login", data={"key": "felix_a_b"})
    assert response.status_code == 429 and "wait a minute" in response.text.lower()
    response = logged_out.client.post("/dashboard/login", data={})
    assert response.status_code == 429


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_other_sites_cannot_log_a_browser_in(logged_out: Pages, headers: dict[str, str]) -> None:
    data = {"key": logged_out.service.keys["read"].text}
    response = logged_out.client.post("/dashboard/login", data=data, headers=headers)
    assert response.status_code == 403 and "set-cookie" not in response.headers


@pytest.mark.parametrize(
    "after",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/dashboardevil",
        "/dashboard/\\evil",
        "/v1/jobs",
        "javascript:alert(1)",
        "",
    ],
)
def test_login_leads_nowhere_else(logged_out: Pages, after: str) -> None:
    data = {"key": logged_out.service.keys["read"].text, "next": after}
    response = logged_out.client.post("/dashboard/login", data=data)
    assert response.headers["location"] == "/dashboard"


def test_a_revoked_key_is_logged_out(pages: Pages) -> None:
    with pages.service.db.write() as tx:
        keys.revoke(tx, pages.key_id)
    assert pages.client.get("/dashboard").status_code == 303
    with pytest.raises(errors.Unauthenticated), pages.service.db.read() as tx:
        keys.find(tx, pages.service.keys["submit"].text)


def test_the_address_of_the_service_leads_here(logged_out: Pages) -> None:
    response = logged_out.client.get("/")
    assert response.status_code == 303 and response.headers["location"] == "/dashboard"
