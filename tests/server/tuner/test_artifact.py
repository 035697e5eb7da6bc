"""The artifact of a job of several tasks: one zip, each task's artifact in it, one `run.py`."""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import sys
import zipfile

import pytest

import felix
from felix.tuning import options
from server.database import database
from server.tuner import engine
from server.tuner.artifacts import job_artifact
from tests.support import service_fakes

TARGET = "llvm -num-cores 1"


@pytest.fixture(scope="module")
def network() -> felix.NetworkResult:
    """Two tiny tasks, tuned for real."""
    tasks = [
        felix.workloads.gemm(16, 16, 16, target=TARGET),
        felix.workloads.elementwise((64,), ops=("relu",), target=TARGET),
    ]
    return felix.tune(tasks, trials=4, options=options.TuneOptions(round_size=2))


@pytest.fixture
def home(
    network: felix.NetworkResult, db: database.Database, tmp_path: pathlib.Path
) -> pathlib.Path:
    """The unpacked artifact."""
    job = service_fakes.create(db, n_tasks=2, name="two tasks")
    made = job_artifact.write(network, job, tmp_path / "artifact.zip", lambda step: None)
    assert [code.task for code in made] == [0, 1]
    assert all("T.prim_func" in code.schedule and "define" in code.source for code in made)
    assert all(".text" in code.assembly for code in made)
    with zipfile.ZipFile(tmp_path / "artifact.zip") as archive:
        assert not archive.testzip()
        archive.extractall(tmp_path)
    return tmp_path / f"felix-job-{job.id}"


def test_the_artifact_of_several_tasks(home: pathlib.Path, network: felix.NetworkResult) -> None:
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
    command = [sys.executable, str(home / "run.py"), "--json", "--repeats", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["tasks"]) == 2 and report["failed"] == 0
    (home / manifest["tasks"][0]["folder"] / "oracle.py").write_text("broken")
    assert subprocess.run(command, capture_output=True).returncode == 1


def test_the_code_of_a_gpu_s_task_is_cuda_and_ptx(tmp_path: pathlib.Path) -> None:
    (tmp_path / "source").mkdir()
    for name, text in (
        ("schedule.py", "main"),
        ("source/kernel.cu", "cu"),
        ("source/kernel.ptx", "ptx"),
        ("source/host.ll", "ll"),
    ):
        (tmp_path / name).write_text(text)
    code = job_artifact._code(1, tmp_path)
    assert (code.task, code.schedule, code.source, code.assembly) == (1, "main", "cu", "ptx")
    (tmp_path / "source" / "kernel.ptx").unlink()
    assert job_artifact._code(1, tmp_path).assembly == ""


def test_the_code_of_a_generated_kernel_has_no_schedule(tmp_path: pathlib.Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "kernel.cu").write_text("a kernel")
    (tmp_path / "source" / "kernel.ptx").write_text("its PTX")
    assert job_artifact._code(3, tmp_path) == engine.Code(
        task=3, schedule="", source="a kernel", assembly="its PTX"
    )
