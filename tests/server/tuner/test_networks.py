"""Networks of jobs: built by the engine when tuning has ended, and what a failure costs."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import pytest

from felix import errors as engine_errors
from server import settings, states
from server.database import database, schema
from server.parsing import parser
from server.store import artifacts, blobs, events, jobs, networks, reuse, tuners
from server.tuner import tuner
from tests.support import run_py, service_fakes

onnx = pytest.importorskip("onnx")

TUNER = [sys.executable, "-m", "felix", "tuner", "--jobs", "1"]
FAST = settings.Settings(lease_s=20.0, beat_s=0.02, poll_s=0.02, reap_s=0.05, max_attempts=3)


def model(weight: float) -> bytes:
    """x -> relu(relu(x W) W) V."""
    make = onnx.helper
    tensors = [
        make.make_tensor(name, onnx.TensorProto.FLOAT, shape, [weight] * (shape[0] * shape[1]))
        for name, shape in (("w", (32, 32)), ("v", (32, 16)))
    ]
    nodes = [
        make.make_node("MatMul", ["x", "w"], ["a"]),
        make.make_node("Relu", ["a"], ["b"]),
        make.make_node("MatMul", ["b", "w"], ["c"]),
        make.make_node("Relu", ["c"], ["d"]),
        make.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    value = make.make_tensor_value_info
    graph = make.make_graph(
        nodes,
        "net",
        [value("x", onnx.TensorProto.FLOAT, ["n", 32])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 16])],
        tensors,
    )
    made = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)])
    content: bytes = made.SerializeToString()
    return content


def submit(
    db: database.Database,
    store: blobs.BlobStore,
    content: bytes,
    folder: Any,
    pytorch: bool = False,
) -> int:
    """Queue a network job, as a submission does."""
    shapes = {"x": [8, 32]}
    workload = parser.Workload(kind="onnx", name="net.onnx", content=content, shapes=shapes)
    parsed = parser.Parser().parse(workload, "llvm")
    path = pathlib.Path(folder, "net.onnx")
    path.write_bytes(content)
    stored = store.put(path)
    new = jobs.NewJob(
        name="net",
        kind="onnx",
        op="net.onnx",
        workload={"sha256": stored.sha256, "shapes": shapes, "pytorch": pytorch},
        target="llvm",
        target_key=parsed.target_key,
        tasks=parsed.tasks,
        trials=8,
        seconds=None,
        strategy="gradient",
        options={"round_size": 4},
    )
    file = artifacts.NewArtifact(
        name="input-net.onnx",
        kind="input",
        media_type="application/octet-stream",
        sha256=stored.sha256,
        size_bytes=stored.size_bytes,
    )
    with db.write() as tx:
        job_id = jobs.create(tx, new).job.id
        artifacts.attach(tx, job_id, file)
        networks.create(tx, job_id, networks.New(name="net", groups=parsed.groups))
        alive = tuners.alive_keys(tx, 1e6)
        request = reuse.Request(
            job_id=job_id,
            new=new,
            versions=parsed.versions,
            device_keys=alive,
            project="default",
            store=store,
        )
        reuse.apply(tx, request)
    return job_id


def network_of(db: database.Database, job_id: int) -> networks.Network:
    with db.read() as tx:
        network = networks.of_job(tx, job_id, jobs.tasks(tx, job_id))
    assert network is not None
    return network


@pytest.mark.timeout(900)
def test_a_network_job_ends_with_a_network_that_runs(tmp_path: pathlib.Path) -> None:
    environment = os.environ | {"FELIX_DATA_DIR": str(tmp_path)}
    db = database.Database(settings.Settings(data_dir=tmp_path).database)
    schema.upgrade(db)
    store = blobs.open_store(str(tmp_path / "blobs"))
    job_id = submit(db, store, model(0.03), tmp_path)
    before = network_of(db, job_id)
    assert [(group.calls, group.task) for group in before.groups] == [(2, 0), (1, 1)]
    assert before.latency_us is None and before.call_us is None
    subprocess.run(TUNER, env=environment, check=True, timeout=600)
    with db.read() as tx:
        job = jobs.get(tx, job_id)
        (built,) = events.after(tx, job_id, kinds=[events.Type.NETWORK])
        files = {file.kind: file for file in artifacts.of_job(tx, job_id)}
    assert job.state is states.State.SUCCEEDED
    network = network_of(db, job_id)
    assert network.failure is None, network.failure
    assert network.call_us is not None and network.call_us == built.payload["call_us"] > 0
    assert network.max_error is not None and network.max_error <= 1e-3
    assert network.latency_us == pytest.approx(job.best_us, rel=0.05)  # within a tie
    assert [(each.calls, each.task) for each in network.groups] == [(2, 0), (1, 1)]
    assert all(each.ships and each.reason and each.tvm_us for each in network.groups)
    run_network(store, files["network"].sha256, tmp_path / "first", network.call_us)
    # the same file: both artifacts at once
    again = submit(db, store, model(0.03), tmp_path)
    with db.read() as tx:
        answered = jobs.get(tx, again)
        copies = {file.kind: file.name for file in artifacts.of_job(tx, again)}
    assert (answered.state, answered.reused_from) == (states.State.SUCCEEDED, job_id)
    assert copies["network"] == f"felix-job-{again}-network.zip"
    assert network_of(db, again) == network
    # with PyTorch's operators: the same programs, but another network
    compared = submit(db, store, model(0.03), tmp_path, pytorch=True)
    assert network_of(db, compared).call_us is None
    subprocess.run(TUNER, env=environment, check=True, timeout=600)
    with db.read() as tx:
        assert jobs.get(tx, compared).state is states.State.SUCCEEDED
        (file,) = (each for each in artifacts.of_job(tx, compared) if each.kind == "network")
    network = network_of(db, compared)
    assert network.has_pytorch and all(each.pytorch_us for each in network.groups)
    assert all(each.latency_us <= 1.05 * each.pytorch_us for each in network.groups)
    assert network.call_us is not None
    run_network(store, file.sha256, tmp_path / "compared", network.call_us)
    # other parameters: the same programs, but another network
    other = submit(db, store, model(0.04), tmp_path)
    with db.read() as tx:
        assert jobs.get(tx, other).state is states.State.QUEUED


def run_network(store: blobs.BlobStore, sha256: str, folder: pathlib.Path, call_us: float) -> None:
    """The artifact runs without Felix, and its manifest names the job."""
    folder.mkdir()
    path = folder / "network.zip"
    path.write_bytes(b"".join(store.read(sha256)))
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    (home,) = (each for each in folder.iterdir() if each.is_dir())
    manifest = json.loads((home / "manifest.json").read_text())
    assert manifest["network"] == "net" and manifest["job"]["name"] == "net"
    assert manifest["report"]["timing"]["network_us"] == call_us
    command = run_py.command(home / "run.py", "--json", "--repeats", "3")
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["latency_us"] > 0


def create(db: database.Database) -> int:
    job = service_fakes.create(db, kind="onnx", trials=4)
    with db.write() as tx:
        networks.create(tx, job.id, service_fakes.network())
    return job.id


@pytest.mark.parametrize(
    "error", [None, engine_errors.TuningError("output 0 differs"), ValueError("a\ndefect")]
)
def test_a_failed_network_costs_its_artifact_only(
    db: database.Database, tmp_path: pathlib.Path, error: Exception | None
) -> None:
    engine = service_fakes.Engine(network_error=error)
    working = tuner.Tuner(db, blobs.LocalStore(tmp_path), engine, FAST, "test tuner")
    job_id = create(db)
    assert working.work_once()
    working.close()
    after = service_fakes.get(db, job_id)
    assert (after.state, after.error, after.n_trials) == (states.State.SUCCEEDED, None, 4)
    with db.read() as tx:
        kinds = [file.kind for file in artifacts.of_job(tx, job_id)]
        (event,) = events.after(tx, job_id, kinds=[events.Type.NETWORK])
    network = network_of(db, job_id)
    if error is None:
        assert kinds == ["network", "bundle"] and (network.call_us, network.failure) == (
            31.0,
            None,
        )
        assert network.latency_us == 20.0 and network.groups[1].untuned == "it sorts"
        assert event.payload == {"call_us": 31.0, "max_error": 1e-6, "failure": None}
        return
    failure = " ".join(str(error).split())
    assert kinds == ["bundle"] and network.call_us is None and network.failure == failure
    assert event.payload == {"failure": failure}
    assert network.groups[0].felix_us == after.best_us  # as it was measured


def test_a_job_without_a_network_builds_none(
    db: database.Database, tmp_path: pathlib.Path
) -> None:
    working = tuner.Tuner(db, blobs.LocalStore(tmp_path), service_fakes.Engine(), FAST, "tuner")
    job = service_fakes.create(db, trials=2)
    assert working.work_once()
    working.close()
    with db.read() as tx:
        assert [file.kind for file in artifacts.of_job(tx, job.id)] == ["bundle"]


@pytest.mark.parametrize(
    "group",
    [
        {"name": "a\x00", "calls": 1},
        {"name": "a", "calls": -1},
        {"name": "a" * 501, "calls": 1},
        {"name": "a", "calls": 1, "felix_us": float("nan")},
        {"name": "a", "calls": 1, "ships": "x"},
    ],
)
def test_what_an_engine_says_of_a_network_is_checked(group: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        networks.checked({"call_us": 1.0, "max_error": 0.0, "groups": [group]})
