"""Who sees pages and who manages: logins, the token of forms, foreign sites, keys, the audit."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from server.dashboard import routers
from server.dashboard.pages import access
from server.database import models
from server.store import keys, webhooks
from tests.server.dashboard.conftest import TABS, Pages, words
from tests.support import api_rows, service_fakes

URL = "https://ci.example/"
#: Tables in which a login leaves something.
BY_LOGIN = ("audit", "keys", "logins")


def test_readers_see_but_do_nothing(pages: Pages) -> None:
    job = api_rows.queued(pages.service.db, pages.key_id)
    pages.log_in("read")
    assert "data-verb" not in pages.get(f"/dashboard/jobs/{job.id}")
    assert "Your key may only read" in words(pages.get("/dashboard/submit"))
    for address in ("batches", "webhooks", "templates"):
        assert f"/dashboard/{address}" not in pages.get("/dashboard")
        assert "scope submit" in pages.get(f"/dashboard/{address}", 403)


def test_forms_need_the_token_and_the_scope(pages: Pages) -> None:
    """Every one of them, whatever it is about; what is refused changes nothing."""
    db, client = pages.service.db, pages.client
    api_rows.queued(db, pages.key_id)
    service_fakes.write(db, webhooks.create, "default", URL, ["queued"], pages.key_id)
    forms = {
        re.sub(r"{\w+_id}", "1", route.path).format(verb="cancel", name="default")
        for router in routers.ALL
        for route in router.routes
        if "POST" in route.methods and "login" not in route.path
    }
    assert len(forms) > 15
    tables = [table for name, table in models.Base.metadata.tables.items() if name not in BY_LOGIN]

    def contents() -> list[Any]:
        with db.read() as tx:
            return every(pages) + [tx.execute(table.select()).all() for table in tables]

    before = contents()
    body = {"name": "x", "verb": "cancel", "job": "1", "op": "gemm", "url": URL, "scope": "read"}
    for address, token in itertools.product(forms, ({}, {"csrf_token": ""}, {"csrf_token": "x"})):
        assert client.post(address, data=body | token).status_code == 403, (address, token)
    pages.get("/dashboard")  # still logged in
    above_submit = {each for each in forms if each.split("/")[2] in ("keys", "projects")}
    for scope, refused in (("submit", above_submit), ("read", forms - {"/dashboard/logout"})):
        pages.log_in(scope)
        for address in refused:
            assert "scope" in pages.send(address, 403, **body), (scope, address)
    assert contents() == before


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


def test_other_sites_cannot_log_a_browser_in(logged_out: Pages) -> None:
    data = {"key": logged_out.service.keys["read"].text}
    evil = ("Sec-Fetch-Site", "cross-site"), ("Origin", "https://evil.example"), ("Origin", "null")
    for header in evil:
        response = logged_out.client.post("/dashboard/login", data=data, headers=[header])
        assert response.status_code == 403 and "set-cookie" not in response.headers


def test_login_leads_nowhere_else(logged_out: Pages) -> None:
    key = logged_out.service.keys["read"].text
    for after in (
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/dashboardevil",
        "/dashboard/\\evil",
        "/v1/jobs",
        "javascript:alert(1)",
        "",
    ):
        logged_out.client.cookies.clear()
        response = logged_out.client.post("/dashboard/login", data={"key": key, "next": after})
        assert response.headers["location"] == "/dashboard", after


def test_the_address_of_the_service_leads_here(logged_out: Pages) -> None:
    response = logged_out.client.get("/")
    assert response.status_code == 303 and response.headers["location"] == "/dashboard"


@pytest.fixture
def admin(pages: Pages) -> Pages:
    """Logged in with the key that may all."""
    pages.log_in("admin")
    return pages


def every(pages: Pages) -> list[dict[str, Any]]:
    """All keys, without when they were used."""
    with pages.service.db.read() as tx:
        return [vars(key) | {"last_used_at": None} for key in keys.every(tx)]


@pytest.mark.parametrize("scope", ["read", "submit"])
def test_only_administrators_manage_keys(pages: Pages, scope: str) -> None:
    pages.log_in(scope)
    assert "/dashboard/keys" not in pages.get("/dashboard")
    for address in ("/dashboard/keys", "/dashboard/audit"):
        assert "scope admin" in pages.get(address, 403)


def test_a_key_is_made_and_shown_once(admin: Pages) -> None:
    assert "/dashboard/keys" in admin.get("/dashboard")
    page = admin.send(
        "/dashboard/keys",
        200,
        name="ci <b>",
        scope=["read", "submit"],
        expires_days="1.5",
        max_running_jobs="0",
        max_trials="",
        max_upload_mib="0.5",
    )
    key_text = re.search(r"felix_[0-9a-f]{12}_[\w-]+", page)
    assert key_text is not None and "ci &lt;b&gt;" in page
    made = service_fakes.read(admin.service.db, keys.find, key_text.group())
    assert access.scopes(made) == ["read", "submit"] and made.name == "ci <b>"
    assert (made.max_running_jobs, made.max_trials, made.max_upload_bytes) == (0, None, 1 << 19)
    assert made.expires_at is not None
    assert (made.expires_at - made.created_at).total_seconds() == pytest.approx(1.5 * 86400, abs=1)
    assert "ci &lt;b&gt;" in admin.get("/dashboard/keys")
    for address in ("/dashboard/keys", "/dashboard/audit"):
        assert key_text.group() not in admin.get(address)
    assert "key.create" in admin.get("/dashboard/audit")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"name": ""}, ["name"]),
        ({"name": "a\nb"}, ["name"]),
        ({"scope": []}, ["scopes"]),
        ({"scope": ["root"]}, ["scopes"]),
        ({"expires_days": "soon"}, ["expires_days"]),
        ({"expires_days": "-1"}, ["expires_days"]),
        ({"expires_days": "inf", "max_upload_mib": "inf"}, ["expires_days", "max_upload_mib"]),
        ({"max_trials": "0", "max_running_jobs": "1.5"}, ["max_trials", "max_running_jobs"]),
        ({"max_upload_mib": "nan"}, ["max_upload_mib"]),
        ({"scope": ["worker"]}, ["device_kinds"]),
        ({"device_kinds": "h200"}, ["device_kinds"]),
    ],
)
def test_wrong_fields_are_reported_and_the_rest_stays(
    admin: Pages, fields: dict[str, Any], wrong: list[str]
) -> None:
    before = every(admin)
    page = admin.send(
        "/dashboard/keys", 422, **({"name": "kept", "scope": ["read"], "max_trials": "7"} | fields)
    )
    for name in wrong:
        assert f'id="k-{name}-wrong"' in page
    assert page.count('class="wrong"') == len(wrong)
    if "name" not in fields:
        assert 'value="kept"' in page
    assert every(admin) == before


def test_a_worker_s_key_names_its_devices(admin: Pages) -> None:
    page = admin.send(
        "/dashboard/keys", 200, name="box", scope=["worker"], device_kinds="h200, znver4"
    )
    assert "FELIX_WORKER_KEY" in page and "FELIX_API_KEY" not in page
    assert every(admin)[-1]["device_kinds"] == ["h200", "znver4"]
    assert "for h200, znver4" in admin.get("/dashboard/keys")


def test_a_revoked_key_is_refused_at_once(admin: Pages) -> None:
    service = admin.service
    key = service.keys["submit"]
    headers = service.auth("submit")
    assert service.client.get("/v1/me", headers=headers).status_code == 200
    at = f"/dashboard/keys/{key.key.id}/revoke"
    assert admin.send(at, 303) == "/dashboard/keys"
    assert service.client.get("/v1/me", headers=headers).status_code == 401
    page = admin.get("/dashboard/keys")
    assert "revoked" in page and at not in page
    assert "key.revoke" in admin.get("/dashboard/audit")
    admin.send("/dashboard/keys/99/revoke", 404)
    admin.send(f"/dashboard/keys/{service.keys['admin'].key.id}/revoke", 303)
    assert admin.client.get("/dashboard/keys").status_code == 303


def test_the_audit_is_paged_and_filtered(admin: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "AUDIT_LIMIT", 3)
    service = admin.service
    job = api_rows.queued(service.db, service.keys["submit"].key.id)
    for verb in ("pause", "resume", "cancel"):
        service.client.post(f"/v1/jobs/{job.id}/{verb}", headers=service.auth("submit"))
    admin.client.post("/dashboard/login", data={"key": "felix_wrong_key"})
    admin.log_in("admin")
    newest = admin.get("/dashboard/audit")
    assert newest.count('data-key="entry-') == 3 and "login.failed" in newest
    older = re.search(r'href="(\?after=\d+)" rel="next"', newest)
    assert older is not None
    assert "job.pause" in admin.get(f"/dashboard/audit{older.group(1)}")
    of_one = admin.get(f"/dashboard/audit?key={service.keys['submit'].key.id}")
    assert of_one.count('data-key="entry-') == 3 and "login.failed" not in of_one
    assert f'href="/dashboard/jobs/{job.id}"' in of_one
    assert "No entries" in admin.get("/dashboard/audit?key=99")
    assert "login.failed" in admin.get("/dashboard/audit?key=nonsense")
