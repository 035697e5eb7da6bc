"""A service that measures on a real cluster, whose processes, nodes and links fail."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from felix import client
from server import commands, settings
from server.database import database
from server.store import trials
from tests.support import network_namespace
from tests.support.cluster_machines import Machines, free_port

pytest.importorskip("ray", reason="needs the extra [cluster]")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: A node that has not answered for about 8 s is given up, not after a minute as usually.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


class Service:
    """A cluster of one node, an API server and a tuner that measures on the cluster."""

    def __init__(self, folder: pathlib.Path, url: str, host: str) -> None:
        self.machines = Machines(folder, host)
        self.machines.environment |= HEALTH | {
            "FELIX_DATABASE_URL": url, "FELIX_DATA_DIR": str(folder / "data"),
            "FELIX_PORT": str(free_port()), "FELIX_CLUSTER": self.machines.address,
        }  # fmt: skip
        chosen = settings.Settings.from_environment(self.machines.environment)
        commands.upgrade(chosen)
        self.db = database.Database(chosen.database)
        key = commands.first_key(chosen)
        assert key is not None
        self.machines.head()
        self.api = self.felix("serve", "--no-tuner")
        self.client = client.Client(chosen.address, key)

    def begin(self) -> None:
        """Start a node, which stays, and then the tuner."""
        self.stays = self.add_worker()
        self.tuner = self.felix("tuner")
        self.machines.until(self.tuner, lambda text: "is ready for" in text, 120)

    def add_worker(self, *through: str) -> subprocess.Popen[bytes]:
        """Start a node, by a command that starts others; it measures."""
        worker = self.machines.worker(*through)
        self.machines.until(worker, lambda text: "felix worker: measures on" in text, 240)
        return worker

    def submit(self, n_trials: int, seed: int) -> int:
        """Queue a job; its number."""
        return self.client.submit(
            "gemm", {"m": 64, "n": 64, "k": 64}, trials=n_trials, reuse=False, seed=seed,
            options={"round_size": 8},
        ).id  # fmt: skip

    def wait(self, job_id: int, is_so: Callable[[client.Job], bool], seconds: float) -> client.Job:
        """The job, once something is so."""
        until_s = time.monotonic() + seconds
        while not is_so(job := self.client.job(job_id)):
            assert time.monotonic() < until_s, (job, self.machines.log(self.tuner))
            time.sleep(0.1)
        return job

    def close(self) -> None:
        """End all."""
        self.machines.close()
        self.db.close()

    def felix(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command of Felix."""
        return self.machines.start(sys.executable, "-m", "felix", *arguments)


@pytest.fixture(scope="module")
def namespace() -> Iterator[network_namespace.Namespace | str]:
    """A network of its own, or why there is none."""
    with network_namespace.made() as made:
        yield made


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: str,
    namespace: network_namespace.Namespace | str,
) -> Iterator[Service]:
    host = "127.0.0.1" if isinstance(namespace, str) else network_namespace.HERE
    made = Service(tmp_path_factory.mktemp("service"), postgres, host)
    try:
        made.begin()
        yield made
    finally:
        made.close()


def actors(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes of the nodes that a worker keeps."""
    below = psutil.Process(worker.pid).children(recursive=True)
    return [each for each in below if each.name().startswith("ray::Node")]


def check(service: Service, job_id: int, n_trials: int) -> None:
    """The job ended with exactly these trials: each once, none of them infrastructure's."""
    job = service.wait(job_id, lambda job: job.has_ended, 300)
    with service.db.read() as tx:
        records = [json.loads(line) for line in trials.records(tx, job_id)]
    errors = [each["measurement"]["message"] for each in records
              if each["measurement"]["error"] == "infrastructure"]  # fmt: skip
    assert errors == [], service.machines.log(service.tuner)
    assert (job.state, job.n_trials, job.attempts) == ("succeeded", n_trials, 1), job
    first = [each for each in records if not each["repeat"]]  # the fastest are measured again
    assert len(first) == n_trials
    assert len({(each["sketch_key"], *each["decisions"]) for each in first}) == n_trials


def stored(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a run, written while it goes on."""
    path = folder / "tuning" / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_job_and_a_run_outlive_a_process_and_a_node(service: Service) -> None:
    goes = service.add_worker()
    run = service.machines.tune("out", "--trials=96")
    folder = service.machines.folder / "out"
    service.machines.until(run, lambda _: len(stored(folder)) >= 8, 240)
    job_id = service.submit(64, seed=1)
    service.wait(job_id, lambda job: job.n_trials >= 8, 120)
    (actor,) = actors(service.stays)
    actor.kill()
    service.wait(job_id, lambda job: job.n_trials >= 24, 120)
    os.killpg(goes.pid, signal.SIGKILL)
    assert not service.client.job(job_id).has_ended, "it was too quick"
    assert run.poll() is None, service.machines.log(run)
    check(service, job_id, 64)
    assert run.wait(300) == 0, service.machines.log(run)
    records = stored(folder)
    first = {(each["sketch_key"], *each["decisions"]) for each in records}
    assert len(first) == 96  # all were measured; finals have records of their own
    failed = [each["measurement"] for each in records]
    assert [each["message"] for each in failed if each["error"] == "infrastructure"] == []


def test_a_job_outlives_the_link_process(service: Service) -> None:
    job_id = service.submit(32, seed=3)
    service.wait(job_id, lambda job: job.n_trials >= 8, 120)
    started = psutil.Process(service.tuner.pid).children()
    (relay,) = [each for each in started if any("relay_main" in word for word in each.cmdline())]
    relay.kill()
    assert not service.client.job(job_id).has_ended, "it was too quick"
    check(service, job_id, 32)


@contextlib.contextmanager
def environment(service: Service, **changes: str) -> Iterator[None]:
    """What is started meanwhile has no token, but for what `changes` say."""
    machines, usual = service.machines, service.machines.environment
    without = {name: value for name, value in usual.items() if "RAY_AUTH" not in name}
    machines.environment = without | {"HOME": str(machines.folder)} | changes
    try:
        yield
    finally:
        machines.environment = usual


def test_without_the_token_nothing_starts(service: Service) -> None:
    with environment(service):
        refused = [
            service.felix("tuner"),
            service.machines.worker(),
            service.machines.tune("none"),
        ]
    for process in refused:
        assert process.wait(120) == 1
        assert "with a token only" in service.machines.log(process)


def test_a_wrong_token_reaches_nothing(service: Service) -> None:
    with environment(service, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="f" * 32):
        run = service.machines.tune("wrong")
    assert run.wait(180) != 0
    assert stored(service.machines.folder / "wrong") == []


def test_a_job_outlives_a_link(
    service: Service, namespace: network_namespace.Namespace | str
) -> None:
    if isinstance(namespace, str):
        pytest.skip(namespace)
    far = service.add_worker(*namespace.within)
    job_id = service.submit(240, seed=2)
    for seconds in (4, 30):  # Ray notices the second one only
        enough = service.client.job(job_id).n_trials + 8
        service.wait(job_id, lambda job, enough=enough: job.n_trials >= enough, 120)
        namespace.cut()
        assert not service.client.job(job_id).has_ended, "it was too quick"
        time.sleep(seconds)  # the other node goes on, and may end the job
        namespace.join()
    check(service, job_id, 240)
    service.machines.until(far, lambda text: text.count("felix worker: measures on") == 2, 120)
