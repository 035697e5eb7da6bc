"""Jobs over REST: submitted once, listed, moved, changed, deleted; the same on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from felix import workloads
from tests.server.conftest import Service
from tests.support import api_rows
from tests.support.hostile import onnx_models

GEMM: dict[str, Any] = {
    "workload": {"kind": "operator", "name": "gemm", "params": {"m": 64, "n": 32, "k": 48}},
    "trials": 8,
}


def test_an_operator_becomes_a_queued_job(service: Service) -> None:
    made = service.submit(
        GEMM, tags=["b", "a", "b"], priority=3, options={"round_size": 4}, seed=5
    )
    assert made["state"] == "queued" and made["op"] == "gemm" and made["kind"] == "operator"
    assert made["tags"] == ["a", "b"] and made["priority"] == 3 and made["seed"] == 5
    assert made["options"] == {"round_size": 4} and made["target_key"] == "llvm"
    assert made["flops"] == 2 * 64 * 32 * 48 and made["n_tasks"] == 1
    assert made["key_id"] == service.keys["submit"].key.id
    again = service.client.get(f"/v1/jobs/{made['id']}").json()
    assert again == made
    (task,) = service.client.get(f"/v1/jobs/{made['id']}/tasks").json()["items"]
    assert task["flops"] == made["flops"] and task["n_trials"] == 0 and task["best_us"] is None


def test_without_a_budget_there_is_one(service: Service) -> None:
    made = service.submit(GEMM, trials=None)
    assert made["trials"] == 64
    made = service.submit(GEMM, trials=None, seconds=30.5)
    assert made["seconds"] == 30.5 and made["trials"] == service.settings.max_trials


@pytest.mark.parametrize(
    ("asked", "strategy"),
    [
        ({}, "gradient"),
        ({"target": "cuda -arch sm_90"}, "gradient"),
        ({"target": "h100", "strategy": "local"}, "local"),
    ],
)
def test_without_a_strategy_a_job_has_its_target_s(
    service: Service, asked: dict[str, str], strategy: str
) -> None:
    assert service.submit(GEMM, **asked)["strategy"] == strategy


def test_a_program_becomes_a_job(service: Service) -> None:
    program = workloads.build("softmax", {"shape": [8, 16]}).to_json()
    body = {"workload": {"kind": "tir", "program": program, "name": "soft"}, "trials": 4}
    made = service.client.post("/v1/jobs", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["kind"] == "tir" and made.json()["op"] == "soft"
    uploaded = service.upload("soft.json", program.encode(), '{"kind": "tir", "name": "mine"}')
    assert uploaded.status_code == 201, uploaded.text
    assert uploaded.json()["name"] == "mine" and uploaded.json()["workload"]["file"] == "soft.json"
    where = f"/v1/jobs/{uploaded.json()['id']}/artifacts"
    (artifact,) = service.client.get(where).json()["items"]
    assert artifact["kind"] == "input"
    content = service.client.get(f"{where}/{artifact['name']}").content
    assert content == program.encode()


def test_an_onnx_model_becomes_a_job_with_a_network_unless_it_is_refused(service: Service) -> None:
    content = onnx_models.matmul_relu()
    response = service.upload("net.onnx", content)
    assert response.status_code == 201, response.text
    made = response.json()
    assert made["kind"] == "onnx" and made["op"] == "net.onnx" and made["n_tasks"] >= 1
    assert made["trials"] == 64 * made["n_tasks"]
    assert made["workload"]["size_bytes"] == len(content) and len(service.files()) == 1
    network = service.client.get(f"/v1/jobs/{made['id']}").json()["network"]
    assert network["name"] == "net" and network["failure"] is None
    assert network["latency_us"] is None and network["call_us"] is None  # nothing was measured
    assert network["dtypes"] == ["float32"]
    tasks = {group["task"] for group in network["groups"] if group["task"] is not None}
    assert tasks == set(range(made["n_tasks"]))
    assert all(group["calls"] >= 1 and group["ships"] is None for group in network["groups"])
    plain = service.upload("net.onnx", content, '{"network": false}').json()
    assert service.client.get(f"/v1/jobs/{plain['id']}").json()["network"] is None
    n_jobs = len(service.client.get("/v1/jobs").json()["items"])
    program = workloads.build("softmax", {"shape": [8, 16]}).to_json().encode()
    refused = service.upload("soft.json", program, '{"kind": "tir", "network": true}')
    assert refused.status_code == 422 and "one program" in refused.text
    refused = service.upload("net.pt2", content)
    assert refused.status_code == 422 and "export the model to ONNX" in refused.text
    assert len(service.client.get("/v1/jobs").json()["items"]) == n_jobs


def test_a_repeated_request_makes_one_job(service: Service) -> None:
    headers = {"Idempotency-Key": "once"}
    first = service.client.post("/v1/jobs", json=GEMM, headers=headers)
    assert first.status_code == 201
    for same in (GEMM, GEMM | {"reuse": True}):  # requests hash as before there was reuse
        second = service.client.post("/v1/jobs", json=same, headers=headers)
        assert (second.status_code, second.json()["id"]) == (200, first.json()["id"])
        assert first.headers["Location"] == second.headers["Location"]
    for changes in ({"trials": 9}, {"reuse": False}):
        other = service.client.post("/v1/jobs", json=GEMM | changes, headers=headers)
        assert other.status_code == 409 and "Idempotency-Key" in other.json()["detail"]
    admin = service.client.post("/v1/jobs", json=GEMM, headers=headers | service.auth("admin"))
    assert admin.status_code == 201  # keys do not share theirs
    assert len(service.client.get("/v1/jobs").json()["items"]) == 2


def test_quotas_hold_before_anything_is_parsed(service: Service) -> None:
    too_many = service.client.post("/v1/jobs", json=GEMM | {"trials": 10**6})
    assert too_many.status_code == 429 and too_many.headers["Retry-After"]
    ask = {"name": "small", "scopes": ["read", "submit"], "max_running_jobs": 1}
    admin = service.auth("admin")
    text = service.client.post("/v1/keys", json=ask, headers=admin).json()["text"]
    small = {"Authorization": f"Bearer {text}"}
    made = service.client.post("/v1/jobs", json=GEMM, headers=small).json()
    refused = service.client.post("/v1/jobs", json=GEMM, headers=small)
    assert refused.status_code == 429
    assert refused.json()["type"] == "urn:felix:problem:quota-exceeded"
    verb = f"/v1/jobs/{made['id']}"
    assert service.client.post(f"{verb}/pause", headers=small).status_code == 200
    assert service.client.post("/v1/jobs", json=GEMM, headers=small).status_code == 201
    assert service.client.post(f"{verb}/resume", headers=small).status_code == 429
    assert service.client.post(f"{verb}/resume", headers=admin).status_code == 200


def test_jobs_are_filtered(service: Service) -> None:
    mine = service.keys["submit"].key.id
    one = api_rows.queued(service.db, mine, name="Alpha 1", tags=("x", "y"))
    two = api_rows.queued(service.db, None, name="beta", op="conv2d", kind="onnx", tags=("x",))
    three = api_rows.queued(service.db, mine, name="100%", target_key="cuda")
    service.client.post(f"/v1/jobs/{one.id}/pause")

    def ids(query: str) -> list[int]:
        response = service.client.get(f"/v1/jobs?{query}")
        assert response.status_code == 200, response.text
        return [job["id"] for job in response.json()["items"]]

    assert ids("") == [three.id, two.id, one.id]
    assert ids("oldest_first=true") == [one.id, two.id, three.id]
    assert ids("state=paused") == [one.id]
    assert ids("state=paused&state=queued") == [three.id, two.id, one.id]
    assert ids("tag=x") == [two.id, one.id] and ids("tag=x&tag=y") == [one.id]
    assert ids("q=ALPHA") == [one.id] and ids("q=conv") == [two.id] and ids("q=%25") == [three.id]
    assert ids("kind=onnx") == [two.id] and ids("op=conv2d") == [two.id]
    assert ids("target_key=cuda") == [three.id]
    assert ids("mine=true") == [three.id, one.id]
    assert service.client.get("/v1/jobs?state=asleep").status_code == 422


def test_pages_follow_one_another(service: Service) -> None:
    made = [api_rows.queued(service.db).id for _ in range(7)]
    listed: list[int] = []
    where: str | None = "/v1/jobs?limit=3&state=queued"
    while where is not None:
        response = service.client.get(where)
        listed += [job["id"] for job in response.json()["items"]]
        link = response.headers.get("Link")
        where = None if link is None else link[1 : link.index(">")]
        api_rows.queued(service.db)  # newer jobs do not shift later pages
    assert listed == made[::-1]


def test_verbs_move_jobs_or_are_conflicts(service: Service) -> None:
    """What each verb does in each state is a table, tested of the store."""
    mine = service.keys["submit"].key.id

    def moved(job_id: int, *verbs: str) -> list[str]:
        responses = [service.client.post(f"/v1/jobs/{job_id}/{verb}") for verb in verbs]
        assert {response.status_code for response in responses} == {200}
        return [response.json()["state"] for response in responses]

    waits = api_rows.queued(service.db, mine).id
    verbs = ("pause", "resume", "cancel", "cancel", "retry")
    assert moved(waits, *verbs) == ["paused", "queued", "cancelled", "cancelled", "queued"]
    running = api_rows.running(service.db, mine).job.id
    verbs = ("pause", "resume", "stop", "cancel")
    assert moved(running, *verbs) == ["pausing", "running", "stopping", "cancelling"]
    done = api_rows.finished(service.db, service.blobs, mine).id
    for verb in ("pause", "resume", "cancel", "stop", "retry"):
        response = service.client.post(f"/v1/jobs/{done}/{verb}")
        assert response.status_code == 409 and "succeeded" in response.json()["detail"]
    response = service.client.post(f"/v1/jobs/{waits}/stop")
    assert response.status_code == 409 and "cancel it" in response.json()["detail"]


def test_changes_of_the_owner(service: Service) -> None:
    made = service.submit(GEMM, tags=["a"])
    where = f"/v1/jobs/{made['id']}"
    ask = {"name": "other", "note": "two\nlines", "priority": -5, "tags": ["n"]}
    changed = service.client.patch(where, json=ask).json()
    assert {name: changed[name] for name in ask} == ask
    assert service.client.patch(where, json={"tags": []}).json()["tags"] == []
    assert service.client.patch(where, json={"state": "failed"}).status_code == 422
    events = service.client.get(f"{where}/events?type=changed").json()["items"]
    assert events[0]["payload"]["priority"] == -5


def test_deleting_takes_blobs_that_nothing_names(service: Service) -> None:
    mine = service.keys["submit"].key.id
    one = api_rows.finished(service.db, service.blobs, mine)
    two = api_rows.finished(service.db, service.blobs, mine)
    assert len(service.files()) == 1  # the same content
    assert service.client.delete(f"/v1/jobs/{one.id}").status_code == 204
    assert len(service.files()) == 1
    assert service.client.get(f"/v1/jobs/{one.id}").status_code == 404
    assert service.client.delete(f"/v1/jobs/{two.id}").status_code == 204
    assert service.files() == []
    alive = api_rows.queued(service.db, mine)
    assert service.client.delete(f"/v1/jobs/{alive.id}").status_code == 409
