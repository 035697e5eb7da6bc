"""The client and its commands against a served application, over real sockets."""

from __future__ import annotations

import contextlib
import json
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from felix import client, errors, workloads
from felix.cli.remote import jobs
from felix.client import _http
from server.api import events
from server.store import leases
from tests.support import api_rows, service_fakes
from tests.support.live_service import Served, Shell
from tests.support.waiting import until


def test_a_job_from_submitting_to_the_artifact(
    served: Served, felix: client.Client, tmp_path: pathlib.Path
) -> None:
    job = felix.submit("gemm", {"m": 8, "n": 8, "k": 8}, trials=4, tags=["t"], name="mine")
    assert (job.state, job.name, job.tags, job.has_ended) == ("queued", "mine", ["t"], False)
    assert felix.job(job.id) == job
    assert felix.pause(job.id).state == "paused" and felix.resume(job.id).state == "queued"
    assert felix.change(job.id, priority=7).priority == 7
    with pytest.raises(errors.RemoteError, match="no artifact to download: it is queued"):
        felix.download(job.id, tmp_path)
    assert felix.cancel(job.id).state == "cancelled"
    felix.delete(job.id)
    with pytest.raises(errors.RemoteError, match="there is no job") as caught:
        felix.job(job.id)
    assert caught.value.status == 404
    done = api_rows.finished(served.db, served.blobs, name="done")
    assert felix.wait(done.id).speedup == done.speedup
    path = felix.download(done.id, tmp_path / "new" / "folder")
    assert path.name == "job.zip" and path.read_bytes() == api_rows.CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["job.zip"]
    (best,) = felix.best(done.id)
    assert best.latency_us == done.best_us
    curve = felix.curve(done.id)
    assert curve.points[-1].best_us == done.best_us
    assert felix.curves([done.id]) == [curve]
    assert [task.name for task in felix.tasks(done.id)] == ["task-0"]
    assert felix.search(done.id)["errors"] == {"build": 3}
    assert {"gemm", "softmax"} <= set(felix.operators())
    assert felix.devices()[0].name == "test cpu" and felix.workers()[0].name == "tuner"


def test_lists_go_on_over_pages(served: Served, felix: client.Client, monkeypatch: Any) -> None:
    made = [api_rows.queued(served.db, tags=("pages",)).id for _ in range(5)]
    assert [job.id for job in felix.jobs(tag="pages", limit=3)] == made[:1:-1]
    assert [job.id for job in felix.jobs(tag="pages", state=["queued", "paused"])] == made[::-1]
    job = api_rows.finished(served.db, served.blobs, n_trials=250)
    trials = list(felix.trials(job.id))  # pages have 200
    assert [trial.number for trial in trials] == list(range(1, 251))
    assert sum(trial.error is not None for trial in felix.trials(job.id, ok=False)) == 62


def test_a_dataframe_has_every_trial(served: Served, felix: client.Client) -> None:
    job = api_rows.finished(served.db, served.blobs)
    table = felix.dataframe(job.id)
    assert list(table.index) == list(range(1, 13))
    assert table["latency_us"].min() == job.best_us
    assert table["latency_us"].isna().sum() == 3
    assert str(table["measured_at"].dt.tz) == "UTC"


def test_streams_end_with_the_server(tmp_path: pathlib.Path, capsys: Any) -> None:
    """They do not keep it from ending, and a client that goes on finds the next server."""
    served = Served(tmp_path)
    claim = api_rows.running(served.db, n_trials=2)
    received: list[int] = []
    with client.Client(served.url, served.key.text) as made:

        def watching() -> None:
            received.extend(event.seq for event in made.events(claim.job.id))

        thread = threading.Thread(target=watching)
        with served.running():
            thread.start()
            until(lambda: received)
            ended_s = time.monotonic()
        assert time.monotonic() - ended_s < events.MAX_STREAM_S / 5
        with served.running():
            service_fakes.write(served.db, leases.succeed, claim.fence, "trials")
            thread.join(120)
    assert received == list(range(1, len(received) + 1)) and not thread.is_alive()
    assert "Traceback" not in capsys.readouterr().err
    served.db.close()


def test_events_survive_lost_connections(
    served: Served, felix: client.Client, monkeypatch: Any
) -> None:
    """Streams that end early are taken up where they were: each event once, in order."""
    monkeypatch.setattr(events, "MAX_STREAM_S", 0.0)
    monkeypatch.setattr(_http, "RETRY_S", 0.01)
    job = api_rows.finished(served.db, served.blobs)
    sequence: list[int] = []
    original = felix._http.stream
    calls = 0

    @contextlib.contextmanager
    def breaking(path: str, **params: Any) -> Iterator[httpx.Response]:
        nonlocal calls
        calls += 1
        monkeypatch.setattr(events, "MAX_STREAM_S", 60.0 if calls > 1 else 0.0)
        with original(path, **params) as response:
            if calls == 2:

                def lines() -> Iterator[str]:
                    for number, text in enumerate(httpx.Response.iter_lines(response)):
                        if number == 9:
                            raise httpx.ReadError("cut")
                        yield text

                monkeypatch.setattr(response, "iter_lines", lines)
            yield response

    monkeypatch.setattr(felix._http, "stream", breaking)
    sequence += [event.seq for event in felix.events(job.id)]
    assert sequence == list(range(1, job.last_seq + 1)) and calls == 3


def test_files_and_programs_are_submitted(felix: client.Client, tmp_path: pathlib.Path) -> None:
    program = workloads.build("softmax", {"shape": [8, 16]}).to_json()
    path = tmp_path / "soft.json"
    path.write_text(program)
    by_file = felix.submit_file(path, trials=4, idempotency_key="f")
    again = felix.submit_file(path, trials=4, idempotency_key="f")
    assert by_file.id == again.id and by_file.op == "soft.json"
    assert felix.submit_program(program, trials=4).kind == "tir"
    assert felix.artifacts(by_file.id)[0].kind == "input"
    with pytest.raises(errors.WorkloadError, match="cannot read"):
        felix.submit_file(tmp_path / "missing.onnx")


def test_damaged_downloads_are_refused(
    served: Served, felix: client.Client, tmp_path: pathlib.Path
) -> None:
    job = api_rows.finished(served.db, served.blobs)
    (artifact,) = felix.artifacts(job.id)
    blob = served.settings.data_dir / "blobs" / artifact.sha256[:2] / artifact.sha256[2:]
    content = blob.read_bytes()
    blob.write_bytes(b"x" * len(content))
    try:
        with pytest.raises(errors.RemoteError, match="damaged"):
            felix.download(job.id, tmp_path)
    finally:
        blob.write_bytes(content)
    assert list(tmp_path.iterdir()) == []


def test_passing_failures_are_retried_and_others_raised() -> None:
    requested: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requested.append(request.method)
        if request.url.path == "/v1/jobs/1":
            return httpx.Response(503 if len(requested) < 3 else 200, json={})
        return httpx.Response(200, text="<html>")

    waits: list[float] = []
    http = _http.Http("http://x", "k", 1.0, httpx.MockTransport(handle), waits.append)
    assert http.get("/v1/jobs/1") == {} and len(requested) == 3 and waits == [0.5, 1.0]
    requested.clear()
    with pytest.raises(errors.RemoteError, match="HTTP 503"):
        http.send("POST", "/v1/jobs/1")
    assert requested == ["POST"]  # it may have been done
    made = client.Client("http://x", "k", transport=httpx.MockTransport(handle))
    with pytest.raises(errors.RemoteError, match="another version"):
        requested[:] = ["GET"] * 3
        made.job(1)
    with pytest.raises(errors.RemoteError, match="http"):
        client.Client("ftp://x", "k")
    with pytest.raises(errors.RemoteError, match="cannot reach the service at http://127"):
        http = _http.Http("http://127.0.0.1:1", "k", sleep=lambda _: None)
        http.get("/v1/jobs")


def test_a_job_is_not_older_than_an_event_that_is_known(served: Served) -> None:
    """As behind several API servers: one has sent the event, another caches an older response."""
    job = api_rows.finished(served.db, served.blobs)
    requested: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requested.append(request.url.path)
        response = httpx.get(f"{served.url}{request.url.path}", headers=request.headers)
        old = {"state": "running", "last_seq": job.last_seq - 1} if len(requested) < 3 else {}
        return httpx.Response(200, json=response.json() | old)

    with client.Client(served.url, served.key.text, transport=httpx.MockTransport(handle)) as made:
        assert made.job(job.id).state == "running"
        assert made.job(job.id, job.last_seq).state == "succeeded" and len(requested) == 3


def test_streams_are_parsed() -> None:
    lines = [": ping", "", "event: a", "data: 1", "data: 2", "id: 7", "", "data:x", "", "event: b"]
    messages = list(_http.parse(lines))
    assert messages == [("a", "1\n2"), ("message", "x")]


def test_sparklines() -> None:
    assert jobs.sparkline([]) == "" and jobs.sparkline([1.0, 1.0]) == "▁▁"
    assert jobs.sparkline([8.0, 1.0]) == "█▁"
    drawn = jobs.sparkline([float(v) for v in range(100, 0, -1)])
    assert len(drawn) == jobs.WIDTH and drawn[0] == "█" and drawn[-1] == "▁"


def test_commands_from_submit_to_get(served: Served, shell: Shell, tmp_path: pathlib.Path) -> None:
    code, out, _ = shell("submit", "gemm:8,8,8", "--trials", "4", "--tag", "cli", "--json")
    job = json.loads(out)
    assert code == 0 and job["op"] == "gemm" and job["workload"]["params"]["m"] == 8
    number = str(job["id"])
    assert shell("pause", number)[1] == f"job {number}: paused\n"
    assert shell("resume", number)[1] == f"job {number}: queued\n"
    code, out, _ = shell("ls", "--tag", "cli")
    assert code == 0 and "gemm_8x8x8" in out and "queued" in out
    assert [each["id"] for each in json.loads(shell("ls", "--tag", "cli", "--json")[1])] == [
        job["id"]
    ]
    assert shell("cancel", number)[0] == 0
    code, out, _ = shell("watch", number)
    assert code == 1 and f"job {number} cancelled" in out
    done = api_rows.finished(served.db, served.blobs)
    code, out, _ = shell("get", str(done.id), "--out", str(tmp_path))
    assert code == 0 and pathlib.Path(out.strip()).read_bytes() == api_rows.CONTENT
    assert "job.zip" in shell("get", str(done.id), "--list")[1]
    assert shell("watch", str(done.id))[0] == 0


def test_watching_shows_what_happens(served: Served, shell: Shell) -> None:
    claim = api_rows.running(served.db, n_trials=1)

    def tune() -> None:
        time.sleep(0.5)
        service_fakes.add(served.db, claim.fence, service_fakes.new_trial(30, 2.0))
        service_fakes.write(served.db, leases.succeed, claim.fence, "trials")

    thread = threading.Thread(target=tune)
    thread.start()
    code, out, err = shell("watch", str(claim.job.id))
    thread.join()
    assert code == 0 and "best 2.00 us" in out and "500.00x of unscheduled" in out
    assert "task 0: 2.00 us in trial 2" in err and "succeeded (trials)" in err


def test_errors_are_one_line(
    served: Served, shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    code, out, err = shell("watch", "99999")
    assert (code, out) == (1, "") and err == "felix: error: there is no job 99999 (HTTP 404)\n"
    code, _, err = shell("cancel", "99998", "99999")
    assert code == 1 and err.count("\n") == 1
    monkeypatch.delenv("FELIX_API_KEY")
    code, _, err = shell("ls")
    assert code == 1 and "FELIX_API_KEY" in err
    file = tmp_path / "key"
    file.write_text("felix_00_wrong\n")
    code, _, err = shell("ls", "--key-file", str(file))
    assert code == 1 and "HTTP 401" in err and "wrong" not in err


def test_keys_are_made_by_command(
    served: Served, felix: client.Client, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_client = felix.create_key("ci", ["read"], max_trials=3)
    assert by_client.text not in repr(by_client) and by_client.key.scopes == ["read"]
    code, out, _ = shell("keys", "create", "bot", "--scope", "read", "--json")
    made = json.loads(out)
    assert code == 0 and made["key"].startswith("felix_")
    assert "bot" in shell("keys", "ls")[1]
    assert shell("keys", "revoke", str(made["id"]))[0] == 0
    kinds = ("--device-kind", "h200", "--device-kind", "znver4")
    assert shell("keys", "create", "box", "--scope", "worker", *kinds)[0] == 0
    assert "worker for h200 znver4" in shell("keys", "ls")[1]
    code, _, said = shell("keys", "create", "box", *kinds)
    assert code == 1 and "add it (--scope worker)" in said
    monkeypatch.setenv("FELIX_DATA_DIR", str(served.settings.data_dir))
    code, out, _ = shell("keys", "create", "root", "--scope", "admin", "--local")
    assert code == 0
    monkeypatch.setenv("FELIX_API_KEY", out.strip())
    assert shell("keys", "ls")[0] == 0
    assert shell("keys", "create", "--local")[0] == 1
    code, _, said = shell("keys", "create", "box", "--scope", "worker", "--local")
    assert code == 1 and "--device-kind h200" in said


def test_the_local_key_goes_to_the_local_service_only(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "admin-key").write_text("felix_00_local\n")
    monkeypatch.delenv("FELIX_API_KEY")
    monkeypatch.setenv("FELIX_DATA_DIR", str(tmp_path))
    code, _, err = shell("ls")  # FELIX_URL names another port
    assert code == 1 and "an API key is needed" in err
