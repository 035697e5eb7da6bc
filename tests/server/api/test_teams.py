"""What teams expect: reuse, databases in and out, batches, templates, estimates."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import re
import zipfile
from typing import Any

import pytest
import tvm
from tvm.s_tir import meta_schedule as ms

from felix import workloads
from felix.database import records
from felix.metaschedule import trace_text
from felix.tuning import task_search
from server.parsing import databases
from server.store import (
    artifacts,
    leases,
    progress,
    projects,
    requests,
    reuse,
    rows,
    trials,
    tuners,
)
from tests.server.conftest import Service, bearer
from tests.support import api_rows, service_fakes

DEVICE = "llvm/x/test"
TARGET = "llvm -num-cores 2"
GEMM: dict[str, Any] = {
    "workload": {"kind": "operator", "name": "gemm", "params": {"m": 32, "n": 32, "k": 32}},
    "target": TARGET,
    "trials": 8,
}
LARGER = GEMM["workload"] | {"params": {"m": 64, "n": 32, "k": 32}}


def _tune(service: Service, bundle: bytes = service_fakes.bundle(), n_trials: int = 8) -> int:
    """Do what a tuner does to the next job; its number."""
    stored = service_fakes.put(service.blobs, bundle)
    worker_id = api_rows.tuner(service.db)
    with service.db.write() as tx:
        claim = leases.claim(tx, worker_id, ["llvm"], 60.0)
        assert claim is not None
        leases.begin(tx, claim.fence, DEVICE, '{"kind":"llvm"}')
        about = {"model": "m", "versions": records.versions()}
        progress.started(tx, claim.fence, ["key"] * claim.job.n_tasks, about)
        for number in range(n_trials):
            line = json.dumps({"elapsed_s": 1.0, "n": number})
            new = service_fakes.new_trial(number, 50.0 / (number + 1), record=line)
            trials.append(tx, claim.fence, new)
        artifacts.add(tx, claim.fence, service_fakes.artifact(stored, "job.zip"))
        leases.succeed(tx, claim.fence, "trials")
    return claim.job.id


def test_a_tuned_workload_submitted_again_is_answered_at_once(service: Service) -> None:
    first = service.submit(GEMM)
    assert first["state"] == "queued" and first["reused_from"] is None
    assert _tune(service) == first["id"]
    again = service.submit(GEMM)
    (bundle,) = service.client.get(f"/v1/jobs/{again['id']}/artifacts").json()["items"]
    content = service.client.get(f"/v1/jobs/{again['id']}/artifacts/{bundle['name']}").content
    assert (again["state"], again["reason"]) == ("succeeded", "reused")
    assert again["reused_from"] == first["id"]
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        about = json.loads(archive.read(f"felix-job-{again['id']}/manifest.json"))["job"]
    assert (about["id"], about["reused_from"]) == (again["id"], first["id"])
    assert hashlib.sha256(content).hexdigest() == bundle["sha256"]
    assert again["best_us"] == pytest.approx(50 / 8) and again["progress"] == 1.0


def test_reuse_can_be_refused_and_is_not_blind(service: Service) -> None:
    service.submit(GEMM)
    _tune(service)
    assert service.submit(GEMM, reuse=False)["state"] == "queued"
    assert service.submit(GEMM, seed=1)["state"] == "queued"
    assert service.submit(GEMM, workload=LARGER)["state"] == "queued"
    assert service.submit(GEMM, trials=9)["state"] == "queued"
    program = workloads.gemm(32, 32, 32, target=TARGET).to_json()
    same = service.submit(GEMM, workload={"kind": "tir", "program": program})
    assert same["state"] == "succeeded"  # the same program, however it was written


def test_jobs_are_searched_by_program_and_similar_ones_shown(service: Service) -> None:
    first = service.submit(GEMM)
    larger = service.submit(GEMM, workload=LARGER)
    (task,) = service.client.get(f"/v1/jobs/{first['id']}/tasks").json()["items"]
    key = workloads.gemm(32, 32, 32, target=TARGET).program_key
    assert task["program_key"] == key and task["task_key"] is None
    listed = service.client.get("/v1/jobs", params={"program": key}).json()["items"]
    assert [job["id"] for job in listed] == [first["id"]]
    _tune(service)
    listed = service.client.get("/v1/jobs", params={"program": "key"}).json()["items"]
    assert [job["id"] for job in listed] == [first["id"]]  # by `task_key`, too
    similar = service.client.get(f"/v1/jobs/{first['id']}/similar").json()["items"]
    assert [job["id"] for job in similar] == [larger["id"]]
    assert similar[0]["workload"] == {"params": {"m": 64, "n": 32, "k": 32}}
    assert service.client.get("/v1/jobs/999/similar").status_code == 404


def test_a_batch_reports_each_item(service: Service) -> None:
    jobs = [
        GEMM,
        GEMM | {"trials": 0},
        GEMM | {"trials": 10**6},
        {"nonsense": 1},
        GEMM | {"workload": {"kind": "operator", "name": "gemm", "params": {"m": -1}}},
        GEMM | {"name": "last"},
    ]
    response = service.client.post("/v1/batches", json={"jobs": jobs})
    assert response.status_code == 201, response.text
    items = response.json()["items"]
    statuses = [None if i["problem"] is None else i["problem"]["status"] for i in items]
    assert statuses == [None, 422, 429, 422, 422, None]
    assert items[1]["problem"]["errors"][0]["where"] == "#/trials"
    assert "1000000 trials" in items[2]["problem"]["detail"]
    assert [item["state"] for item in items if item["job_id"]] == ["queued"] * 2
    job = service.client.get(f"/v1/jobs/{items[5]['job_id']}").json()
    assert job["name"] == "last"
    service.client.post(f"/v1/jobs/{job['id']}/cancel")
    where = response.headers["Location"]
    now = service.client.get(where).json()["items"]
    assert now[5]["state"] == "cancelled" and now[1] == items[1]
    assert service.client.delete(f"/v1/jobs/{job['id']}").status_code == 204
    gone = service.client.get(where).json()["items"][5]
    assert (gone["job_id"], gone["state"]) == (job["id"], None)
    assert service.client.get(where, headers=service.auth("read")).status_code == 404
    assert service.client.get(where, headers=service.auth("admin")).status_code == 200


def test_batches_are_listed_newest_first(service: Service) -> None:
    made = []
    for n_refused in range(3):
        body = {"jobs": [GEMM] * (n_refused == 2) + [{"nonsense": 1}] * n_refused or [{}]}
        made.append(service.client.post("/v1/batches", json=body).json())
    listed = service.client.get("/v1/batches", params={"limit": 2})
    assert listed.json() == {"items": [made[2], made[1]], "next": made[1]["id"]}
    assert made[2]["items"][0]["state"] == "queued"
    following = re.match(r'<([^>]+)>; rel="next"', listed.headers["Link"])
    assert following is not None
    assert service.client.get(following[1]).json() == {"items": [made[0]], "next": None}
    reader, admin = service.auth("read"), service.auth("admin")
    assert service.client.get("/v1/batches", headers=reader).json()["items"] == []
    assert len(service.client.get("/v1/batches", headers=admin).json()["items"]) == 3
    assert service.client.get("/v1/batches", params={"limit": 101}).status_code == 422


def test_a_batch_is_made_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    body, headers = {"jobs": [GEMM, GEMM | {"seed": 1}]}, {"Idempotency-Key": "b"}
    create = requests.create_batch

    def die(*_: Any) -> None:
        raise RuntimeError("killed before the end")

    monkeypatch.setattr(requests, "create_batch", die)
    assert service.client.post("/v1/batches", json=body, headers=headers).status_code == 500
    monkeypatch.setattr(requests, "create_batch", create)
    first = service.client.post("/v1/batches", json=body, headers=headers)
    again = service.client.post("/v1/batches", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert len(service.client.get("/v1/jobs").json()["items"]) == 2
    other = service.client.post("/v1/batches", json={"jobs": [GEMM]}, headers=headers)
    assert other.status_code == 409 and "batch" in other.json()["detail"]
    many = service.client.post("/v1/batches", json={"jobs": [{}] * 101})
    assert many.status_code == 422


def test_templates_are_submitted_with_changes(service: Service) -> None:
    assert service.client.put("/v1/templates/nightly", json=GEMM | {"tags": ["n"]}).is_success
    saved = service.client.get("/v1/templates").json()["items"]
    assert [(t["name"], t["job"]["trials"]) for t in saved] == [("nightly", 8)]
    changes = {
        "job": {"workload": {"params": {"m": 64}}, "trials": 4, "options": {"round_size": 2}}
    }
    made = service.client.post("/v1/templates/nightly/jobs", json=changes)
    assert made.status_code == 201, made.text
    job = made.json()
    assert job["workload"]["params"] == {"m": 64, "n": 32, "k": 32}
    assert (job["trials"], job["tags"], job["target"]) == (4, ["n"], TARGET)
    assert job["options"] == {"round_size": 2}
    wrong = service.client.post("/v1/templates/nightly/jobs", json={"job": {"trials": 0}})
    assert wrong.status_code == 422 and wrong.json()["errors"][0]["where"] == "#/job/trials"
    assert service.client.put("/v1/templates/a%20b", json=GEMM).status_code == 422
    assert service.client.put("/v1/templates/x", json={"trials": 1}).status_code == 422
    others = service.client.get("/v1/templates", headers=service.auth("admin")).json()["items"]
    assert others == []  # templates are of a key
    assert service.client.delete("/v1/templates/nightly").status_code == 204
    assert service.client.post("/v1/templates/nightly/jobs", json={}).status_code == 404


def test_a_strategy_that_left_is_shown_and_refused(service: Service) -> None:
    key_id = service.keys["submit"].key.id
    with service.db.write() as tx:
        requests.save_template(tx, key_id, "old", GEMM | {"strategy": "random"})
    (saved,) = service.client.get("/v1/templates").json()["items"]
    assert saved["job"]["strategy"] == "random"
    refused = service.client.post("/v1/templates/old/jobs", json={})
    assert refused.status_code == 422
    assert "no strategy 'random': use gradient or local" in refused.text
    made = service.client.post("/v1/templates/old/jobs", json={"job": {"strategy": "local"}})
    assert made.status_code == 201 and made.json()["strategy"] == "local"
    job = service_fakes.create(service.db, strategy="evolutionary")
    assert service.client.get(f"/v1/jobs/{job.id}").json()["strategy"] == "evolutionary"


def test_queued_jobs_say_when_they_begin(service: Service) -> None:
    done = service.submit(GEMM)
    assert done["estimate"]["position"] == 1 and done["estimate"]["trials_per_s"] is None
    _tune(service)  # 8 trials in 8 s
    with service.db.write() as tx:
        tx.get_one(reuse.models.Job, done["id"]).elapsed_s = 4.0
    first, second = (service.submit(GEMM, trials=100, reuse=False, seed=n) for n in (1, 2))
    urgent = service.submit(GEMM, trials=20, reuse=False, seed=3, priority=5)
    assert [j["estimate"]["position"] for j in (first, second, urgent)] == [1, 2, 1]
    assert urgent["estimate"]["trials_per_s"] == 2.0
    assert urgent["estimate"]["duration_s"] == 10.0
    now = service.client.get(f"/v1/jobs/{second['id']}").json()["estimate"]
    assert now["position"] == 3 and now["n_recent_jobs"] == 1
    assert (now["n_tuners"], now["begins_in_s"]) == (1, 60.0)
    assert now["waits_for"] is None
    service_fakes.write(service.db, tuners.leave, 1)
    alone = service.client.get(f"/v1/jobs/{second['id']}").json()["estimate"]
    assert (alone["n_tuners"], alone["begins_in_s"]) == (0, None)  # nobody is there to do it
    assert alone["waits_for"] == "a tuner: none is there"
    estimate = service.client.post("/v1/estimate", json=GEMM | {"trials": 6}).json()
    assert estimate["position"] == 4 and estimate["duration_s"] == 3.0
    listed = service.client.get("/v1/jobs").json()["items"]
    assert all(job["estimate"] is None for job in listed)
    assert service.client.get(f"/v1/jobs/{done['id']}").json()["estimate"] is None


def test_one_database_of_several_jobs_is_what_plain_tvm_loads(
    service: Service, tmp_path: pathlib.Path
) -> None:
    first = service.submit(GEMM)
    _tune(service, api_rows.tuned_zip(latency_us=3.0))
    second = service.submit(GEMM, reuse=False)
    _tune(service, api_rows.tuned_zip(latency_us=3.0))
    third = service.submit(GEMM, workload=LARGER)
    _tune(service, api_rows.tuned_zip(64, 5.0))
    ids = [first["id"], second["id"], third["id"]]
    response = service.client.get("/v1/database", params={"job": ids})
    assert response.status_code == 200, response.text
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        archive.extractall(tmp_path)
    loaded = ms.database.JSONDatabase(work_dir=str(tmp_path), allow_missing=False)
    assert len(loaded) == 2  # equal records are one
    for m, latency_us in ((32, 3.0), (64, 5.0)):
        task = workloads.gemm(m, 32, 32, target=TARGET)
        best = loaded.query_tuning_record(task.mod, task.target, "main")
        assert float(best.run_secs[0]) == pytest.approx(latency_us * 1e-6)
        applied = ms.tir_integration.compile_tir(loaded, task.mod, task.target)
        assert "T.parallel" in applied.mod.script() or applied.mod.script() != task.mod.script()
        tvm.tirx.build(applied.mod, task.target)
    by_filter = service.client.get("/v1/database", params={"op": "gemm", "mine": True})
    assert by_filter.content == response.content or len(by_filter.content) > 100
    assert service.client.get("/v1/database", params={"op": "softmax"}).status_code == 404
    queued = service.submit(GEMM, reuse=False)
    refused = service.client.get("/v1/database", params={"job": [first["id"], queued["id"]]})
    assert refused.status_code == 409 and f"job {queued['id']}" in refused.json()["detail"]


def test_a_database_says_which_jobs_have_generated_kernels_alone(service: Service) -> None:
    def export(*numbers: int) -> Any:
        return service.client.get("/v1/database", params={"job": numbers})

    first, second = service.submit(GEMM), service.submit(GEMM, reuse=False)
    _tune(service, api_rows.tuned_zip())
    _tune(service)  # a bundle without a database
    refused = export(second["id"])
    assert refused.status_code == 404 and "generated kernels" in refused.json()["detail"]
    both = export(first["id"], second["id"])
    with zipfile.ZipFile(io.BytesIO(both.content)) as archive:
        note = archive.read(databases.NOTE).decode()
    assert note.endswith(f"jobs {second['id']}\n")
    assert databases.unpack(io.BytesIO(both.content))[0].records
    with zipfile.ZipFile(io.BytesIO(export(first["id"]).content)) as archive:
        assert databases.NOTE not in archive.namelist()


def test_imported_databases_are_part_of_the_export(service: Service) -> None:
    service.submit(GEMM)
    _tune(service, api_rows.tuned_zip(latency_us=3.0))

    def imported(content: bytes, headers: dict[str, str]) -> int:
        zipped = databases.pack(databases.merge(databases.unpack(io.BytesIO(content))))
        file = {"file": ("theirs.zip", zipped)}
        response = service.client.post("/v1/databases", files=file, headers=headers)
        assert response.status_code == 201, response.text
        return int(response.json()["id"])

    def records_of(headers: dict[str, str], **query: Any) -> list[str]:
        response = service.client.get("/v1/database", params=query, headers=headers)
        assert response.status_code == 200, response.text
        (exported,) = databases.unpack(io.BytesIO(response.content))
        assert len(exported.workloads.splitlines()) == len(set(exported.workloads.splitlines()))
        return exported.records.splitlines()

    service_fakes.write(service.db, projects.create, "elsewhere")
    foreign = service_fakes.key(service.db, project="elsewhere", can_submit=True)
    ours, theirs = service.auth("submit"), bearer(foreign.text)
    same, other = (imported(api_rows.tuned_zip(32, us), ours) for us in (3.0, 2.0))
    foreign_job = imported(api_rows.tuned_zip(64, 5.0), theirs)
    assert len(records_of(ours)) == 2  # that of the job and of one import are equal
    assert len(records_of(ours, job=[same])) == 1 and len(records_of(ours, job=[same, other])) == 2
    assert len(records_of(theirs)) == 1
    for headers, number in ((ours, foreign_job), (theirs, same)):
        refused = service.client.get("/v1/database", params={"job": number}, headers=headers)
        assert refused.status_code == 404


def test_an_imported_database_is_a_start(service: Service) -> None:
    task = workloads.gemm(32, 32, 32, target=TARGET)
    content = databases.pack(databases.merge(databases.unpack(io.BytesIO(api_rows.tuned_zip()))))
    response = service.client.post("/v1/databases", files={"file": ("best.zip", content)})
    assert response.status_code == 201, response.text
    imported = response.json()
    assert (imported["state"], imported["kind"]) == ("succeeded", "database")
    assert imported["best_us"] == pytest.approx(3.0) and imported["workload"]["n_records"] == 1
    (of_import,) = service.client.get(f"/v1/jobs/{imported['id']}/tasks").json()["items"]
    assert of_import["program_key"] == task.program_key
    job = service.submit(GEMM)
    assert (job["state"], job["n_trials"]) == ("queued", 0)  # latencies of elsewhere do not count
    (row,) = service.client.get(f"/v1/jobs/{job['id']}/tasks").json()["items"]
    assert row["reused_from"] == imported["id"]
    with service.db.read() as tx:
        known: list[rows.ImportedSchedule] = reuse.known_imports(tx, job["id"], 0)
    sketches = task_search.sketches_of(task)
    located = trace_text.Finder(sketches).find(known[0].signature, known[0].decisions)
    decisions = tuple(int(v) for v in sketches[0].sample(1, seed=1)[0])
    assert located is not None
    found = sketches[located[0]].schedule(located[1])
    assert found.mod.script() == sketches[0].schedule(decisions).mod.script()


@pytest.mark.parametrize(
    ("workloads_text", "records_text", "message"),
    [
        ("[]", "[0,[]]", "cannot read the database"),
        ("[]", "[]", "malformed"),
        ("[]", "[true,[]]", "malformed"),
        ('["1","KksAAAA"]\n', "[0,[]]\n", "cannot read the database"),
        ("", "", "no record"),
        ("".join(f"[{n}]\n" for n in range(65)), "", "more than 64"),
        ("[]", "[-1,[]]\n", "malformed"),
        ("[]", "[" * 5000, "malformed"),
        ("[" * 5000, "", "cannot read|nested"),
    ],
)
def test_a_malformed_database_is_refused(
    service: Service, workloads_text: str, records_text: str, message: str
) -> None:
    content = databases.pack(databases.Database(workloads_text, records_text))
    response = service.client.post("/v1/databases", files={"file": ("a.zip", content)})
    assert response.status_code == 422, response.text
    assert re.search(message, response.json()["detail"]), response.text
    assert service.client.get("/v1/jobs").json()["items"] == [] and service.files() == []


def test_a_zip_that_is_none_or_too_large_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(content: bytes) -> str:
        response = service.client.post("/v1/databases", files={"file": ("a.zip", content)})
        assert response.status_code == 422, response.text
        return str(response.json()["detail"])

    assert "no zip" in refused(b"nonsense")
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    assert "database_workload.json" in refused(empty.getvalue())
    bomb = databases.pack(databases.Database(" " * (databases.MAX_BYTES + 1), ""))
    assert len(bomb) < 1 << 20 and "longer than" in refused(bomb)
