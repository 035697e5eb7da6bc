"""A network on its job's page: what ships and why, its curve, its file, and the form's switch."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from server.store import jobs, leases, networks
from tests.server.dashboard.conftest import Pages, words
from tests.server.dashboard.test_charts import LAYOUT, data_of, wait_for
from tests.support import api_rows, onnx_models, service_fakes
from tests.support.dashboard import browser, growing
from tests.support.dashboard.browser import Site, until

pytest.importorskip("onnx")


def running(db: Any, key_id: int | None = None, **changes: Any) -> leases.Claim:
    claim = api_rows.running(db, key_id, kind="onnx", op="net.onnx", **changes)
    with db.write() as tx:
        networks.create(tx, claim.job.id, service_fakes.network())
    return claim


def test_the_page_tells_what_ships_and_why(pages: Pages) -> None:
    service = pages.service
    claim = running(service.db, service.keys["submit"].key.id)
    at = f"/dashboard/jobs/{claim.job.id}"
    before = words(pages.get(at))
    assert "built from the fastest program of each group when tuning ends" in before
    assert "Element types bfloat16, float32" in before
    assert "fused_gemm task 0 bfloat16, float32 2 9.09 µs 1.00 ms – 18.2 µs 100 % 100 %" in before
    with service.db.write() as tx:
        networks.finish(tx, claim.fence, service_fakes.built_network())
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
    claim = running(service.db, service.keys["submit"].key.id)
    with service.db.write() as tx:
        networks.fail(tx, claim.fence, "output 0 <differs>")
    growing.deliver(service.db, service.blobs, claim.fence, 1)
    text = words(pages.get(f"/dashboard/jobs/{claim.job.id}"))
    assert "The network could not be built: output 0 <differs>. The tasks" in text
    assert "Download the network" not in text


def test_the_page_tells_that_a_network_runs_elsewhere(pages: Pages) -> None:
    service = pages.service
    claim = running(service.db, service.keys["submit"].key.id)
    built = dataclasses.replace(service_fakes.built_network(), call_us=None, max_error=None)
    with service.db.write() as tx:
        networks.finish(tx, claim.fence, built)
    text = words(pages.get(f"/dashboard/jobs/{claim.job.id}"))
    assert "built for a device that its tuner has not, so it was not run: run.py checks" in text
    assert "A whole call, measured –" in text and "Largest relative error" not in text
    assert "tvm takes 5.00 times as long" in text and "It is built from" not in text


def test_jobs_without_a_network_have_no_table_of_it(pages: Pages) -> None:
    service = pages.service
    key_id = service.keys["submit"].key.id
    plain = api_rows.queued(service.db, key_id, kind="onnx", op="net.onnx")
    page = pages.get(f"/dashboard/jobs/{plain.id}")
    assert 'id="network"' not in page and "Network not built: programs only" in words(page)
    assert data_of(page)["network"] is None
    operator = api_rows.queued(service.db, key_id)
    assert "programs only" not in pages.get(f"/dashboard/jobs/{operator.id}")


def test_the_chart_has_the_network_s_curve(pages: Pages) -> None:
    service = pages.service
    claim = running(service.db, service.keys["submit"].key.id, n_trials=3)
    network = data_of(pages.get(f"/dashboard/jobs/{claim.job.id}"))["network"]
    assert (network["name"], network["call_us"]) == ("net", None)
    assert network["trial"] == [0, 1, 2, 3] and network["best_us"][0] == 1000.0


def test_the_form_has_a_switch_for_pytorch(pages: Pages) -> None:
    form = {
        "csrf_token": pages.csrf,
        "form_id": "one",
        "source": "file",
        "kind": "onnx",
        "trials": "8",
        "pytorch": "on",
    }
    file = {"file": ("net.onnx", onnx_models.product(), "application/octet-stream")}
    sent = pages.client.post("/dashboard/submit", data=form, files=file)
    assert sent.status_code == 303, words(sent.text)
    job_id = int(sent.headers["location"].rsplit("/", 1)[1])
    with pages.service.db.read() as tx:
        assert jobs.get(tx, job_id).workload["pytorch"] is True
    more = {"form_id": "two", "no_network": "on"}
    refused = pages.client.post("/dashboard/submit", data=form | more, files=file)
    assert refused.status_code == 422 and "groups of a network" in refused.text
    assert re.search(r'name="pytorch" value="on" checked', refused.text)


@pytest.mark.parametrize("no_network", ["", "on"])
def test_the_form_has_a_switch_for_the_network(pages: Pages, no_network: str) -> None:
    form = {
        "csrf_token": pages.csrf,
        "form_id": "one",
        "source": "file",
        "kind": "onnx",
        "trials": "8",
    }
    form |= {"no_network": no_network} if no_network else {}
    file = {"file": ("net.onnx", onnx_models.product(), "application/octet-stream")}
    sent = pages.client.post("/dashboard/submit", data=form, files=file)
    assert sent.status_code == 303, words(sent.text)
    job_id = int(sent.headers["location"].rsplit("/", 1)[1])
    with pages.service.db.read() as tx:
        network = networks.of_job(tx, job_id, jobs.tasks(tx, job_id))
    assert (network is None) == bool(no_network)
    if network is not None:
        assert network.dtypes == ("float32",)
    refused = pages.client.post("/dashboard/submit", data=form | {"trials": "x"}, files=file)
    box = re.search(r'name="no_network" value="on" (checked)?', refused.text)
    assert refused.status_code == 422 and box is not None and bool(box[1]) == bool(no_network)


def in_a_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that drives a browser."""
    for mark in browser.MARKS:
        test = mark(test)
    return test


@in_a_browser
def test_a_network_is_watched_from_its_first_trial_to_its_file(page: Any, site: Site) -> None:
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
    with site.db.write() as tx:
        networks.finish(tx, claim.fence, service_fakes.built_network())
    growing.add_network(site.db, site.blobs, claim.fence)
    growing.deliver(site.db, site.blobs, claim.fence, 1)
    until(page, f"{shapes}.includes('a whole call, measured')")
    page.locator("#curve-task").select_option("0")
    until(page, f"{shapes}.length === 0")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the network").click()
    assert pathlib.Path(download.value.path()).read_bytes() == growing.NETWORK_CONTENT
    assert download.value.suggested_filename == f"felix-job-{claim.job.id}-network.zip"


@in_a_browser
def test_an_upload_without_its_network(page: Any, site: Site) -> None:
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
