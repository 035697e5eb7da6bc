"""The compose file's services as processes: each alone, and a deployment with an upgrade."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from felix import client
from server import app, commands, settings
from server.database import database, schema
from server.store import keys
from tests.server.conftest import own_database
from tests.support import deployment as deployments

#: What the two sides of TVM's protocol begin with.
TRACKER_MAGIC = struct.pack("<i", 0x2F271)


@contextlib.contextmanager
def deployed(folder: pathlib.Path) -> Iterator[deployments.Deployment]:
    """A deployment without processes, on a PostgreSQL database without tables."""
    folder.mkdir(exist_ok=True)
    with own_database() as url:
        made = deployments.Deployment(folder, url.replace("+psycopg", ""))
        with contextlib.closing(made):
            yield made


@pytest.fixture
def deployment(tmp_path: pathlib.Path) -> Iterator[deployments.Deployment]:
    """A deployment without processes, whose database nobody asks."""
    made = deployments.Deployment(tmp_path, f"sqlite:///{tmp_path / 'felix.db'}")
    with contextlib.closing(made):
        yield made


def has_gpu() -> bool:
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    return False


def test_the_slim_image_is_imitated_without_what_it_leaves_out(
    deployment: deployments.Deployment,
) -> None:
    for package in deployments.LEFT_OUT:
        statement = [sys.executable, "-c", f"import {package}"]
        done = subprocess.run(statement, env=deployment.environment_of("api"), capture_output=True)
        assert done.returncode == 1 and b"ModuleNotFoundError" in done.stderr


@pytest.mark.slow("starts a Ray cluster of a head, a builder, a runner and a tuner")
def test_a_cluster_with_a_builder_a_gpu_runner_and_a_tuner(tmp_path: pathlib.Path) -> None:
    with deployed(tmp_path) as deployment:
        check_cluster(deployment)


def check_cluster(deployment: deployments.Deployment) -> None:
    deployment.migrate()
    head = deployment.serve("ray-head")
    deployment.until_said(head, "Ray runtime started")
    builder, runner = deployment.serve("builder"), deployment.serve("gpu-runner")
    tuner = deployment.serve("cluster-tuner")
    if has_gpu():
        deployment.until_said(runner, "felix worker: measures on")
    else:  # it refuses by itself, and compose starts it again
        assert runner.wait(deployments.LIMIT_S) == 1
        assert "no CUDA driver here" in deployment.log(runner)
    deployment.until_said(builder, "felix worker: builds programs for")
    deployment.until_said(tuner, "is ready for")
    assert "Ray runtime started" in deployment.log(tuner)


def test_a_cluster_without_a_token_does_not_start(
    deployment: deployments.Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "TOKEN", "")
    monkeypatch.setenv("HOME", str(deployment.folder))  # may have a token
    builder = deployment.serve("builder")
    assert builder.wait(deployments.LIMIT_S) == 1
    assert "with a token only" in deployment.log(builder)


def test_the_tracker_answers_as_one(deployment: deployments.Deployment) -> None:
    tracker = deployment.serve("tracker")

    def answers(_: str) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", deployment.tracker_port), 5.0) as connection,
        ):
            connection.sendall(TRACKER_MAGIC)
            return connection.recv(4) == TRACKER_MAGIC
        return False

    deployment.until(tracker, answers)


def test_the_database_s_check_is_one_that_postgres_answers(tmp_path: pathlib.Path) -> None:
    with deployed(tmp_path) as deployment:
        assert deployment.is_healthy("postgres")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the HTTP library that the client prefers
    from fastapi import testclient

GUIDE = "deployment.md"
#: Of the job during which all is replaced.
N_TRIALS = 40
#: What the next version adds to the schema.
REVISION = '''\
"""A column that the version before does not know."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from migrations.versions import {module}

revision = "9999"
down_revision = {module}.revision
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it."""
    op.add_column("jobs", sa.Column("of_next_version", sa.Text(), nullable=True))
'''


def next_version(folder: pathlib.Path) -> pathlib.Path:
    """The code as a later version, with another number and another schema."""
    root = deployments.ROOT
    for package in ("felix", "costmodel", "server", "migrations"):
        shutil.copytree(root / package, folder / package)
    (folder / "felix" / "version.py").write_text('__version__ = "99.0"\n')
    newest = max(path.stem for path in (root / "migrations" / "versions").glob("r*.py"))
    revision = folder / "migrations" / "versions" / "r9999_next.py"
    revision.write_text(REVISION.format(module=newest))
    return folder


class Watched:
    """Events of a job as a client receives them until its end, and its trials."""

    def __init__(self, service: client.Client, job_id: int) -> None:
        self._service, self._job_id = service, job_id
        self.events: list[client.Event] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        self.events.extend(self._service.events(self._job_id))

    def trials(self) -> list[client.Trial]:
        """Those by now, without the names of their decisions, which may come later."""
        every = self._service.trials(self._job_id)
        return [dataclasses.replace(trial, named_decisions=None) for trial in every]

    def ended(self) -> client.Job:
        """The job, once the client has its last event."""
        self._thread.join(deployments.LIMIT_S)
        assert not self._thread.is_alive()
        return self._service.job(self._job_id)


def test_an_sqlite_file_is_copied_while_it_is_used(tmp_path: pathlib.Path) -> None:
    chosen = settings.Settings(data_dir=tmp_path / "data")
    commands.upgrade(chosen)
    with contextlib.closing(database.Database(chosen.database)) as db, db.write() as tx:
        (chosen.data_dir / "blobs").mkdir()
        made = deployments.Deployment(tmp_path, chosen.database)
        with contextlib.closing(made):
            made.run(deployments.block(GUIDE, "Backup and restore", 2))
        keys.create(tx, keys.NewKey(name="too late"))
    (tmp_path / "restored").mkdir()
    (tmp_path / "backup" / "felix.db").rename(tmp_path / "restored" / "felix.db")
    copy = settings.Settings(data_dir=tmp_path / "restored")
    with contextlib.closing(database.Database(copy.database)) as db:
        schema.check(db)
        with db.read() as tx:
            assert keys.every(tx) == []


@pytest.mark.slow("two versions of four processes each, and a job that is tuned meanwhile")
def test_a_first_job_a_backup_a_rolling_upgrade_and_a_restore(tmp_path: pathlib.Path) -> None:
    with deployed(tmp_path / "first") as first, deployed(tmp_path / "second") as second:
        first.data.mkdir()
        second.data.mkdir()
        first.migrate()
        tuner, api = first.serve("tuner"), first.start_api()
        first.until_said(tuner, "is ready for")
        first.run(deployments.block(GUIDE, "By hand", 2))  # submits, watches, downloads
        (artifact,) = (first.folder / "results").iterdir()
        key = (first.data / "admin-key").read_text().strip()
        with client.Client(f"http://127.0.0.1:{first.port}", key) as service:
            (stored,) = service.artifacts(1)
            assert hashlib.sha256(artifact.read_bytes()).hexdigest() == stored.sha256
            params = {"m": 64, "n": 64, "k": 128}
            job = service.submit("gemm", params, trials=N_TRIALS, options={"round_size": 8})
            watched = Watched(service, job.id)
            first.until(tuner, lambda _: len(watched.trials()) >= 8)
            known = watched.trials()
            first.run(deployments.block(GUIDE, "Backup and restore", 0))

            first.source = next_version(tmp_path / "next")
            first.migrate()
            first.end(tuner)
            first.start_tuner()
            assert not service.job(job.id).has_ended, "it was too quick"
            first.end(api)
            first.start_api()
            check(watched, known, {worker.versions["felix"] for worker in service.workers()})
        second.run(restoring(first))
        with restored(second, key) as http:
            content = http.get(f"/v1/jobs/1/artifacts/{artifact.name}").content
            assert hashlib.sha256(content).hexdigest() == stored.sha256
            job = http.get("/v1/jobs/2").json()
            assert job["n_trials"] >= len(known) and job["state"] == "running"


def check(watched: Watched, known: list[client.Trial], versions: set[str]) -> None:
    """Two versions worked on the job, and nothing is lost or there twice."""
    job, trials = watched.ended(), watched.trials()
    assert versions == {"0.1.0", "99.0"}
    assert (job.state, job.n_trials) == ("succeeded", N_TRIALS)
    assert [trial.number for trial in trials] == list(range(1, N_TRIALS + 1))
    assert len({(trial.sketch_index, tuple(trial.decisions)) for trial in trials}) == N_TRIALS
    assert trials[: len(known)] == known
    assert [event.seq for event in watched.events] == list(range(1, job.last_seq + 1))
    numbers = [event.payload["trial"] for event in watched.events if event.type == "trial"]
    assert numbers == list(range(1, N_TRIALS + 1))


def restoring(first: deployments.Deployment) -> str:
    """The guide's commands, where the backup lies."""
    return f"ln -s {first.folder}/backup\n" + deployments.block(GUIDE, "Backup and restore", 1)


@contextlib.contextmanager
def restored(second: deployments.Deployment, key: str) -> Iterator[testclient.TestClient]:
    """Asks the restored service with a key of the one that was backed up."""
    chosen = settings.Settings(data_dir=second.data, database_url=second.database_url)
    made = app.create_app(chosen)
    with contextlib.closing(made.state.services.unrestricted_db):
        yield testclient.TestClient(made, headers={"Authorization": f"Bearer {key}"})
