"""The real engine end to end: `felix tuner` killed with SIGKILL, another one goes on."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import zipfile

import psutil
import pytest

from server import settings, states
from server.database import database, schema
from server.parsing import parser
from server.store import artifacts, blobs, events, jobs, progress, trials

TUNER = [sys.executable, "-m", "felix", "tuner", "--jobs", "1"]


def submit(db: database.Database, n_trials: int) -> int:
    parsed = parser.Parser().parse(
        parser.Workload(kind="operator", name="gemm", params={"m": 32, "n": 32, "k": 32}), "llvm"
    )
    new = jobs.NewJob(
        name="a tiny gemm",
        kind="operator",
        op="gemm",
        workload={},
        target="llvm",
        target_key=parsed.target_key,
        tasks=parsed.tasks,
        trials=n_trials,
        seconds=None,
        options={"round_size": 4},
        strategy="gradient",
    )
    with db.write() as tx:
        return jobs.create(tx, new).job.id


def wait_for_trials(db: database.Database, job_id: int, n: int) -> None:
    deadline_s = time.monotonic() + 400
    while time.monotonic() < deadline_s:
        with db.read() as tx:
            if jobs.get(tx, job_id).n_trials >= n:
                return
        time.sleep(0.05)
    pytest.fail(f"{n} trials took more than 400 s")


def is_confined(pid: int) -> bool:
    """Whether a process is under a filter and has no privileges, and gets none; so if it ended."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    fields = dict(line.split(":\t") for line in lines if ":\t" in line)
    return (fields["Seccomp"], fields["NoNewPrivs"], int(fields["CapEff"], 16)) == ("2", "1", 0)


@pytest.mark.timeout(900)
def test_a_killed_tuner_is_followed_by_another(tmp_path: pathlib.Path) -> None:
    environment = os.environ | {"FELIX_DATA_DIR": str(tmp_path), "FELIX_LEASE_S": "5"}
    db = database.Database(settings.Settings(data_dir=tmp_path).database)
    schema.upgrade(db)
    job_id = submit(db, 14)
    first = subprocess.Popen(TUNER, env=environment)
    wait_for_trials(db, job_id, 6)
    helpers = psutil.Process(first.pid).children(recursive=True)
    confined = [is_confined(helper.pid) for helper in helpers]
    assert confined.count(False) == 1 and len(confined) > 4  # all but what forks engines
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with db.read() as tx:
        before = [trials.get(tx, job_id, number + 1) for number in range(6)]
        assert jobs.get(tx, job_id).state is states.State.RUNNING
        saved = progress.checkpoint(tx, job_id)
    assert saved is not None and 0 < saved.n_records <= 14
    subprocess.run(TUNER, env=environment, check=True, timeout=400)
    with db.read() as tx:
        job = jobs.get(tx, job_id)
        rows = list(trials.stream(tx, job_id))
        log = events.after(tx, job_id)
        (stored,) = artifacts.of_job(tx, job_id)
        rounds = progress.rounds(tx, job_id)
        schedule, source = jobs.code(tx, job_id, 0)
        (task,) = jobs.tasks(tx, job_id)
        assembly = jobs.assembly(tx, job_id, 0)
    assert (job.state, job.n_trials) == (states.State.SUCCEEDED, 14)
    assert [vars(row) | {"final_us": None, "final_error": None} for row in rows[:6]] == [
        vars(row) for row in before
    ]
    assert helpers and not any(helper.is_running() for helper in helpers)
    assert [row.number for row in rows] == list(range(1, 15))
    assert len({row.schedule_hash for row in rows}) == 14
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
    for row in rows:  # every decision of a trial has a name
        labels = task.decisions[str(row.sketch_index)]
        assert sum(n for _, n in labels) == len(row.decisions)
    assert job.unscheduled_us is not None and job.best_us is not None
    check_artifact(tmp_path, stored.sha256, job.best_us)


def check_artifact(folder: pathlib.Path, sha256: str, best_us: float) -> None:
    """The artifact runs where Felix is not needed, and says what the job says."""
    store = blobs.open_store(str(folder / "blobs"))
    path = folder / "stored.zip"
    path.write_bytes(b"".join(store.read(sha256)))
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        archive.extractall(folder / "artifact")
    (home,) = (folder / "artifact").iterdir()
    expected = {
        "manifest.json",
        "run.py",
        "kernel.so",
        "schedule.py",
        "source/kernel.ll",
        "database/database_tuning_record.json",
        "database/database_workload.json",
        "convergence.svg",
        "records.jsonl",
    }
    assert {f"{home.name}/{name}" for name in expected} <= set(names)
    manifest = json.loads((home / "manifest.json").read_text())
    assert manifest["job"]["name"] == "a tiny gemm"
    assert manifest["best"]["latency_us"] == best_us
    assert "felix_" not in json.dumps(manifest["job"])
    done = subprocess.run(
        [sys.executable, str(home / "run.py"), "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["latency_us"] > 0
