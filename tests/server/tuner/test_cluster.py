"""A service that measures on a real cluster, whose processes, nodes, links and keys fail."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from felix.measure.cluster import messages
from felix.target import parse
from server.store import keys, trials
from tests.support import cluster_service, run_py, service_fakes
from tests.support.cluster_service import Service, actors
from tests.support.hostile import onnx_models
from tests.support.waiting import until

pytest.importorskip("ray", reason="needs the extra [cluster]")

pytestmark = [
    pytest.mark.slow("starts a Ray cluster, and processes on it that import TVM, and kills them"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def namespace() -> Iterator[cluster_service.Namespace | str]:
    """A network of its own, or why there is none."""
    with cluster_service.namespace() as made:
        yield made


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, namespace: cluster_service.Namespace | str
) -> Iterator[Service]:
    host = "127.0.0.1" if isinstance(namespace, str) else cluster_service.HERE
    made = Service(tmp_path_factory.mktemp("service"), host)
    try:
        made.begin()
        yield made
    finally:
        made.close()


def check(service: Service, job_id: int, n_trials: int) -> None:
    """The job ended with exactly these trials: each once, none of them infrastructure's."""
    job = service.wait(job_id, lambda job: job.has_ended, 300)
    records = [json.loads(line) for line in service_fakes.read(service.db, trials.records, job_id)]
    errors = [
        each["measurement"]["message"]
        for each in records
        if each["measurement"]["error"] == "infrastructure"
    ]
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
    assert len(first) == 96  # all were measured; what was measured again has records of its own
    failed = [each["measurement"] for each in records]
    assert [each["message"] for each in failed if each["error"] == "infrastructure"] == []


def test_a_job_outlives_the_link_process(service: Service) -> None:
    job_id = service.submit(32, seed=3)
    service.wait(job_id, lambda job: job.n_trials >= 8, 120)
    started = psutil.Process(service.tuner.pid).children()
    (relay,) = [
        each
        for each in started
        if each.name() == "relay" or "server.tuner.cluster.relay" in each.cmdline()
    ]
    relay.kill()
    assert not service.client.job(job_id).has_ended, "it was too quick"
    check(service, job_id, 32)


def test_a_network_is_built_for_the_cluster_s_device(
    service: Service, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_models.product())
    job_id = service.submit_network(path)
    service.wait(job_id, lambda job: job.has_ended, 300)
    job = service.client.job(job_id)
    assert job.network is not None and job.network["failure"] is None, job
    assert job.network["call_us"] is None and job.network["groups"][0]["ships"] is not None
    zipped = service.client.download(job_id, tmp_path / "net", network=True)
    with zipfile.ZipFile(zipped) as archive:
        archive.extractall(tmp_path / "net")
    (script,) = (tmp_path / "net").glob("*/run.py")
    command = run_py.command(script, "--json", "--repeats", "3")
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["max_error"] < 1e-3


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
    service: Service, namespace: cluster_service.Namespace | str
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


@pytest.fixture
def keyed(tmp_path: pathlib.Path) -> Iterator[Service]:
    """A service whose nodes need keys."""
    made = Service(tmp_path, "127.0.0.1")
    made.machines.environment["FELIX_REQUIRE_WORKER_KEYS"] = "1"
    yield made
    made.close()


def faults(service: Service) -> list[Any]:
    return [report["fault"] for device in service.client.devices() for report in device.reports]


def until_told(service: Service, said: str) -> None:
    """Wait until a device of the service measures nothing for this reason."""
    until(
        lambda: any(said in str(fault) for fault in faults(service)),
        why=lambda: (faults(service), service.machines.log(service.tuner)),
    )


def test_a_machine_measures_with_a_key_until_it_is_revoked(keyed: Service) -> None:
    environment, kind = keyed.machines.environment, messages.of(parse("llvm"))
    keyed.begin()
    until_told(keyed, f"needs a key with the scope worker for {kind}: it states none")
    assert "may not measure: it needs a key" in keyed.machines.log(keyed.tuner)
    job_id = keyed.submit(2000, seed=1)
    estimate = keyed.client.job(job_id).estimate
    assert estimate is not None and "it states none" in str(estimate["waits_for"])

    made = keyed.client.create_key("box", ["worker"], device_kinds=[kind])
    keyed.machines.environment = environment | {"FELIX_WORKER_KEY": made.text}
    worker = keyed.add_worker()
    for actor in actors(worker):
        assert "FELIX_WORKER_KEY" not in actor.environ()
    job = keyed.wait(job_id, lambda job: job.n_trials >= 16, 120)
    assert service_fakes.read(keyed.db, keys.get, made.key.id).last_used_at is not None
    assert job.state == "running"

    keyed.client.revoke_key(made.key.id)
    until_told(keyed, f"its key {made.key.id} is revoked")
    n_trials = keyed.client.job(job_id).n_trials
    job = keyed.wait(job_id, lambda job: job.state == "queued", 120)
    assert job.n_trials <= n_trials + 1  # what was measured by then
    assert made.text.split("_", 2)[2] not in keyed.machines.log(keyed.tuner)
