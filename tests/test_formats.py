"""What version 0.1.0 wrote still works: an output folder, its session, a service's database."""

from __future__ import annotations

import hashlib
import json
import pathlib
import warnings
from collections.abc import Callable

import pytest

from felix.cli import main
from felix.database import records
from server import app, commands, settings, states
from tests.support import run_py, stored_service

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the HTTP library that the client prefers
    from fastapi import testclient

#: Latency of the best schedule in the folder of the run.
BEST_US = 7.8969999999999985


@pytest.fixture
def stored(tmp_path: pathlib.Path) -> pathlib.Path:
    """The unpacked files of version 0.1.0."""
    return stored_service.unpack("version_0_1_0", tmp_path)


Felix = Callable[..., None]


@pytest.fixture
def felix(capsys: pytest.CaptureFixture[str]) -> Felix:
    """Runs a command that is to succeed and to print JSON."""

    def run(*arguments: str) -> None:
        code, (out, err) = main.main([*arguments, "--json"]), capsys.readouterr()
        assert code == 0, err
        json.loads(out)

    return run


def test_a_session_is_resumed(stored: pathlib.Path, felix: Felix) -> None:
    out = stored / "run"
    before = records.read(out / "tuning" / "records.jsonl")
    felix("tune", "gemm:64,64,64,epilogue=relu", "--target", stored_service.TARGET,
          "--trials", "16", "--round", "4", "--seed", "3", "--compare", "none", "--quiet",
          "--resume", "--out", str(out))  # fmt: skip
    after = records.read(out / "tuning" / "records.jsonl")
    assert after[: len(before)] == before
    measured = [record for record in after if not record.repeat]
    assert len(measured) == 16
    assert len({(r.sketch_index, r.decisions) for r in measured}) == 16, (
        "nothing is measured twice"
    )


def test_the_best_schedule_is_built_from_stored_records(
    stored: pathlib.Path, tmp_path: pathlib.Path, felix: Felix
) -> None:
    out = tmp_path / "built"
    felix("compile", str(stored / "run"), "--out", str(out))
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["best"]["latency_us"] == BEST_US
    old = json.loads((stored / "run" / "manifest.json").read_text())
    assert set(manifest) == set(old) | {"ships", "tuned", "unscheduled_us", "pass_config"}
    assert manifest["ships"] == "tuned" and manifest["tuned"] == manifest["best"]
    assert manifest["task"] == old["task"]
    assert manifest["best"] == old["best"] | {"variant": "stock"}
    assert set(manifest["files"]) == (set(old["files"]) | {"openmp.py", "launch.ll"}) - {
        ".tuning.lock"
    }
    texts = {
        name: [(folder / name).read_text() for folder in (out, stored / "run")]
        for name in ("schedule.py", "workload.json")
    }
    assert texts["workload.json"][0] == texts["workload.json"][1]
    now, before = texts["schedule.py"]
    x = "matmul[v_i0, v_i1]"  # its maximum with 0 keeps NaN now
    kept = f"T.Select(T.float32(0.0) > {x}, T.float32(0.0), {x})"
    assert now == before.replace(f"T.max({x}, T.float32(0.0))", kept)


def test_an_artifact_runs_by_itself(stored: pathlib.Path) -> None:
    done = run_py.run(stored / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["checked_against"]) == {"the unscheduled program", "numpy"}


@pytest.fixture
def service(stored: pathlib.Path) -> settings.Settings:
    """Settings of a service on the stored database, after `felix db upgrade`, and blobs."""
    return stored_service.upgraded(stored / "service")


def test_the_api_shows_a_stored_database(service: settings.Settings) -> None:
    _, key = commands.create_key(service, "reader", ["read"], {})
    headers = {"Authorization": f"Bearer {key}"}
    with testclient.TestClient(app.create_app(service), headers=headers) as client:
        page = client.get("/v1/jobs").json()
        assert {(job["name"], job["state"], job["n_trials"]) for job in page["items"]} == {
            ("finished", "succeeded", 8),
            ("paused", "paused", 8),
        }
        assert client.get("/v1/jobs/1").json()["best_us"] == 7.6365
        assert len(client.get("/v1/jobs/1/trials").json()["items"]) == 8
        (artifact,) = client.get("/v1/jobs/1/artifacts").json()["items"]
        content = client.get(f"/v1/jobs/1/artifacts/{artifact['name']}").content
    assert hashlib.sha256(content).hexdigest() == artifact["sha256"]


@pytest.mark.slow("tunes a job of an old service; that of the newest is tuned above")
def test_a_paused_job_of_a_stored_database_goes_on(
    service: settings.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = stored_service.go_on(service, 2, 12, monkeypatch)
    job, before, after = ended.job, ended.before, ended.after
    assert (job.state, job.n_trials, len(before)) == (states.State.SUCCEEDED, 12, 8)
    assert [(t.decisions, t.latency_us) for t in after[:8]] == [
        (t.decisions, t.latency_us) for t in before
    ]
    assert len({t.schedule_hash for t in after}) == 12
