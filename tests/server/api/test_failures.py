"""The API where something fails: killed with SIGKILL in use, disks that are full or broken."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from felix import client, files
from server import folders, settings
from server.database import database
from server.store import job_lists, leases
from tests.server.conftest import Service
from tests.support import api_rows, cluster_machines, service_fakes, share
from tests.support.waiting import until

N_KILLS = share.rounds(1, 3)
N_SUBMITTED = 24


class Api:
    """`felix serve` in a process of its own, on a port that stays the same."""

    def __init__(self, folder: pathlib.Path, url: str) -> None:
        port = cluster_machines.free_port()
        self.url = f"http://127.0.0.1:{port}"
        variables = {
            "FELIX_DATA_DIR": str(folder),
            "FELIX_PORT": str(port),
            "FELIX_DATABASE_URL": url,
        }
        self._environment = os.environ | variables
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it serves."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "felix", "serve", "--no-tuner"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with httpx.Client(base_url=self.url) as http:  # its set-up takes longer than the request
            until(lambda: self._answers(http))

    def _answers(self, http: httpx.Client) -> bool:
        with contextlib.suppress(httpx.TransportError):
            http.get("/healthz")
            return True
        return False

    def kill(self) -> None:
        """End it without a word."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def api(tmp_path: pathlib.Path, url: str, db: database.Database) -> Iterator[Api]:
    made = Api(tmp_path, url)
    made.start()
    yield made
    made.kill()


def submit_all(service: client.Client, made: list[tuple[str, int]]) -> None:
    """Submit jobs, each again under the same idempotency key until there is a response."""
    for number in range(N_SUBMITTED):
        name = f"job-{number}"
        body = {
            "name": name,
            "workload": {"kind": "operator", "name": "softmax", "params": {"shape": [4, 8]}},
        }
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            try:
                response = service._http._client.post(
                    "/v1/jobs", json=body, headers={"Idempotency-Key": name}
                )
            except httpx.TransportError:
                time.sleep(0.1)
                continue
            made.append((name, response.raise_for_status().json()["id"]))
            break


@pytest.mark.parametrize("url", share.of(["sqlite", "postgresql"], 1), indirect=True)
@pytest.mark.timeout(600)
def test_a_killed_api_loses_and_doubles_nothing(api: Api, db: database.Database) -> None:
    key = service_fakes.key(db, can_submit=True, max_running_jobs=100)
    claim = api_rows.running(db, key.key.id, n_trials=4)
    with db.write() as tx:
        leases.beat(tx, claim.fence, 600.0)  # starting takes as long as it takes
    made: list[tuple[str, int]] = []
    with client.Client(api.url, key.text) as watching, client.Client(api.url, key.text) as asking:
        received: list[client.Event] = []
        threads = [
            threading.Thread(target=lambda: received.extend(watching.events(claim.job.id))),
            threading.Thread(target=submit_all, args=(asking, made)),
        ]
        for thread in threads:
            thread.start()
        for number in range(N_KILLS):
            time.sleep(random.Random(number).uniform(0.3, 1.5))
            api.kill()
            service_fakes.add(db, claim.fence, service_fakes.new_trial(100 + number, 1.0))
            api.start()
        service_fakes.write(db, leases.succeed, claim.fence, "trials")
        for thread in threads:
            thread.join(180)
            assert not thread.is_alive()
        assert watching.job(claim.job.id).n_trials == 4 + N_KILLS
    assert [event.seq for event in received] == list(range(1, len(received) + 1))
    assert received[-1].to_state == "succeeded"
    all_jobs = service_fakes.read(db, job_lists.page, limit=1000).items
    by_name = collections.Counter(job.name for job in all_jobs if job.id != claim.job.id)
    assert by_name == {f"job-{number}": 1 for number in range(N_SUBMITTED)}
    assert {job.name: job.id for job in all_jobs if job.id != claim.job.id} == dict(made)
    assert settings.Settings().max_running_jobs < N_SUBMITTED  # the key's quota held


@contextlib.contextmanager
def full(folder: pathlib.Path) -> Iterator[None]:
    """The folder's disk is full: a small tmpfs with a file in it, or `/dev/full` where files lie.

    Mounting needs rights; without them the writes go to a device that is always full.
    """
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={2 * folders.LEAST_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            (folder / "filling").write_bytes(bytes(folders.LEAST_BYTES + folders.LEAST_BYTES // 2))
            yield
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        return
    with always_full(folder):
        yield


@contextlib.contextmanager
def always_full(folder: pathlib.Path) -> Iterator[None]:
    """Writes of new files in the folder go to `/dev/full`."""
    temporary = files.temporary

    @contextlib.contextmanager
    def to_full_device(at: pathlib.Path, *, mode: int = files.MODE) -> Iterator[object]:
        if at != folder:
            with temporary(at, mode=mode) as made:
                yield made
            return
        with open("/dev/full", "wb") as file:
            yield file, at / "file"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "temporary", to_full_device)
        yield


@pytest.mark.parametrize("way", [full, always_full])
def test_a_full_disk_of_blobs_is_not_ready(service: Service, way: object) -> None:
    folder = service.settings.data_dir / "blobs"
    with way(folder):  # type: ignore[operator]
        response = service.client.get("/readyz")
        assert response.status_code == 503 and response.headers["Retry-After"]
        problem = response.json()
        assert problem["type"] == "urn:felix:problem:disk-unusable"
        assert problem["detail"] == "the disk of the blob store is full"
        assert service.client.get("/healthz").status_code == 200
    assert service.client.get("/readyz").status_code == 200
    assert [path for path in folder.rglob("*") if path.name.startswith(".part")] == []


def test_a_full_disk_of_scratch_files_is_not_ready(
    service: Service, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    with full(tmp_path / "scratch"):
        response = service.client.get("/readyz")
    assert response.status_code == 503 and "scratch files is full" in response.json()["detail"]


def test_a_folder_that_is_none_is_not_ready(service: Service) -> None:
    folder = service.settings.data_dir / "blobs"
    folder.write_bytes(b"")
    response = service.client.get("/readyz")
    assert response.status_code == 503
    assert "the disk of the blob store cannot be written" in response.json()["detail"]
    assert str(folder) not in response.text
