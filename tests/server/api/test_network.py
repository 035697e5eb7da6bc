"""What the API says of a network: groups with types, latencies and shares, and its curve."""

from __future__ import annotations

from typing import Any

import pytest

from felix import client, errors
from server.store import networks, plot_points, progress, trials
from tests.server.conftest import Served, Service
from tests.support import api_rows, service_fakes


def _get(service: Service, path: str) -> Any:
    response = service.client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def _running(service: Service, n_tasks: int = 1, n_trials: int = 0) -> Any:
    """A network job of tasks with weights 1, 2, ...; that of task 0 takes 1000 us unscheduled."""
    claim = api_rows.running(service.db, n_tasks=n_tasks, kind="onnx", n_trials=n_trials)
    with service.db.write() as tx:
        networks.create(tx, claim.job.id, service_fakes.network())
    return claim


def test_groups_have_types_latencies_and_shares(service: Service) -> None:
    claim = _running(service)
    where = f"/v1/jobs/{claim.job.id}"
    tuned, sort = _get(service, where)["network"]["groups"]
    assert tuned["dtypes"] == ["bfloat16", "float32"] and sort["dtypes"] == []
    assert (tuned["tvm_us"], tuned["felix_us"], tuned["ships"]) == (1000.0, None, None)
    assert (tuned["total_us"], tuned["share"], sort["share"]) == (2000.0, 1.0, None)
    more = networks.Group(
        name="pool",
        calls=3,
        dtypes=("float16",),
        task=1,
        tvm_us=20.0,
        ships="tvm",
        reason="felix takes twice as long",
    )
    built = service_fakes.built_network()
    with service.db.write() as tx:
        groups = (*built.groups, more)
        networks.finish(
            tx, claim.fence, networks.Built(call_us=90.0, max_error=0.0, groups=groups)
        )
    network = _get(service, where)["network"]
    assert network["dtypes"] == ["bfloat16", "float32", "float16"]
    assert [group["total_us"] for group in network["groups"]] == [20.0, None, 60.0]
    assert [group["share"] for group in network["groups"]] == [0.25, None, 0.75]
    assert (network["latency_us"], network["call_us"]) == (80.0, 90.0)


def test_a_network_for_a_device_elsewhere_is_built_and_not_timed(service: Service) -> None:
    claim = _running(service)
    groups = service_fakes.built_network().groups
    with service.db.write() as tx:
        built = networks.Built(call_us=None, max_error=None, groups=groups)
        networks.finish(tx, claim.fence, built)
    network = _get(service, f"/v1/jobs/{claim.job.id}")["network"]
    assert (network["call_us"], network["max_error"], network["failure"]) == (None, None, None)
    # latencies are those that it was built by, not those of the task as it is now
    assert network["latency_us"] == 20.0 and network["groups"][0]["ships"] == "felix"


def test_the_curve_begins_with_the_unscheduled_programs(service: Service) -> None:
    claim = _running(service, n_tasks=2)
    where = f"/v1/jobs/{claim.job.id}/network/curve"
    assert _get(service, where)["points"] == []  # task 1 has no latency
    with service.db.write() as tx:
        progress.baseline(tx, claim.fence, 1, 300.0, "")
    before = _get(service, where)["points"]
    assert [(point["trial"], point["best_us"]) for point in before] == [(0, 1600.0)]
    with service.db.write() as tx:
        for number, (task, latency_us) in enumerate([(0, 400.0), (1, 900.0), (1, 100.0)]):
            new = service_fakes.new_trial(number, latency_us, task=task)
            trials.append(tx, claim.fence, new)
    curve = _get(service, where)
    # 900 us are slower than the unscheduled program
    points = [(point["trial"], point["best_us"]) for point in curve["points"]]
    assert points == [(0, 1600.0), (1, 1000.0), (3, 600.0)]
    assert curve["points"][-1]["elapsed_s"] == 3.0 and curve["points"][0]["elapsed_s"] == 0.0


def test_the_client_has_the_curve(served: Served, felix: client.Client) -> None:
    claim = api_rows.running(served.db, n_trials=3)
    with pytest.raises(errors.RemoteError, match="builds no network"):
        felix.network_curve(claim.job.id)
    with served.db.write() as tx:
        networks.create(tx, claim.job.id, service_fakes.network())
    points = felix.network_curve(claim.job.id).points
    assert [point.trial for point in points] == [0, 1, 2, 3]
    assert (points[0].best_us, points[-1].best_us) == (1000.0, 100.0 / 3)


def test_the_curve_ends_where_tasks_stand_now(service: Service) -> None:
    claim = _running(service, n_trials=3)
    with service.db.write() as tx:
        trials.remeasure(tx, claim.fence, service_fakes.new_trial(2, 50.0))
        assert plot_points.network_curve(tx, claim.job.id)[-1].best_us == 50.0


@pytest.mark.parametrize("tail", ["", "/curve"])
def test_a_job_without_a_network(service: Service, tail: str) -> None:
    job = api_rows.queued(service.db)
    assert _get(service, f"/v1/jobs/{job.id}")["network"] is None
    response = service.client.get(f"/v1/jobs/{job.id}/network{tail}")
    assert response.status_code == 404
    if tail:
        assert response.json()["detail"] == f"job {job.id} builds no network"


def test_groups_of_an_earlier_version_have_no_types(service: Service) -> None:
    claim = _running(service)
    with service.db.write() as tx:
        stored = tx.get_one(networks.models.Network, claim.job.id)
        stored.groups = [{"name": "dense", "calls": 1, "task": 0}]
    network = _get(service, f"/v1/jobs/{claim.job.id}")["network"]
    assert network["groups"][0]["dtypes"] == [] and network["dtypes"] == []
