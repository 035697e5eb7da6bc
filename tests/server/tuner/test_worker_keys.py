"""A service whose cluster measures with keys only: without one, with one, with a revoked one."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from felix.measure.cluster import kinds
from felix.target import parse
from server.store import keys
from tests.support.cluster_service import Service, actors

pytest.importorskip("ray", reason="needs the extra [cluster]")

pytestmark = [pytest.mark.timeout(900)]

#: Seconds within which a revoked key's devices measure nothing more; the guide states it.
REVOKED_S = 5.0


@pytest.fixture
def service(tmp_path: pathlib.Path) -> Iterator[Service]:
    made = Service(tmp_path, f"sqlite:///{tmp_path / 'felix.db'}", "127.0.0.1")
    made.machines.environment["FELIX_REQUIRE_WORKER_KEYS"] = "1"
    yield made
    made.close()


def faults(service: Service) -> list[Any]:
    return [report["fault"] for device in service.client.devices() for report in device.reports]


def until(service: Service, said: str, seconds: float) -> None:
    """Wait until a device of the service measures nothing for this reason."""
    until_s = time.monotonic() + seconds
    while not any(said in str(fault) for fault in faults(service)):
        assert time.monotonic() < until_s, (faults(service), service.machines.log(service.tuner))
        time.sleep(0.2)


def test_a_machine_measures_with_a_key_until_it_is_revoked(service: Service) -> None:
    environment, kind = service.machines.environment, kinds.of(parse("llvm"))
    service.begin()
    until(service, f"needs a key with the scope worker for {kind}: it states none", 30)
    assert "may not measure: it needs a key" in service.machines.log(service.tuner)
    job_id = service.submit(2000, seed=1)
    estimate = service.client.job(job_id).estimate
    assert estimate is not None and "it states none" in str(estimate["waits_for"])

    made = service.client.create_key("box", ["worker"], device_kinds=[kind])
    service.machines.environment = environment | {"FELIX_WORKER_KEY": made.text}
    worker = service.add_worker()
    for actor in actors(worker):
        assert "FELIX_WORKER_KEY" not in actor.environ()
    job = service.wait(job_id, lambda job: job.n_trials >= 16, 120)
    with service.db.read() as tx:
        assert keys.get(tx, made.key.id).last_used_at is not None
    assert job.state == "running"

    service.client.revoke_key(made.key.id)
    time.sleep(REVOKED_S)
    n_trials = service.client.job(job_id).n_trials
    until(service, f"its key {made.key.id} is revoked", 30)
    job = service.wait(job_id, lambda job: job.state == "queued", 60)
    assert job.n_trials == n_trials
    assert made.text.split("_", 2)[2] not in service.machines.log(service.tuner)
