"""What the API returns of a job: tasks, trials, curves, search, events, artifacts, devices."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from typing import Any

import pydantic
import pytest

from server.api import document as api_document
from server.api import events
from server.store import artifacts, blobs, plot_points, trials
from tests.server.conftest import Service
from tests.support import api_rows, service_fakes


def test_a_finished_job(service: Service) -> None:
    job = api_rows.finished(service.db, service.blobs)
    content = service.get(f"/v1/jobs/{job.id}")
    assert content["state"] == "succeeded" and content["progress"] == 1.0
    assert content["reason"] == "trials" and content["n_trials"] == 12 and content["n_failed"] == 3
    assert content["best_us"] == job.best_us and content["unscheduled_us"] == 1000.0
    assert content["speedup"] == 1000.0 / content["best_us"]
    assert content["gflops"] == 1e6 / content["best_us"] / 1e3
    assert content["breakdown"] == {"search_s": 1.0, "measure_s": 2.0}
    assert "lease_token" not in content
    (task,) = service.get(f"/v1/jobs/{job.id}/tasks")["items"]
    assert task["n_sketches"] == 2 and task["speedup"] == content["speedup"]
    code = service.get(f"/v1/jobs/{job.id}/tasks/0/code")
    assert code == {"schedule": "def main(): ...", "source": "; llvm", "assembly": None}
    assert service.client.get(f"/v1/jobs/{job.id}/tasks/1/code").status_code == 404


def test_trials_are_paged_and_filtered(service: Service) -> None:
    job = api_rows.finished(service.db, service.blobs)
    where = f"/v1/jobs/{job.id}/trials"
    first = service.get(f"{where}?limit=5")
    assert [trial["number"] for trial in first["items"]] == [1, 2, 3, 4, 5] and first["next"] == 5
    last = service.get(f"{where}?after=10")
    assert [t["number"] for t in last["items"]] == [11, 12] and last["next"] is None
    failed = service.get(f"{where}?ok=false")["items"]
    assert [trial["number"] for trial in failed] == [4, 8, 12]
    assert all(trial["error"] == "build" and trial["latency_us"] is None for trial in failed)
    assert len(service.get(f"{where}?error=build")["items"]) == 3
    assert service.get(f"{where}?error=timeout")["items"] == []
    assert [t["number"] for t in service.get(f"{where}?round=1")["items"]] == [5, 6, 7, 8]
    assert all(t["is_best"] for t in service.get(f"{where}?best_only=true")["items"])
    assert service.get(f"{where}?task=3")["items"] == []
    assert service.get(f"{where}/2")["decisions"] == [1, 2]
    assert service.client.get(f"{where}/99").status_code == 404
    assert service.client.get("/v1/jobs/99/trials").status_code == 404


def test_exports_have_every_trial(service: Service, monkeypatch: Any) -> None:
    monkeypatch.setattr(trials, "BATCH", 5)  # several pages
    job = api_rows.finished(service.db, service.blobs)
    text = service.client.get(f"/v1/jobs/{job.id}/trials.csv")
    assert text.headers["Content-Type"].startswith("text/csv")
    assert "attachment" in text.headers["Content-Disposition"]
    table = list(csv.DictReader(io.StringIO(text.text)))
    assert [int(row["number"]) for row in table] == list(range(1, 13))
    assert table[1]["decisions"] == "1 2" and float(table[1]["latency_us"]) == 50.0
    assert table[3]["latency_us"] == "" and table[3]["error"] == "build"
    lines = service.client.get(f"/v1/jobs/{job.id}/trials.jsonl?ok=true").text.splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert service.client.get("/v1/jobs/99/trials.csv").status_code == 404


def test_spreadsheets_get_no_formula(service: Service) -> None:
    claim = api_rows.running(service.db, n_trials=1)
    new = service_fakes.new_trial(50, None, message="=HYPERLINK(1)")
    service_fakes.add(service.db, claim.fence, new)
    text = service.client.get(f"/v1/jobs/{claim.job.id}/trials.csv").text
    assert list(csv.DictReader(io.StringIO(text)))[1]["message"] == "'=HYPERLINK(1)"


def test_the_curve_falls_and_reaches_today(service: Service) -> None:
    job = api_rows.finished(service.db, service.blobs)
    curve = service.get(f"/v1/jobs/{job.id}/curve")
    best = [point["best_us"] for point in curve["points"]]
    assert best == sorted(best, reverse=True) and best[-1] == job.best_us
    last = curve["points"][-1]
    assert last["trial"] == job.n_trials and last["share_of_best"] == 1.0
    assert curve["points"][0]["share_of_best"] == job.best_us / best[0]  # type: ignore[operator]
    assert curve["unscheduled_us"] == 1000.0
    assert service.get(f"/v1/jobs/{job.id}/curve?task=0")["points"][-1]["best_us"] == best[-1]
    assert service.get(f"/v1/jobs/{job.id}/curve?task=5")["points"] == []


def test_curves_are_overlaid(service: Service) -> None:
    one = api_rows.finished(service.db, service.blobs, name="one")
    two = api_rows.finished(service.db, service.blobs, name="two", n_trials=5)
    items = service.get(f"/v1/curves?job={two.id}&job={one.id}&job={two.id}")["items"]
    assert [(item["job_id"], item["name"]) for item in items] == [(two.id, "two"), (one.id, "one")]
    assert items[1] == service.get(f"/v1/jobs/{one.id}/curve")
    assert service.client.get(f"/v1/curves?job={one.id}&job=99").status_code == 404
    assert service.client.get("/v1/curves").status_code == 422


def test_predicted_against_measured(service: Service) -> None:
    job = api_rows.finished(service.db, service.blobs)
    predicted = service.get(f"/v1/jobs/{job.id}/predicted")
    assert predicted["n"] == 9 and abs(predicted["median_ratio"] - 1.25) < 1e-9
    assert abs(predicted["rank_correlation"] - 1.0) < 1e-9
    assert [point["trial"] for point in predicted["points"]] == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert len(service.get(f"/v1/jobs/{job.id}/predicted?limit=2")["points"]) == 2


def test_rank_correlation_shares_ranks() -> None:
    from scipy import stats

    one, other = [1.0, 2.0, 2.0, 5.0, 4.0], [3.0, 1.0, 4.0, 4.0, 9.0]
    expected = stats.spearmanr(one, other).statistic
    assert abs((plot_points.rank_correlation(one, other) or 0.0) - expected) < 1e-12
    assert plot_points.rank_correlation([1.0, 1.0], [1.0, 2.0]) is None


def test_search_internals(service: Service) -> None:
    job = api_rows.finished(service.db, service.blobs)
    search = service.get(f"/v1/jobs/{job.id}/search")
    assert [step["loss"] for step in search["rounds"][0]["steps"]] == [3.0, 2.0, 1.0]
    assert search["rounds"][0]["n_candidates"] == 4
    assert search["trainings"][0]["loss_after"] == 0.25 and search["errors"] == {"build": 3}
    assert service.get(f"/v1/jobs/{job.id}/search?task=0&after=0")["rounds"] == []


def test_the_stream_of_an_ended_job_ends(service: Service, monkeypatch: Any) -> None:
    monkeypatch.setattr(events, "BATCH", 3)  # several reads
    job = api_rows.finished(service.db, service.blobs)
    response = service.client.get(f"/v1/jobs/{job.id}/events/stream?after_seq=2")
    assert response.headers["Content-Type"].startswith("text/event-stream")
    streamed = [
        dict(line.split(": ", 1) for line in block.splitlines())
        for block in response.text.split("\n\n")
        if block
    ]
    assert [int(each["id"]) for each in streamed[:-1]] == list(range(3, job.last_seq + 1))
    assert streamed[-1] == {"event": "end", "data": '{"state": "succeeded"}'}
    assert json.loads(streamed[0]["data"])["seq"] == 3
    headers = {"Last-Event-ID": str(job.last_seq)}
    rest = service.client.get(f"/v1/jobs/{job.id}/events/stream", headers=headers).text
    assert rest.count("event:") == 1
    bad = service.client.get(f"/v1/jobs/{job.id}/events/stream", headers={"Last-Event-ID": "x"})
    assert bad.status_code == 422
    assert service.client.get("/v1/jobs/99/events/stream").status_code == 404


def test_one_stream_has_the_events_of_several_jobs(service: Service) -> None:
    """Each job's in order and from its position, then its end; unknown jobs end at once."""
    first = api_rows.finished(service.db, service.blobs)
    second = api_rows.finished(service.db, service.blobs)
    positions = [f"{first.id}:2", f"{second.id}:{second.last_seq - 1}", "99:0"]
    response = service.client.get("/v1/events/stream", params={"job": positions})
    assert response.headers["Content-Type"].startswith("text/event-stream")
    seqs: dict[int, list[int]] = {}
    ends: dict[int, str | None] = {}
    for block in response.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
        if lines:
            data = json.loads(lines["data"])
            assert data["job_id"] not in ends
            if lines.get("event") == "end":
                ends[data["job_id"]] = data["state"]
            else:
                assert "event" not in lines
                seqs.setdefault(data["job_id"], []).append(data["event"]["seq"])
    assert seqs == {first.id: list(range(3, first.last_seq + 1)), second.id: [second.last_seq]}
    assert ends == {first.id: "succeeded", second.id: "succeeded", 99: None}


@pytest.mark.parametrize(
    "positions", [[], ["7"], ["7:x"], ["7:-1"], ["99999999999:0"], ["4294967296:0"], ["7:0"] * 65]
)
def test_positions_of_a_stream_are_checked(service: Service, positions: list[str]) -> None:
    response = service.client.get("/v1/events/stream", params={"job": positions})
    assert response.status_code == 422


def test_artifacts_are_downloaded_whole(service: Service) -> None:
    job = api_rows.finished(service.db, service.blobs)
    where = f"/v1/jobs/{job.id}/artifacts"
    (artifact,) = service.get(where)["items"]
    response = service.client.get(f"{where}/{artifact['name']}")
    sha256 = hashlib.sha256(response.content).hexdigest()
    assert response.content == api_rows.CONTENT and sha256 == artifact["sha256"]
    assert response.headers["ETag"] == f'"{sha256}"' and response.headers["X-Sha256"] == sha256
    assert int(response.headers["Content-Length"]) == artifact["size_bytes"]
    assert response.headers["Content-Type"] == "application/zip"
    assert response.headers["Content-Disposition"].startswith("attachment")
    assert service.client.get(f"{where}/other.zip").status_code == 404


def test_a_lost_blob_is_said(service: Service) -> None:
    claim = api_rows.running(service.db)
    new = service_fakes.artifact(blobs.Stored("0" * 64, 1), "lost.zip")
    service_fakes.write(service.db, artifacts.add, claim.fence, new)
    response = service.client.get(f"/v1/jobs/{claim.job.id}/artifacts/lost.zip")
    assert response.status_code == 404 and "blob store" in response.json()["detail"]


def test_devices_and_tuners(service: Service) -> None:
    claim = api_rows.running(service.db)
    api_rows.tuner(service.db, "second")
    tuners = service.get("/v1/workers")["items"]
    assert [tuner["name"] for tuner in tuners] == ["second", "tuner"]
    assert tuners[1]["job_id"] == claim.job.id and tuners[1]["n_trials"] == 12
    assert service.get("/v1/workers?alive=false")["items"] == []
    (device,) = service.get("/v1/devices")["items"]
    assert device["name"] == "test cpu" and device["n_tuners_alive"] == 2
    assert device["worker_ids"] == [tuner["id"] for tuner in tuners]
    assert device["reports"] == []


def test_devices_have_what_their_tuners_saw(service: Service) -> None:
    api_rows.running(service.db)
    sick = {"place": "cuda:1", "fault": "too hot", "n_measured": 0, "n_failed": 0}
    service_fakes.report_device(service.db, {}, sick)
    (device,) = service.get("/v1/devices")["items"]
    first, second = device["reports"]
    assert (first["place"], first["queue"], first["error_rate"]) == ("cuda:0", 3, 0.1)
    assert (first["clock_ghz"], first["power_w"], first["driver"]) == (1.7, 512.0, "550.1")
    assert (second["fault"], second["error_rate"]) == ("too hot", None)


def test_operators_have_schemas(service: Service) -> None:
    operators = service.get("/v1/operators")
    assert {"gemm", "conv2d", "softmax"} <= set(operators)
    assert operators["gemm"]["properties"]["m"]["type"] == "integer"
    assert service.get("/v1/operators/gemm") == operators["gemm"]
    assert service.client.get("/v1/operators/nope").status_code == 404


def test_shipped_cost_models_have_cards(service: Service) -> None:
    shipped = {model["name"]: model for model in service.get("/v1/models")["items"]}
    assert shipped["llvm"]["card"].startswith("#") and len(shipped["llvm"]["sha256"]) == 64
    assert shipped["llvm"]["metadata"]


def test_health_readiness_and_metrics(service: Service) -> None:
    assert service.get("/healthz") == {"status": "ok"}
    ready = service.get("/readyz")
    assert ready["status"] == "ready" and ready["schema_revision"]
    api_rows.queued(service.db)
    text = service.client.get("/metrics").text
    assert 'felix_jobs{state="queued"} 1.0' in text
    assert 'felix_http_requests_total{method="GET",route="/readyz",status="200"} 1.0' in text


def test_every_response_and_body_has_an_example_of_its_schema(service: Service) -> None:
    document = service.client.get("/v1/openapi.json").json()
    assert document["components"]["schemas"]["Problem"]["required"] == ["type", "title", "status"]
    routes = {
        (method.lower(), route.path): route.response_model
        for router in api_document.ROUTERS
        for route in router.routes
        for method in route.methods
    }
    n_examples = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                for media_type, content in response.get("content", {}).items():
                    if not status.startswith("2"):
                        assert media_type == "application/problem+json"
                        continue
                    n_examples += 1
                    if media_type == "application/json":
                        adapter = pydantic.TypeAdapter(routes[method, path])
                        adapter.validate_python(content["example"])
                    else:
                        assert isinstance(content["example"], str) and content["example"]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                kind = content["schema"].get("$ref", "").rpartition("/")[2]
                schema = document["components"]["schemas"][kind] if kind else content["schema"]
                assert "examples" in json.dumps(schema), (method, path)
    assert n_examples == len(routes) + 5 - 4  # five also respond 200, four have no body
