"""Projects, webhooks, the list as CSV and logs over the API."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from server import app
from server.store import control, events, leases
from tests.server.conftest import GEMM, Service, bearer, testclient
from tests.support import api_rows, service_fakes
from tests.support.waiting import until


def test_an_admin_makes_limits_and_fills_a_project(service: Service) -> None:
    http, admin = service.client, service.auth("admin")
    body = {"name": "vision", "max_bytes": 100, "retention_days": 7}
    made = http.post("/v1/projects", json=body, headers=admin)
    assert made.status_code == 201 and made.json()["max_bytes"] == 100
    again = http.post("/v1/projects", json=body, headers=admin)
    assert again.status_code == 409 and "take another name" in again.json()["detail"]
    ask = {"name": "k", "project": "vision", "scopes": ["read", "submit"]}
    key = http.post("/v1/keys", json=ask, headers=admin).json()
    nowhere = http.post("/v1/keys", json=ask | {"project": "nowhere"}, headers=admin)
    assert nowhere.status_code == 404 and "no such project" in nowhere.json()["detail"]
    assert key["key"]["project"] == "vision"
    theirs = bearer(key["text"])
    job = http.post("/v1/jobs", json=GEMM, headers=theirs).json()
    assert job["project"] == "vision"
    usage = http.get("/v1/projects/vision", headers=theirs).json()
    assert (usage["n_running_jobs"], usage["n_bytes"], usage["retention_days"]) == (1, 0, 7)
    limited = http.put("/v1/projects/vision", json={"max_trials": 8}, headers=admin).json()
    assert limited["max_trials"] == 8 and limited["max_bytes"] is None
    assert http.get("/v1/me", headers=theirs).json()["quota"]["max_trials"] == 8
    refused = http.post("/v1/jobs", json={**GEMM, "trials": 9}, headers=theirs)
    assert refused.status_code == 429 and "more than the 8" in refused.json()["detail"]
    default = http.post("/v1/jobs", json={**GEMM, "seconds": 9.0}, headers=theirs)
    assert default.status_code == 201 and default.json()["trials"] == 8
    actions = [entry["action"] for entry in http.get("/v1/audit", headers=admin).json()["items"]]
    assert {"project.create", "project.change"} <= set(actions)


def test_names_that_projects_cannot_have(service: Service) -> None:
    for name in ("", "Vision", "a b", "../x", "-x", "x" * 65, "é", "a/b"):
        response = service.client.post(
            "/v1/projects", json={"name": name}, headers=service.auth("admin")
        )
        assert response.status_code == 422, name


def test_an_upload_over_the_projects_space_is_refused_and_leaves_nothing(service: Service) -> None:
    service.client.put(
        "/v1/projects/default", json={"max_bytes": 10}, headers=service.auth("admin")
    )
    response = service.client.post("/v1/jobs/upload", files={"file": ("m.onnx", b"x" * 11)})
    assert response.status_code == 507
    problem = response.json()
    assert problem["type"] == "urn:felix:problem:storage-full"
    assert "delete jobs" in problem["detail"]
    assert service.files() == [] and service.client.get("/v1/jobs").json()["items"] == []


def webhook(service: Service, **changes: Any) -> Any:
    body = {"url": "https://ci.invalid/felix"} | changes
    return service.client.post("/v1/webhooks", json=body)


def test_webhooks_from_making_to_deleting(service: Service) -> None:
    http = service.client
    response = webhook(service)
    assert response.status_code == 201
    made = response.json()
    hook, secret = made["webhook"], made["secret"]
    assert webhook(service, url="https://127.0.0.1/").status_code == 422
    assert secret.startswith("whsec_") and hook["states"][0] == "running"
    assert secret not in http.get("/v1/webhooks").text
    sent = http.post(f"/v1/webhooks/{hook['id']}/test").json()
    assert sent["state"] == "pending" and json.loads(sent["body"])["type"] == "test"
    listed = http.get(f"/v1/webhooks/{hook['id']}/deliveries").json()["items"]
    assert [each["id"] for each in listed] == [sent["id"]]
    again = http.post(f"/v1/webhooks/{hook['id']}/deliveries/{sent['id']}/retry")
    assert again.status_code == 202 and again.json()["event_id"] == sent["event_id"]
    assert http.delete(f"/v1/webhooks/{hook['id']}").status_code == 204
    assert http.get(f"/v1/webhooks/{hook['id']}/deliveries").status_code == 404
    audit = http.get("/v1/audit", headers=service.auth("admin")).text
    assert "webhook.create" in audit and "webhook.delete" in audit and secret not in audit


def test_a_project_has_so_many_webhooks_of_keys_that_may_read(service: Service) -> None:
    statuses = [webhook(service).status_code for _ in range(21)]
    assert statuses == [201] * 20 + [429]
    only = service_fakes.key(service.db, can_read=False, can_submit=True)
    service.client.headers.update(bearer(only.text))
    assert webhook(service).status_code == 403


def test_the_application_delivers(service: Service) -> None:
    """The loop of the API server itself, to a receiver that is not there: noted, tried later."""
    settings = service.settings.model_copy(update={"webhook_poll_s": 0.05})
    with testclient.TestClient(app.create_app(settings)) as http:
        http.headers.update(service.auth("submit"))
        hook = http.post("/v1/webhooks", json={"url": "https://no-such-host.invalid/"}).json()
        number = hook["webhook"]["id"]
        http.post(f"/v1/webhooks/{number}/test")

        def sent() -> Any:
            (only,) = http.get(f"/v1/webhooks/{number}/deliveries").json()["items"]
            return only

        until(lambda: sent()["last_error"])
        delivery = sent()
    assert delivery["last_error"] == "cannot connect to the host" and delivery["attempts"] == 1
    assert delivery["state"] == "pending" and delivery["not_before"] > delivery["created_at"]


def test_the_list_as_csv(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api.jobs.CSV_BATCH", 2)
    formulas = ["=cmd()", "+1", "-1", "@x", "\tx", " =x", "＝x", 'plain, "quoted"\nname']
    for text in formulas:
        api_rows.queued(service.db, name=text, note=text, op=text, tags=(text,))
    service_fakes.write(service.db, control.cancel, 1)
    response = service.client.get("/v1/jobs.csv")
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    table = list(csv.DictReader(io.StringIO(response.text, newline="")))
    assert [row["id"] for row in table] == [str(n) for n in range(8, 0, -1)]
    for row in table:
        for cell in row.values():
            assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "＝")), cell
    assert table[0]["name"] == formulas[-1] and table[-1]["name"] == "'=cmd()"
    assert table[-1]["state"] == "cancelled" and table[0]["state"] == "queued"
    chosen = service.client.get("/v1/jobs.csv?state=cancelled").text
    assert len(list(csv.DictReader(io.StringIO(chosen, newline="")))) == 1


def test_the_log_as_text(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.api.files.LOG_BATCH", 3)
    claim = api_rows.running(service.db)
    with service.db.write() as tx:
        message = "the clock\n2026-01-01T00:00:00Z 99 state to=succeeded \u202e"
        events.append(tx, claim.job.id, events.Type.WARNING, {"message": message})
        leases.fail(tx, claim.fence, "engine", "out of memory", None)
    text = service.client.get(f"/v1/jobs/{claim.job.id}/log").text
    lines = text.splitlines()
    assert " 1 state to=queued" in lines[0] and "where the time went: " in lines[-1]
    assert "search_s=1" in lines[-1]
    (warning,) = (line for line in lines if " warning " in line)
    assert "\\n2026" in warning and "\u202e" not in text
    (failed,) = (line for line in lines if "to=failed" in line)
    assert 'message="out of memory"' in failed and "error=engine" in failed
    assert not any(" trial " in line for line in lines)
    complete = service.client.get(f"/v1/jobs/{claim.job.id}/log?all=1").text
    assert complete.count(" trial ") == 12
    assert service.client.get("/v1/jobs/99/log").status_code == 404
