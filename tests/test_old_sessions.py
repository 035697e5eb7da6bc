"""Sessions and networks of before searches were asked for candidates still work.

Commit 7f85313a wrote the files (`tests/data/README.md`): a killed session of a GPU with templates,
a network's artifact and known results, a service's database with a paused job of a network.
"""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import felix
from felix import workloads
from felix.cli import main
from felix.database import records
from felix.runner import protocol
from felix.search import gradient
from felix.templates.generated import GeneratedProgram
from server import app, commands, settings, states
from server.parsing import parser
from tests.support import networks, run_py, stored_service, tuning_fakes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the HTTP library that the client prefers
    from fastapi import testclient

#: Trials of the GPU's session, of which its checkpoint knows the first 20.
N_RECORDS = 26
#: Trials of the paused job.
N_PAUSED = 16
TEMPLATE = "gemm-wgmma"


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    """The unpacked files."""
    return stored_service.unpack("gpu_session_network_service", tmp_path)


def latency_of(program: Any) -> float | protocol.ErrorClass:
    """10 to 100 us by a hash of the program's text, as the stored session was measured."""
    text = program.to_json() if isinstance(program, GeneratedProgram) else program.script()
    digest = hashlib.sha256(text.encode()).digest()
    if digest[0] < 32:
        return protocol.ErrorClass.WRONG_RESULT
    return 10.0 * 10.0 ** (int.from_bytes(digest[1:5], "big") / 2**32)


def test_a_session_of_a_gpu_with_templates_is_resumed(old: pathlib.Path) -> None:
    out = old / "gpu_session"
    before = records.read(out / "tuning" / "records.jsonl")
    assert len(before) == N_RECORDS and {record.sketch_index for record in before} > {1, 6}
    submitted: list[str] = []

    def measure(program: object) -> float | protocol.ErrorClass:
        submitted.append(type(program).__name__)
        return latency_of(program)

    sizes = gradient.GradientOptions(
        n_samples=32,
        n_template_samples=64,
        n_before=1,
        n_polish=1,
        n_warm_polish=2,
        n_structures=1,
        n_seeds=2,
    )
    options = tuning_fakes.small(tuning_fakes.Pool(measure), search=sizes)
    task = workloads.gemm(256, 256, 512, dtype="float16", target="nvidia/nvidia-h100")
    felix.tune(task, trials=40, seed=3, out=out, resume=True, options=options)
    after = records.read(out / "tuning" / "records.jsonl")
    assert after[:N_RECORDS] == before
    assert len(after) == len({record.key for record in after}) == 40
    assert len(submitted) == 40 - N_RECORDS, "nothing is measured twice"
    assert {record.variant == TEMPLATE for record in after[N_RECORDS:]} == {True, False}
    assert after[N_RECORDS].round > before[-1].round
    assert after[N_RECORDS].elapsed_s >= before[-1].elapsed_s


@pytest.mark.parametrize("kind", ["template", "trace"])
def test_kernels_of_a_gpu_are_built_from_stored_records(
    old: pathlib.Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = old / "gpu_session" / "tuning" / "records.jsonl", old / "built"
    if kind == "trace":
        lines = [line for line in source.read_text().splitlines() if TEMPLATE not in line]
        source.write_text("".join(f"{line}\n" for line in lines))
    code = main.main(["compile", str(source), "--out", str(out)])
    assert code == 0, capsys.readouterr().err
    before = old / "gpu_session" / "compiled" / kind  # what the old code had built
    manifests = [json.loads((each / "manifest.json").read_text()) for each in (out, before)]
    now, then = manifests
    assert set(now) >= set(then) and set(now["files"]) >= set(then["files"])
    for entry in ("task", "target", "best", "tuned", "library", "arguments", "pass_config"):
        assert now.get(entry) == then.get(entry), entry
    text = "plan.json" if kind == "template" else "schedule.py"
    assert (out / text).read_text() == (before / text).read_text()


class Net(nn.Module):
    """Two layers with GELU, an operator that PyTorch runs, and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(nn.functional.gelu(self.up(x)))
        second, _ = torch.kthvalue(y, 2, keepdim=True)
        return torch.softmax(torch.relu(y - second) + x, -1)


def test_a_network_runs_by_itself(old: pathlib.Path) -> None:
    done = run_py.run(old / "network", "--json", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    manifest = json.loads((old / "network" / "manifest.json").read_text())
    assert manifest["pytorch"], "PyTorch runs a part of it"
    assert report["max_error"] <= manifest["tolerance"] and report["latency_us"] > 0


def test_a_network_s_programs_are_built_from_its_session(
    old: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.main(["compile", str(old / "network"), "--out", str(old / "built"), "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    manifest = json.loads((old / "network" / "manifest.json").read_text())
    shipped = {each["name"] for each in manifest["report"]["groups"] if each["ships"] == "felix"}
    assert {each["name"] for each in json.loads(printed.out)} == shipped
    for each in json.loads(printed.out):
        assert (pathlib.Path(each["artifact"]) / "kernel.so").exists()


def test_known_results_of_a_network_are_enough(old: pathlib.Path) -> None:
    pool = networks.Pool()
    fast = felix.optimize(
        Net().eval(),
        torch.randn(16, 32),
        trials=4,
        target=stored_service.TARGET,
        known_results=old / "known-results.sqlite",
        options=networks.tune_options(pool),
    )
    assert pool.n_measured == 0 and fast.report.reason is None
    assert len(fast.report.groups) == 4 and all(each.is_known for each in fast.report.groups)


@pytest.fixture
def service(old: pathlib.Path) -> settings.Settings:
    """Settings of a service on the stored database and blobs, upgraded."""
    return stored_service.upgraded(old / "service")


@pytest.fixture
def client(
    service: settings.Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[testclient.TestClient]:
    """Asks it with a key that may submit."""
    _, key = commands.create_key(service, "today", ["read", "submit"], {})
    monkeypatch.setattr(parser.Parser, "warm", lambda _: None)  # most tests submit nothing
    made = testclient.TestClient(
        app.create_app(service), headers={"Authorization": f"Bearer {key}"}
    )
    with made:
        assert made.post("/dashboard/login", data={"key": key}).status_code == 200
        yield made


def test_networks_of_a_stored_database_are_shown(client: testclient.TestClient) -> None:
    page = client.get("/v1/jobs").json()
    assert {(job["name"], job["state"], job["n_trials"]) for job in page["items"]} == {
        ("finished", "succeeded", 8),
        ("paused", "paused", N_PAUSED),
    }
    finished, paused = (client.get(f"/v1/jobs/{number}").json()["network"] for number in (1, 2))
    assert finished["call_us"] > 0 and [each["ships"] for each in finished["groups"]]
    assert paused["call_us"] is None and len(paused["groups"]) == 3
    assert len(client.get("/v1/jobs/2/network/curve").json()["points"]) > 1
    for number, name in ((1, "finished"), (2, "paused")):
        for tab in ("", "/trials", "/search", "/code", "/log?all=1"):
            shown = client.get(f"/dashboard/jobs/{number}{tab}")
            assert shown.status_code == 200 and name in shown.text
    kinds = set()
    for artifact in client.get("/v1/jobs/1/artifacts").json()["items"]:
        content = client.get(f"/v1/jobs/1/artifacts/{artifact['name']}").content
        assert hashlib.sha256(content).hexdigest() == artifact["sha256"]
        kinds.add(artifact["kind"])
    assert kinds == {"input", "bundle", "network"}


def test_the_same_network_is_answered_from_a_stored_job(client: testclient.TestClient) -> None:
    model = client.get("/v1/jobs/1/artifacts/input-net.onnx").content
    job = {"kind": "onnx", "target": stored_service.TARGET, "trials": 8, "seed": 3}
    made = client.post(
        "/v1/jobs/upload", files={"file": ("net.onnx", model)}, data={"job": json.dumps(job)}
    ).json()
    assert (made["state"], made["reused_from"], made["id"]) == ("succeeded", 1, 3)
    before, after = (
        {each["kind"]: each for each in client.get(f"/v1/jobs/{n}/artifacts").json()["items"]}
        for n in (1, 3)
    )
    assert set(after) == set(before)
    content = client.get(f"/v1/jobs/3/artifacts/{after['network']['name']}").content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("/manifest.json"))
        manifest = json.loads(archive.read(name))
    assert manifest["job"]["id"] == 3 and manifest["felix_network"] == 1


def test_a_paused_job_of_a_network_goes_on(
    service: settings.Settings, client: testclient.TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_trials, pool = N_PAUSED + 8, tuning_fakes.Pool(latency_of)
    ended = stored_service.go_on(service, 2, n_trials, monkeypatch, pool)
    assert (ended.job.state, ended.job.n_trials) == (states.State.SUCCEEDED, n_trials)
    assert len(ended.before) == N_PAUSED
    assert [(each.decisions, each.latency_us) for each in ended.after[:N_PAUSED]] == [
        (each.decisions, each.latency_us) for each in ended.before
    ]
    assert len({each.schedule_hash for each in ended.after}) == n_trials
    (started,) = (each for each in ended.events if each.type == "started")
    assert started.payload["resumed_trials"] == N_PAUSED
    assert not [each for each in ended.events if each.type == "warning"], "of the checkpoint"
    network = client.get("/v1/jobs/2").json()["network"]
    assert network["failure"] is None and network["call_us"] > 0
    assert all(each["ships"] for each in network["groups"])
