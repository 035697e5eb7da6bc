"""The real engine end to end: `felix tuner` killed, and artifacts and networks that run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import felix
from felix.network import deadline as deadlines
from felix.tuning import options
from server import settings, states
from server.database import database, schema
from server.parsing import parser
from server.store import (
    artifacts,
    blobs,
    events,
    jobs,
    networks,
    progress,
    reuse,
    rows,
    trials,
    tuners,
)
from server.tuner import artifacts as tuner_artifacts
from server.tuner import budget as budgets
from tests.support import run_py, service_fakes, tuning_fakes
from tests.support.waiting import until

pytest.importorskip("onnx")

from tests.support.hostile import onnx_models


@dataclasses.dataclass(frozen=True)
class Place:
    """A service's folder, for tuners that are processes."""

    folder: pathlib.Path
    db: database.Database
    store: blobs.BlobStore

    def tuner(self, n_jobs: int) -> subprocess.Popen[bytes]:
        """A tuner that ends after so many jobs."""
        variables = {"FELIX_DATA_DIR": str(self.folder), "FELIX_LEASE_S": "5"}
        command = [sys.executable, "-m", "felix", "tuner", "--jobs", str(n_jobs)]
        return subprocess.Popen(command, env=os.environ | variables)

    def job(self, job_id: int) -> rows.Job:
        """A job as it is now."""
        return service_fakes.get(self.db, job_id)

    def unpacked(self, sha256: str) -> pathlib.Path:
        """The folder of an artifact."""
        to = self.folder / f"unpacked-{sha256[:8]}"
        to.mkdir()
        path = to / "artifact.zip"
        path.write_bytes(b"".join(self.store.read(sha256)))
        with zipfile.ZipFile(path) as archive:
            archive.extractall(to)
        (home,) = (each for each in to.iterdir() if each.is_dir())
        return home


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[Place]:
    db = database.Database(settings.Settings(data_dir=tmp_path).database)
    schema.upgrade(db)
    yield Place(tmp_path, db, blobs.open_store(str(tmp_path / "blobs")))
    db.close()


def new_job(given: parser.Workload, **changes: Any) -> tuple[parser.Parsed, jobs.NewJob]:
    """What a submission makes of a workload."""
    parsed = parser.Parser().parse(given, "llvm")
    fields: dict[str, Any] = {
        "name": "a tiny gemm",
        "kind": given.kind,
        "op": given.name,
        "workload": {},
        "target": "llvm",
        "target_key": parsed.target_key,
        "tasks": parsed.tasks,
        "trials": 14,
        "seconds": None,
        "options": {"round_size": 4},
        "strategy": "gradient",
    }
    return parsed, jobs.NewJob(**(fields | changes))


def submit_network(place: Place, number: float, pytorch: bool = False) -> int:
    """Queue a network job, as a submission does."""
    content = onnx_models.products("wwv", {"w": (32, 32), "v": (32, 16)}, number=number)
    shapes = {"x": [8, 32]}
    workload = parser.Workload(kind="onnx", name="net.onnx", content=content, shapes=shapes)
    stored = service_fakes.put(place.store, content)
    about = {"sha256": stored.sha256, "shapes": shapes, "pytorch": pytorch}
    parsed, new = new_job(workload, name="net", workload=about, trials=8)
    file = service_fakes.artifact(stored, "input-net.onnx", "input")
    with place.db.write() as tx:
        job_id = jobs.create(tx, new).job.id
        artifacts.attach(tx, job_id, file)
        networks.create(tx, job_id, "net", parsed.groups)
        request = reuse.Request(
            job_id=job_id,
            new=new,
            versions=parsed.versions,
            device_keys=tuners.alive_keys(tx, 1e6),
            project="default",
            store=place.store,
        )
        reuse.apply(tx, request)
    return job_id


def network_of(place: Place, job_id: int) -> networks.Network:
    with place.db.read() as tx:
        network = networks.of_job(tx, job_id, jobs.tasks(tx, job_id))
    assert network is not None
    return network


def files_of(place: Place, job_id: int) -> dict[str, rows.Artifact]:
    """The artifacts of a job by kind."""
    return {file.kind: file for file in service_fakes.read(place.db, artifacts.of_job, job_id)}


def is_confined(pid: int) -> bool:
    """Whether a process is under a filter and has no privileges, and gets none; so if it ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    fields = dict(line.split(":\t") for line in lines if ":\t" in line)
    return (fields["Seccomp"], fields["NoNewPrivs"], int(fields["CapEff"], 16)) == ("2", "1", 0)


@pytest.mark.slow("waits until the lease of a killed tuner ends")
@pytest.mark.timeout(900)
def test_a_killed_tuner_is_followed_by_another(place: Place) -> None:
    """It ends the job of the killed one, and then a network's."""
    gemm = parser.Workload(kind="operator", name="gemm", params={"m": 32, "n": 32, "k": 32})
    job_id = service_fakes.write(place.db, jobs.create, new_job(gemm)[1]).job.id
    network_id = submit_network(place, 0.03)
    before = network_of(place, network_id)
    assert [(group.calls, group.task) for group in before.groups] == [(2, 0), (1, 1)]
    assert before.latency_us is None and before.call_us is None
    first = place.tuner(2)
    until(lambda: place.job(job_id).n_trials >= 6)
    helpers = psutil.Process(first.pid).children(recursive=True)
    confined = [is_confined(helper.pid) for helper in helpers]
    # all but what forks engines, and what forks programs for the tests
    assert confined.count(False) == 2 and len(confined) > 4
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with place.db.read() as tx:
        before_kill = [trials.get(tx, job_id, number + 1) for number in range(6)]
        assert jobs.get(tx, job_id).state is states.State.RUNNING
        saved = progress.checkpoint(tx, job_id)
    assert saved is not None and 0 < saved.n_records <= 14
    assert place.tuner(2).wait(600) == 0
    assert helpers and not any(helper.is_running() for helper in helpers)
    check_job(place, job_id, before_kill)
    check_artifact(place, job_id)
    check_network(place, network_id)
    check_answers(place, network_id)


def check_job(place: Place, job_id: int, before: list[rows.Trial]) -> None:
    """Nothing is lost or there twice, and the run went on."""
    with place.db.read() as tx:
        job, stored = jobs.get(tx, job_id), service_fakes.trials_of(tx, job_id)
        log, rounds = events.after(tx, job_id), progress.rounds(tx, job_id)
        schedule, source, assembly = jobs.code(tx, job_id, 0)
        (task,) = jobs.tasks(tx, job_id)
    assert (job.state, job.n_trials) == (states.State.SUCCEEDED, 14)
    assert [vars(row) | {"final_us": None, "final_error": None} for row in stored[:6]] == [
        vars(row) for row in before
    ]
    assert [row.number for row in stored] == list(range(1, 15))
    assert len({row.schedule_hash for row in stored}) == 14
    assert [event.seq for event in log] == list(range(1, job.last_seq + 1))
    assert any(event.payload.get("error") == "lease_expired" for event in log)
    started = [event.payload for event in log if event.type == "started"]
    assert started[0]["resumed_trials"] == 0 and started[1]["resumed_trials"] >= 6
    steps = next(each.steps for each in rounds if each.steps)  # the first round warms up
    assert steps[-1]["step"] > steps[0]["step"] == 0
    assert steps[-1]["temperature"] < steps[0]["temperature"]
    assert schedule and "T.prim_func" in schedule and source and "define" in source
    assert assembly and ".text" in assembly
    assert task.decisions is not None
    for row in stored:  # every decision of a trial has a name
        labels = task.decisions[str(row.sketch_index)]
        assert sum(n for _, n in labels) == len(row.decisions)
    assert job.unscheduled_us is not None and job.best_us is not None


def check_artifact(place: Place, job_id: int) -> None:
    """It runs where Felix is not needed, and says what the job says."""
    home = place.unpacked(files_of(place, job_id)["bundle"].sha256)
    expected = """run.py kernel.so schedule.py source/kernel.ll convergence.svg records.jsonl
        database/database_tuning_record.json database/database_workload.json""".split()
    assert all((home / name).is_file() for name in expected)
    manifest = json.loads((home / "manifest.json").read_text())
    assert manifest["job"]["name"] == "a tiny gemm"
    assert manifest["best"]["latency_us"] == place.job(job_id).best_us
    assert "felix_" not in json.dumps(manifest["job"])
    assert run(home)["latency_us"] > 0


def check_network(place: Place, job_id: int) -> None:
    (built,) = service_fakes.read(place.db, events.after, job_id, kinds=[events.Type.NETWORK])
    job, network = place.job(job_id), network_of(place, job_id)
    assert job.state is states.State.SUCCEEDED
    assert network.failure is None, network.failure
    assert network.call_us is not None and network.call_us == built.payload["call_us"] > 0
    assert network.max_error is not None and network.max_error <= 1e-3
    assert network.latency_us == pytest.approx(job.best_us, rel=0.05)  # within a tie
    assert [(each.calls, each.task) for each in network.groups] == [(2, 0), (1, 1)]
    assert all(each.ships and each.reason and each.tvm_us for each in network.groups)
    run_network(place, job_id)


def check_answers(place: Place, job_id: int) -> None:
    """What others that submit the network get."""
    same = submit_network(place, 0.03)  # the same file: both artifacts at once
    answered = place.job(same)
    assert (answered.state, answered.reused_from) == (states.State.SUCCEEDED, job_id)
    assert files_of(place, same)["network"].name == f"felix-job-{same}-network.zip"
    assert network_of(place, same) == network_of(place, job_id)
    # with PyTorch's operators, or other parameters: the same programs, but another network
    for other in (submit_network(place, 0.03, pytorch=True), submit_network(place, 0.04)):
        assert network_of(place, other).call_us is None
        assert place.job(other).state is states.State.QUEUED


@pytest.mark.slow("another tuner's process, and another network that is built and timed")
@pytest.mark.timeout(900)
def test_a_network_is_compared_with_pytorch(place: Place) -> None:
    job_id = submit_network(place, 0.03, pytorch=True)
    assert place.tuner(1).wait(600) == 0
    assert place.job(job_id).state is states.State.SUCCEEDED
    network = network_of(place, job_id)
    assert network.has_pytorch and all(each.pytorch_us for each in network.groups)
    assert all(each.latency_us <= 1.05 * each.pytorch_us for each in network.groups)
    run_network(place, job_id)


def run_network(place: Place, job_id: int) -> None:
    """The artifact runs without Felix, and its manifest names the job."""
    home = place.unpacked(files_of(place, job_id)["network"].sha256)
    manifest = json.loads((home / "manifest.json").read_text())
    assert manifest["network"] == "net" and manifest["job"]["name"] == "net"
    assert manifest["report"]["timing"]["network_us"] == network_of(place, job_id).call_us
    assert run(home, "--repeats", "3")["latency_us"] > 0


def run(folder: pathlib.Path, *options: str) -> dict[str, Any]:
    """What the `run.py` of an artifact prints; it has to succeed."""
    done = run_py.run(folder, "--json", *options)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.slow("tunes several tasks")
def test_the_artifact_of_several_tasks(db: database.Database, tmp_path: pathlib.Path) -> None:
    """One zip, each task's artifact in it, one `run.py`."""
    target = "llvm -num-cores 1"
    tasks = [
        felix.workloads.gemm(16, 16, 16, target=target),
        felix.workloads.elementwise((64,), ops=("relu",), target=target),
    ]
    chosen = options.TuneOptions(round_size=2, pool=lambda task: tuning_fakes.Pool())
    network = felix.tune(tasks, trials=4, options=chosen)
    job = service_fakes.create(db, n_tasks=2, name="two tasks")
    claimed = service_fakes.claim_next(db)
    whole = budgets.Budget(deadline=deadlines.NEVER, kind="llvm", n_tasks=2)
    made = tuner_artifacts.write(network, claimed, tmp_path / "artifact.zip", whole)
    assert [code.task for code in made] == [0, 1]
    assert all("T.prim_func" in code.schedule and "define" in code.source for code in made)
    assert all(".text" in code.assembly for code in made)
    with zipfile.ZipFile(tmp_path / "artifact.zip") as archive:
        assert not archive.testzip()
        archive.extractall(tmp_path)
    home = tmp_path / f"felix-job-{job.id}"
    manifest = json.loads((home / "manifest.json").read_text())
    assert manifest["job"]["name"] == "two tasks"
    assert manifest["job"]["latency_us"] == network.latency_us
    for task, result in zip(manifest["tasks"], network.results, strict=True):
        assert task["latency_us"] == result.best.latency_us
        inner = json.loads((home / task["folder"] / "manifest.json").read_text())
        assert inner["task"]["key"] == result.task.key
    files = {
        path.relative_to(home).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in home.rglob("*")
        if path.is_file() and path != home / "manifest.json"
    }
    assert manifest["files"] == files and "convergence.svg" in files
    report = run(home, "--repeats", "3")
    assert len(report["tasks"]) == 2 and report["failed"] == 0
    (home / manifest["tasks"][0]["folder"] / "oracle.py").write_text("broken")
    assert run_py.run(home, "--json", "--repeats", "3").returncode == 1


def test_the_code_of_a_gpu_s_task_is_cuda_and_ptx(tmp_path: pathlib.Path) -> None:
    (tmp_path / "source").mkdir()
    for name, text in (
        ("schedule.py", "main"),
        ("source/kernel.cu", "cu"),
        ("source/kernel.ptx", "ptx"),
        ("source/host.ll", "ll"),
    ):
        (tmp_path / name).write_text(text)
    code = tuner_artifacts._code(1, tmp_path)
    assert (code.task, code.schedule, code.source, code.assembly) == (1, "main", "cu", "ptx")
    (tmp_path / "schedule.py").unlink()  # a generated kernel has none
    (tmp_path / "source" / "kernel.ptx").unlink()
    assert tuner_artifacts._code(3, tmp_path) == artifacts.Code(
        task=3, schedule="", source="cu", assembly=""
    )
