"""What the API and the dashboard say of a network: groups, why they ship, its curve, its file."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import pytest

from felix import client, errors
from server.store import jobs, leases, networks, plot_points, progress, trials
from tests.server.conftest import Served, Service
from tests.server.dashboard.conftest import Pages, words
from tests.server.dashboard.test_charts import LAYOUT, data_of, wait_for
from tests.support import api_rows, service_fakes
from tests.support.dashboard import browser, growing
from tests.support.dashboard.browser import until
from tests.support.hostile import onnx_models


def running(db: Any, key_id: int | None = None, n_trials: int = 0, **changes: Any) -> leases.Claim:
    """A network job of tasks with weights 1, 2, ...; that of task 0 takes 1000 us unscheduled."""
    claim = api_rows.running(db, key_id, n_trials, kind="onnx", op="net.onnx", **changes)
    service_fakes.write(db, networks.create, claim.job.id, *service_fakes.network())
    return claim


def test_groups_have_types_latencies_and_shares(service: Service) -> None:
    claim = running(service.db)
    where = f"/v1/jobs/{claim.job.id}"
    tuned, sort = service.get(where)["network"]["groups"]
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
    network = service.get(where)["network"]
    assert network["dtypes"] == ["bfloat16", "float32", "float16"]
    assert [group["total_us"] for group in network["groups"]] == [20.0, None, 60.0]
    assert [group["share"] for group in network["groups"]] == [0.25, None, 0.75]
    assert (network["latency_us"], network["call_us"]) == (80.0, 90.0)


def test_the_curve_begins_with_the_unscheduled_programs(service: Service) -> None:
    claim = running(service.db, n_tasks=2)
    where = f"/v1/jobs/{claim.job.id}/network/curve"
    assert service.get(where)["points"] == []  # task 1 has no latency
    service_fakes.write(service.db, progress.baseline, claim.fence, 1, 300.0, "")
    before = service.get(where)["points"]
    assert [(point["trial"], point["best_us"]) for point in before] == [(0, 1600.0)]
    with service.db.write() as tx:
        for number, (task, latency_us) in enumerate([(0, 400.0), (1, 900.0), (1, 100.0)]):
            new = service_fakes.new_trial(number, latency_us, task=task)
            trials.append(tx, claim.fence, new)
    curve = service.get(where)
    # 900 us are slower than the unscheduled program
    points = [(point["trial"], point["best_us"]) for point in curve["points"]]
    assert points == [(0, 1600.0), (1, 1000.0), (3, 600.0)]
    assert curve["points"][-1]["elapsed_s"] == 3.0 and curve["points"][0]["elapsed_s"] == 0.0


def test_the_client_has_the_curve(served: Served, felix: client.Client) -> None:
    claim = api_rows.running(served.db, n_trials=3)
    with pytest.raises(errors.RemoteError, match="builds no network"):
        felix.network_curve(claim.job.id)
    service_fakes.write(served.db, networks.create, claim.job.id, *service_fakes.network())
    points = felix.network_curve(claim.job.id).points
    assert [point.trial for point in points] == [0, 1, 2, 3]
    assert (points[0].best_us, points[-1].best_us) == (1000.0, 100.0 / 3)


def test_the_curve_ends_where_tasks_stand_now(service: Service) -> None:
    claim = running(service.db, n_trials=3)
    with service.db.write() as tx:
        trials.remeasure(tx, claim.fence, service_fakes.new_trial(2, 50.0))
        assert plot_points.network_curve(tx, claim.job.id)[-1].best_us == 50.0


def test_a_job_without_a_network(service: Service) -> None:
    job = api_rows.queued(service.db)
    assert service.get(f"/v1/jobs/{job.id}")["network"] is None
    response = service.client.get(f"/v1/jobs/{job.id}/network/curve")
    assert response.status_code == 404
    assert response.json()["detail"] == f"job {job.id} builds no network"


def test_groups_of_an_earlier_version_have_no_types(service: Service) -> None:
    claim = running(service.db)
    with service.db.write() as tx:
        stored = tx.get_one(networks.models.Network, claim.job.id)
        stored.groups = [{"name": "dense", "calls": 1, "task": 0}]
    network = service.get(f"/v1/jobs/{claim.job.id}")["network"]
    assert network["groups"][0]["dtypes"] == [] and network["dtypes"] == []


pytest.importorskip("onnx")


def test_the_page_tells_what_ships_and_why(pages: Pages) -> None:
    service = pages.service
    claim = running(service.db, pages.key_id, n_trials=12)
    at = f"/dashboard/jobs/{claim.job.id}"
    before = words(pages.get(at))
    assert "built from the fastest program of each group when tuning ends" in before
    assert "Element types bfloat16, float32" in before
    assert "fused_gemm task 0 bfloat16, float32 2 9.09 µs 1.00 ms – 18.2 µs 100 % 100 %" in before
    service_fakes.write(service.db, networks.finish, claim.fence, service_fakes.built_network())
    growing.add_network(service.db, service.blobs, claim.fence)
    growing.deliver(service.db, service.blobs, claim.fence, 1)
    page = pages.get(at)
    text = words(page)
    assert "A whole call, measured 31.0 µs Largest relative error 1.0e-06" in text
    row = "2 10.0 µs 50.0 µs Felix 20.0 µs 100 % 100 % tvm takes 5.00 times as long"
    assert row in text
    assert "sort – 1 – – TVM – – -; it sorts" in text
    href = re.search(r'href="([^"]+)" download>Download the network', page)
    assert href is not None
    assert pages.client.get(href[1]).content == growing.NETWORK_CONTENT


def test_the_page_tells_why_a_network_was_not_built(pages: Pages) -> None:
    service = pages.service
    claim = running(service.db, pages.key_id)
    service_fakes.write(service.db, networks.fail, claim.fence, "output 0 <differs>")
    growing.deliver(service.db, service.blobs, claim.fence, 1)
    text = words(pages.get(f"/dashboard/jobs/{claim.job.id}"))
    assert "The network could not be built: output 0 <differs>. The tasks" in text
    assert "Download the network" not in text


def test_the_page_tells_that_a_network_runs_elsewhere(pages: Pages) -> None:
    service = pages.service
    claim = running(service.db, pages.key_id)
    built = dataclasses.replace(service_fakes.built_network(), call_us=None, max_error=None)
    service_fakes.write(service.db, networks.finish, claim.fence, built)
    text = words(pages.get(f"/dashboard/jobs/{claim.job.id}"))
    assert "built for a device that its tuner has not, so it was not run: run.py checks" in text
    assert "A whole call, measured –" in text and "Largest relative error" not in text
    assert "tvm takes 5.00 times as long" in text and "It is built from" not in text


def test_jobs_without_a_network_have_no_table_of_it(pages: Pages) -> None:
    service = pages.service
    key_id = pages.key_id
    plain = api_rows.queued(service.db, key_id, kind="onnx", op="net.onnx")
    page = pages.get(f"/dashboard/jobs/{plain.id}")
    assert 'id="network"' not in page and "Network not built: programs only" in words(page)
    assert data_of(page)["network"] is None
    operator = api_rows.queued(service.db, key_id)
    assert "programs only" not in pages.get(f"/dashboard/jobs/{operator.id}")


def test_the_chart_has_the_network_s_curve(pages: Pages) -> None:
    service = pages.service
    claim = running(service.db, pages.key_id, n_trials=3)
    network = data_of(pages.get(f"/dashboard/jobs/{claim.job.id}"))["network"]
    assert (network["name"], network["call_us"]) == ("net", None)
    assert network["trial"] == [0, 1, 2, 3] and network["best_us"][0] == 1000.0


def form_and_file(pages: Pages, **more: str) -> tuple[dict[str, str], dict[str, Any]]:
    """What a browser sends of a network."""
    form = {"csrf_token": pages.csrf, "form_id": "one", "source": "file", "kind": "onnx"}
    file = ("net.onnx", onnx_models.product(), "application/octet-stream")
    return form | {"trials": "8"} | more, {"file": file}


def test_the_form_has_a_switch_for_pytorch(pages: Pages) -> None:
    form, file = form_and_file(pages, pytorch="on")
    sent = pages.client.post("/dashboard/submit", data=form, files=file)
    assert sent.status_code == 303, words(sent.text)
    assert pages.job(sent.headers["location"]).workload["pytorch"] is True
    more = {"form_id": "two", "no_network": "on"}
    refused = pages.client.post("/dashboard/submit", data=form | more, files=file)
    assert refused.status_code == 422 and "groups of a network" in refused.text
    assert re.search(r'name="pytorch" value="on" checked', refused.text)


@pytest.mark.parametrize("no_network", ["", "on"])
def test_the_form_has_a_switch_for_the_network(pages: Pages, no_network: str) -> None:
    form, file = form_and_file(pages, **({"no_network": no_network} if no_network else {}))
    sent = pages.client.post("/dashboard/submit", data=form, files=file)
    assert sent.status_code == 303, words(sent.text)
    job_id = pages.job(sent.headers["location"]).id
    with pages.service.db.read() as tx:
        network = networks.of_job(tx, job_id, jobs.tasks(tx, job_id))
    assert (network is None) == bool(no_network)
    if network is not None:
        assert network.dtypes == ("float32",)
    refused = pages.client.post("/dashboard/submit", data=form | {"trials": "x"}, files=file)
    box = re.search(r'name="no_network" value="on" (checked)?', refused.text)
    assert refused.status_code == 422 and box is not None and bool(box[1]) == bool(no_network)


@browser.only
def test_a_network_is_watched_from_its_first_trial_to_its_file(page: Any, site: Served) -> None:
    claim = running(site.db, n_trials=1, trials=16)
    page.goto(f"/dashboard/jobs/{claim.job.id}")
    wait_for(page, "convergence")
    last = "document.getElementById('convergence').data.at(-1)"
    assert page.evaluate(f"{last}.name") == "net, estimated"
    assert page.locator("#curve-x").input_value() == "elapsed_s"
    assert page.evaluate(f"{last}.x.length") == 2  # unscheduled, and the first trial
    service_fakes.add(site.db, claim.fence, service_fakes.new_trial(20, 12.0))
    until(page, f"{last}.x.length === 3")
    until(page, "document.querySelector('#network').textContent.includes('12.0 µs')")
    shapes = f"({LAYOUT.format('convergence')}.shapes || []).map(shape => shape.label.text)"
    assert page.evaluate(shapes) == []
    service_fakes.write(site.db, networks.finish, claim.fence, service_fakes.built_network())
    growing.add_network(site.db, site.blobs, claim.fence)
    growing.deliver(site.db, site.blobs, claim.fence, 1)
    until(page, f"{shapes}.includes('a whole call, measured')")
    page.locator("#curve-task").select_option("0")
    until(page, f"{shapes}.length === 0")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the network").click()
    assert pathlib.Path(download.value.path()).read_bytes() == growing.NETWORK_CONTENT
    assert download.value.suggested_filename == f"felix-job-{claim.job.id}-network.zip"


@pytest.mark.slow("another network before a browser")
@browser.only
def test_an_upload_without_its_network(page: Any, site: Served) -> None:
    page.goto("/dashboard/submit?source=file")
    form = page.locator("#job-form")
    switch = form.get_by_label("Programs only")
    form.get_by_label("Kind").locator("text=TIR").click()
    assert switch.is_hidden()
    form.get_by_label("Kind").locator("text=ONNX").click()
    switch.check()
    content = onnx_models.product()
    file = {"name": "net.onnx", "mimeType": "application/octet-stream", "buffer": content}
    form.get_by_label("File").set_input_files(file)
    form.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/dashboard/jobs/\d+$"))
    assert "not built: programs only" in page.locator("#submitted").inner_text()
