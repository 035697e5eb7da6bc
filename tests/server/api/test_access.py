"""Who may do what: every route with every scope, keys, logins, CSRF, headers, audit."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from server import app
from server.web import auth
from tests.server.conftest import GEMM, Service, bearer, testclient
from tests.support import api_rows, service_fakes

_OF_A_JOB = """tasks tasks/{number}/code trials trials/{number} trials.csv trials.jsonl curve
    network/curve predicted search events events/stream artifacts artifacts/{name} similar log"""
_READ = "operators operators/{name} devices workers models jobs.csv curves events/stream database"
_HOOK = "/v1/webhooks/{webhook_id}"
#: The scope that each route needs; None: no key at all, "any": any valid key.
_SCOPES: dict[str, dict[str, str | None]] = {
    "/v1/jobs": {"GET": "read", "POST": "submit"},
    "/v1/jobs/upload": {"POST": "submit"},
    "/v1/jobs/{job_id}": {"GET": "read", "PATCH": "submit", "DELETE": "submit"},
    **{
        f"/v1/jobs/{{job_id}}/{verb}": {"POST": "submit"}
        for verb in ("pause", "resume", "cancel", "stop", "retry")
    },
    **{f"/v1/jobs/{{job_id}}/{tail}": {"GET": "read"} for tail in _OF_A_JOB.split()},
    **{f"/v1/{tail}": {"GET": "read"} for tail in _READ.split()},
    "/v1/batches": {"GET": "read", "POST": "submit"},
    "/v1/batches/{batch_id}": {"GET": "read"},
    "/v1/templates": {"GET": "submit"},
    "/v1/templates/{name}": {"PUT": "submit", "DELETE": "submit"},
    "/v1/templates/{name}/jobs": {"POST": "submit"},
    "/v1/estimate": {"POST": "submit"},
    "/v1/databases": {"POST": "submit"},
    "/v1/projects": {"GET": "read", "POST": "admin"},
    "/v1/projects/{name}": {"GET": "read", "PUT": "admin"},
    # or read and submit together, which none of these keys has
    "/v1/webhooks": {"GET": "admin", "POST": "admin"},
    _HOOK: {"DELETE": "admin"},
    f"{_HOOK}/test": {"POST": "admin"},
    f"{_HOOK}/deliveries": {"GET": "admin"},
    f"{_HOOK}/deliveries/{{delivery_id}}/retry": {"POST": "admin"},
    "/v1/me": {"GET": "any"},
    "/v1/keys": {"GET": "admin", "POST": "admin"},
    "/v1/keys/{key_id}": {"GET": "admin", "DELETE": "admin"},
    "/v1/audit": {"GET": "admin"},
    "/v1/session": {"POST": None, "DELETE": "any"},
    "/healthz": {"GET": None},
    "/readyz": {"GET": None},
    "/metrics": {"GET": "read"},
}
NEEDS = {(method, path): scope for path, of in _SCOPES.items() for method, scope in of.items()}


def test_every_route_with_every_scope(service: Service) -> None:
    """A refused scope is a 403 and no key a 401, whatever else is wrong with the request."""
    only = {
        scope: service_fakes.key(service.db, can_read=False, **{f"can_{scope}": True}, **more)
        for scope, more in (("submit", {}), ("admin", {}), ("worker", {"device_kinds": ["h200"]}))
    }
    only["read"] = service_fakes.key(service.db)
    job = api_rows.finished(service.db, service.blobs, only["submit"].key.id)
    service.client.headers.pop("Authorization")
    wrong: list[tuple[str, str, str | None, int]] = []
    for (method, template), scope in NEEDS.items():
        others = dict.fromkeys(("key_id", "webhook_id", "delivery_id", "batch_id"), 99)
        path = template.format(job_id=job.id, number=1, name="job.zip", **others)
        for presented in (None, "read", "submit", "worker", "admin"):
            headers = {} if presented is None else bearer(only[presented].text)
            if method == "DELETE" and presented == scope and "jobs" in path:
                continue  # it would take the job away from the others
            status = service.client.request(method, path, headers=headers).status_code
            if scope is None:
                right = status not in (401, 403)
            elif presented is None:
                right = status == 401
            elif scope == "any" or presented in (scope, "admin"):
                right = status not in (401, 403) and status < 500
            else:
                right = status == 403
            if not right:
                wrong.append((method, path, presented, status))
            if presented == "admin" and method == "DELETE" and "jobs" in path:
                job = api_rows.finished(service.db, service.blobs, only["submit"].key.id)
    assert wrong == []


def test_the_matrix_has_every_route(service: Service) -> None:
    paths = service.client.get("/v1/openapi.json").json()["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert served == set(NEEDS)


def test_jobs_of_other_keys_are_not_changed(service: Service) -> None:
    job = api_rows.queued(service.db, service.keys["admin"].key.id)
    for method, verb in (("POST", "/pause"), ("POST", "/cancel"), ("PATCH", ""), ("DELETE", "")):
        body = {"json": {"name": "x"}} if method == "PATCH" else {}
        response = service.client.request(method, f"/v1/jobs/{job.id}{verb}", **body)
        assert response.status_code == 403 and "another key" in response.json()["detail"]
    assert service.client.get(f"/v1/jobs/{job.id}").json()["state"] == "queued"


@pytest.mark.parametrize(
    "header",
    ["Bearer nonsense", "Bearer felix_000000000000_x", "Basic YTpi", "Bearer", "Bearer felix_é_x"],
)
def test_wrong_keys_are_refused_and_leave_nothing(service: Service, header: str) -> None:
    headers = {"Authorization": header.encode()}
    before = service.client.get("/v1/jobs").json()
    response = service.client.post("/v1/jobs", json=GEMM, headers=headers)
    assert response.status_code == 401 and response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json()["type"] == "urn:felix:problem:unauthenticated"
    assert service.client.get("/v1/jobs").json() == before


def test_revoked_and_expired_keys_are_wrong_keys(service: Service) -> None:
    admin = service.auth("admin")
    made = service.client.post("/v1/keys", json={"name": "k"}, headers=admin).json()
    headers = bearer(made["text"])
    for _ in range(2):  # the second time by a cached key
        assert service.client.get("/v1/me", headers=headers).json()["key"]["name"] == "k"
    revoked = service.client.delete(f"/v1/keys/{made['key']['id']}", headers=admin)
    assert revoked.json()["revoked_at"] is not None
    assert service.client.get("/v1/me", headers=headers).status_code == 401
    gone = service_fakes.key(service.db, expires_s=-1.0)
    assert service.client.get("/v1/me", headers=bearer(gone.text)).status_code == 401


def test_only_some_keys_let_their_jobs_go_first(service: Service) -> None:
    plain = service_fakes.key(service.db, can_submit=True)
    headers = bearer(plain.text)
    refused = service.client.post("/v1/jobs", json=GEMM | {"priority": 1}, headers=headers)
    assert refused.status_code == 403, refused.text
    assert "priority 1 is above the default, 0" in refused.json()["detail"]
    assert "the scope priority" in refused.json()["detail"]
    job = api_rows.queued(service.db, plain.key.id)
    where = f"/v1/jobs/{job.id}"

    def change(priority: int, by: dict[str, str]) -> int:
        changed = service.client.patch(where, json={"priority": priority}, headers=by)
        return int(changed.status_code)

    assert [change(priority, headers) for priority in (0, -5, 0, 1)] == [200, 200, 200, 403]
    assert service.client.get(where).json()["priority"] == 0
    assert change(9, service.auth("admin")) == 200
    assert [change(priority, headers) for priority in (9, 8, 9)] == [200, 200, 403]
    ask = {"name": "urgent", "scopes": ["read", "submit", "priority"]}
    made = service.client.post("/v1/keys", json=ask, headers=service.auth("admin")).json()
    assert made["key"]["can_priority"]
    urgent = GEMM | {"priority": 1}
    submitted = service.client.post("/v1/jobs", json=urgent, headers=bearer(made["text"]))
    assert submitted.status_code == 201 and submitted.json()["priority"] == 1


def test_a_worker_s_key_is_for_kinds_of_devices(service: Service) -> None:
    admin = service.auth("admin")

    def made(**ask: Any) -> Any:
        return service.client.post("/v1/keys", json={"name": "box"} | ask, headers=admin)

    for ask, message in (
        ({"scopes": ["worker"]}, "name their kinds"),
        ({"device_kinds": ["h200"]}, "add it (--scope worker), or leave the kinds out"),
        ({"scopes": ["worker"], "device_kinds": ["NVIDIA H200"]}, "'NVIDIA H200' is no kind"),
        ({"scopes": ["worker"], "device_kinds": [""]}, "'' is no kind"),
    ):
        refused = made(**ask)
        assert refused.status_code == 422 and message in refused.json()["detail"], refused.text
    key = made(scopes=["worker"], device_kinds=["h200", "h100", "h200"]).json()
    assert key["key"]["can_worker"] and not key["key"]["can_read"]
    assert key["key"]["device_kinds"] == ["h100", "h200"]
    headers = bearer(key["text"])
    assert service.client.get("/v1/jobs", headers=headers).status_code == 403
    assert service.client.post("/v1/jobs", json=GEMM, headers=headers).status_code == 403
    login = service.client.post("/v1/session", json={"key": key["text"]})
    assert login.status_code == 403 and "the scope read" in login.json()["detail"]


def test_a_key_is_shown_once(service: Service) -> None:
    admin = service.auth("admin")
    ask = {"name": "ci", "scopes": ["submit"], "max_trials": 5, "expires_s": 60}
    made = service.client.post("/v1/keys", json=ask, headers=admin).json()
    secret = made["text"].split("_", 2)[2]  # which may have underscores
    assert made["key"]["can_submit"] and not made["key"]["can_read"]
    assert made["key"]["max_trials"] == 5 and made["key"]["expires_at"] is not None
    for path in ("/v1/keys", f"/v1/keys/{made['key']['id']}", "/v1/audit"):
        assert secret not in service.client.get(path, headers=admin).text


def test_the_audit_names_who_did_what(service: Service) -> None:
    job = api_rows.queued(service.db, service.keys["submit"].key.id)
    service.client.post(f"/v1/jobs/{job.id}/pause")
    entry = service.client.get("/v1/audit", headers=service.auth("admin")).json()["items"][0]
    assert entry["action"] == "job.pause" and entry["subject"] == f"job {job.id}"
    assert entry["key_name"] == "submitter" and entry["remote"] == "testclient"
    assert entry["detail"] == {"before": "queued", "after": "paused"}


def _login(service: Service, scope: str = "submit") -> Any:
    service.client.headers.pop("Authorization", None)
    return service.client.post("/v1/session", json={"key": service.keys[scope].text})


def test_a_login_reads_by_cookie_and_writes_with_the_token(service: Service) -> None:
    job = api_rows.queued(service.db, service.keys["submit"].key.id)
    response = _login(service)
    assert response.status_code == 201
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Path=/" in cookie
    assert "Secure" not in cookie and service.keys["submit"].text not in cookie
    token, stolen = response.json()["csrf_token"], dict(service.client.cookies)
    assert service.client.get("/v1/me").json()["csrf_token"] == token
    verb = f"/v1/jobs/{job.id}/pause"
    assert service.client.post(verb).status_code == 403
    assert service.client.post(verb, headers={auth.CSRF_HEADER: "wrong"}).status_code == 403
    assert service.client.get(f"/v1/jobs/{job.id}").json()["state"] == "queued"
    assert service.client.post(verb, headers={auth.CSRF_HEADER: token}).status_code == 200
    ended = service.client.delete("/v1/session", headers={auth.CSRF_HEADER: token})
    assert ended.status_code == 204
    assert service.client.get("/v1/me").status_code == 401
    service.client.cookies.update(stolen)  # it ends with the login
    assert service.client.get("/v1/me").status_code == 401


def test_cookies_under_https_are_secure(service: Service) -> None:
    settings = service.settings.model_copy(update={"public_url": "https://felix.example"})
    with testclient.TestClient(app.create_app(settings), base_url="https://felix.example") as to:
        response = to.post("/v1/session", json={"key": service.keys["read"].text})
        cookie = response.headers["Set-Cookie"]
        assert cookie.startswith("__Host-felix_login=") and "Secure" in cookie
        assert "max-age" in response.headers["Strict-Transport-Security"]
        assert to.get("/v1/me").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://testserver.evil.example"}, 403),
        ({"Origin": "http://testserver"}, 201),
        ({"Origin": "http://127.0.0.1:8000"}, 201),  # where users reach the service
        ({"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}, 201),
        ({}, 201),
    ],
)
def test_another_sites_page_logs_nobody_in(
    service: Service, headers: dict[str, str], status: int
) -> None:
    service.client.headers.pop("Authorization")
    body = {"key": service.keys["read"].text}
    response = service.client.post("/v1/session", json=body, headers=headers)
    assert response.status_code == status
    assert ("Set-Cookie" in response.headers) is (status == 201)


def test_failed_logins_are_throttled_and_audited(service: Service) -> None:
    service.client.headers.pop("Authorization")
    statuses = [
        service.client.post("/v1/session", json={"key": f"felix_0_{i}"}).status_code
        for i in range(12)
    ]
    assert statuses == [401] * 10 + [429] * 2
    assert _login(service).status_code == 429  # the right key has to wait, too
    page = service.client.get("/v1/audit", headers=service.auth("admin")).json()["items"]
    assert [entry["action"] for entry in page].count("login.failed") == 10


def test_every_response_has_security_headers(service: Service) -> None:
    for path in ("/v1/jobs", "/nope", "/healthz", "/v1/jobs/x"):
        headers = service.client.get(path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY" and headers["X-Request-Id"]
        assert headers["Cache-Control"] == "no-store"


def test_no_secret_is_logged(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        service.client.get("/v1/jobs", params={"q": "hidden-query"})
        service.client.get("/v1/me", headers={"Authorization": "Bearer felix_00_wrongsecret"})
        login = _login(service)
        service.client.post("/v1/session", json={"key": "felix_00_othersecret"})
    ours = "\n".join(
        f"{record.getMessage()} {record.__dict__}"
        for record in caplog.records
        if record.name.startswith("server")
    )
    assert "GET /v1/jobs 200" in ours
    secrets = [service.keys["submit"].text, "wrongsecret", "othersecret", "hidden-query"]
    secrets += [login.json()["csrf_token"], next(iter(service.client.cookies.values()))]
    assert [secret for secret in secrets if secret in ours] == []
