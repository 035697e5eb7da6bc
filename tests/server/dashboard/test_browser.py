"""The dashboard in a real Chromium: log in, submit, watch, act, compare, download.

The job is filled step by step through the verbs that tuners use, so the pages see what they see of
a tuner, in seconds.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest

from server import errors
from server.store import control, job_lists, jobs, keys, plot_points, requests
from tests.support import api_rows, service_fakes
from tests.support.dashboard import browser, growing
from tests.support.dashboard.browser import points, until
from tests.support.live_service import Served

pytestmark = browser.MARKS


def test_submit_watch_act_and_download(page: Any, site: Served) -> None:
    worker = growing.tuner(site.db)
    page.get_by_role("link", name="New job").first.click()
    for name in ("m", "n", "k"):
        page.locator(f"[id='f-p.{name}']").fill("64")
    page.locator("#f-trials").fill("40")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r"/dashboard/jobs/\d+$"))
    assert page.locator("#head .badge").inner_text() == "queued"
    page.wait_for_selector("text=Nothing measured yet")

    page.evaluate("window.mark = 'never loaded again'")
    grows = growing.Growing(site.db, worker)
    grows.step(4)
    until(page, "document.querySelector('#head .badge').textContent === 'running'")
    first = points(page, "convergence")
    grows.step(12)
    until(page, f"Number(document.querySelector('#convergence').dataset.points) > {first + 8}")
    until(page, "document.querySelector('.tiles').textContent.includes('16 of 40')")
    assert page.locator("#link").inner_text() == "Live"
    until(page, "document.querySelector('#tasks').textContent.includes('16')")

    page.get_by_role("button", name="Pause").click()
    until(page, "document.querySelector('#head .badge').textContent === 'pausing'")
    page.get_by_role("button", name="Resume").click()
    until(page, "document.querySelector('#head .badge').textContent === 'running'")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Keep it").click()
    assert service_fakes.get(site.db, grows.claim.job.id).state == "running"

    job = grows.finish(site.blobs)
    until(page, "document.querySelector('#head .badge').textContent === 'succeeded'")
    until(page, "document.querySelector('#link').textContent === 'Ended'")
    assert page.evaluate("window.mark") == "never loaded again"
    with page.expect_download() as download:
        page.get_by_role("link", name="Download felix-job.zip").click()
    assert pathlib.Path(download.value.path()).read_bytes() == growing.CONTENT
    assert download.value.suggested_filename == "felix-job.zip"
    assert job.workload["params"]["m"] == 64


@pytest.mark.slow("another page with charts in a browser")
def test_controls_of_the_charts(page: Any, site: Served) -> None:
    grows = growing.begun(site.db, 24, n_tasks=2, trials=64)
    number = grows.claim.job.id
    page.goto(f"/dashboard/jobs/{number}")
    whole = points(page, "convergence")
    title = "document.querySelector('#convergence .xtitle').textContent"
    assert page.evaluate(title) == "Trials"
    page.locator("#curve-x").select_option("seconds of tuning")
    until(page, f"{title} === 'Seconds of tuning'")
    page.locator("#curve-task").select_option("0")
    until(page, f"document.querySelector('#convergence').dataset.points !== '{whole}'")
    page.get_by_label("Unscheduled").check()
    until(page, "document.querySelector('#convergence').textContent.includes('unscheduled')")
    page.goto(f"/dashboard/jobs/{number}/search")
    pairs = len(service_fakes.read(site.db, plot_points.predicted, number, 0))
    assert points(page, "predicted") == pairs + 2  # and the two ends of the line
    assert points(page, "descent") == 4 * 21
    before = page.locator("#rounds tbody tr").count()
    grows.step(16)
    until(page, f"document.querySelectorAll('#rounds tbody tr').length > {before}")
    until(page, f"Number(document.querySelector('#predicted').dataset.points) > {pairs + 2}")


@pytest.mark.slow("another page in a browser")
def test_compare_from_the_table(page: Any, site: Served) -> None:
    worker = growing.tuner(site.db)
    for name in ("one", "two"):
        api_rows.queued(site.db, name=name)
        grows = growing.Growing(site.db, worker, seed=len(name))
        grows.step(10)
        grows.finish(site.blobs)
    page.goto("/dashboard")
    assert page.get_by_role("button", name="Compare selected").is_disabled()
    for box in page.get_by_label(re.compile("^Compare job")).all():
        box.check()
    api_rows.queued(site.db, name="a third one")
    page.wait_for_selector("text=a third one")  # the table is live, and the ticks stay
    page.get_by_role("button", name="Compare 2 selected").click()
    page.wait_for_url("**/dashboard/compare?job=*")
    assert points(page, "curves") > 4
    page.locator("#compare-y").select_option("% of the best of all")
    until(page, "document.querySelector('#curves .ytitle').textContent.includes('best of all')")
    legend = page.locator("#curves").inner_text()
    assert "one" in legend and "two" in legend


@pytest.mark.slow("another page in a browser")
def test_a_selection_is_acted_on_beside_it(page: Any, site: Served) -> None:
    for number in range(3):
        api_rows.queued(site.db, site.key.key.id, name=f"job {number}")
    page.goto("/dashboard")
    pause = page.get_by_role("button", name="Pause")
    assert pause.is_disabled()
    page.get_by_label("Compare job 1", exact=True).check()
    page.get_by_label("Select all jobs").check()
    assert page.locator("#n-selected").inner_text() == "3 selected"
    assert page.get_by_role("button", name="Delete").is_disabled()  # nothing has ended
    pause.click()
    page.wait_for_url("**/dashboard")
    assert {service_fakes.get(site.db, number).state for number in (1, 2, 3)} == {"paused"}
    page.get_by_label("Compare job 2", exact=True).check()
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=Cancel 1 job?")
    page.get_by_role("button", name="Cancel it").click()
    page.wait_for_selector("#jobs >> text=cancelled")
    assert service_fakes.get(site.db, 2).state == "cancelled"


@pytest.mark.slow("another page in a browser; the form is tested without one")
def test_a_form_keeps_what_is_filled_in_when_its_source_changes(page: Any, site: Served) -> None:
    page.goto("/dashboard/submit")
    page.locator("#f-trials").fill("33")
    page.get_by_role("link", name="A file").click()
    assert page.locator("#f-file").is_visible() and not page.locator("#op").is_visible()
    page.get_by_role("link", name="An operator").click()
    page.locator("#op").select_option("softmax")
    page.wait_for_selector("[id='f-p.shape']")
    assert page.locator("#f-trials").input_value() == "33"
    page.locator("[id='f-p.shape']").fill("4, 8")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r"/dashboard/jobs/\d+$"))
    job = service_fakes.get(site.db, 1)
    assert (job.op, job.trials) == ("softmax", 33)


@pytest.mark.slow("a second browser, without scripts")
def test_buttons_and_uploads_work_without_scripts(chromium: Any, site: Served) -> None:
    numbers = [api_rows.queued(site.db, site.key.key.id).id for _ in range(2)]
    context = chromium.new_context(base_url=site.url, java_script_enabled=False)
    page = context.new_page()
    browser.log_in(page, site)
    for box in page.get_by_label(re.compile("^Compare job")).all():
        box.check()
    page.get_by_role("button", name="Pause").click()
    assert {service_fakes.get(site.db, number).state for number in numbers} == {"paused"}
    page.goto("/dashboard/jobs/1")
    for label, state in (
        ("Resume", "queued"),
        ("Cancel", "cancelled"),
        ("Retry", "queued"),
        ("Cancel", "cancelled"),
    ):
        page.get_by_role("button", name=label, exact=True).click()
        page.wait_for_selector(f"#head .badge:has-text('{state}')")
        assert service_fakes.get(site.db, 1).state == state
    page.get_by_text("Save as a template").click()
    page.get_by_label("Name of the template").fill("nightly")
    page.get_by_role("button", name="Save the template").click()
    page.wait_for_url("**/dashboard/templates")
    page.get_by_role("button", name="Delete the template nightly").click()
    page.wait_for_selector("text=No templates yet")
    page.goto("/dashboard/jobs/1")
    page.get_by_text("Change name, note, tags or priority").click()
    page.get_by_role("button", name="Delete job 1").click()
    page.wait_for_url("**/dashboard")
    assert "job 1" not in page.locator("#jobs").inner_text()
    page.goto("/dashboard/submit")
    page.locator("#op").select_option("softmax")
    page.get_by_role("button", name="Show its fields").click()
    page.locator("[id='f-p.shape']").fill("0")
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_selector("[id='f-p.shape-wrong']")
    page.goto("/dashboard/submit?source=file")
    file = {"name": "net.onnx", "mimeType": "application/octet-stream", "buffer": b"no model"}
    page.locator("#f-file").set_input_files(file)
    page.get_by_role("button", name="Upload").click()
    page.wait_for_selector("#f-file-wrong")
    page.locator("details.menu summary").click()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/dashboard/login*")
    context.close()


def test_a_lost_connection_is_reported_and_mended(page: Any, site: Served) -> None:
    job = api_rows.queued(site.db)
    page.goto("/dashboard")
    page.wait_for_selector(".link-live")
    page.context.set_offline(True)
    page.wait_for_selector("text=The service does not answer")
    service_fakes.write(site.db, control.cancel, job.id)
    page.context.set_offline(False)
    page.wait_for_selector("#jobs >> text=cancelled")
    assert page.locator("#lost").is_hidden()


@pytest.mark.slow("another page in a browser")
def test_a_login_that_ended_is_told(page: Any, site: Served) -> None:
    service_fakes.write(site.db, keys.revoke, site.key.key.id)
    page.wait_for_selector("text=Your login has ended")
    page.get_by_role("link", name="Log in again").click()
    page.wait_for_selector("text=API key")
    page.get_by_label("API key").fill("felix_wrong_key")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("text=This key is unknown")


@pytest.mark.slow("another page in a browser; the form is tested without one")
def test_upload_puts_errors_at_their_fields(page: Any, site: Served) -> None:
    page.goto("/dashboard/submit")
    page.get_by_role("link", name="A file").click()
    form = page.locator("#job-form")
    file = {"name": "net.onnx", "mimeType": "application/octet-stream", "buffer": b"no model"}
    form.get_by_label("File").set_input_files(file)
    form.get_by_label("Shapes").fill("what")
    form.get_by_role("button", name="Upload").click()
    form.locator("text=one input a line").first.wait_for()
    assert form.get_by_label("Shapes").get_attribute("aria-invalid") == "true"
    form.get_by_label("Kind").locator("text=TIR").click()
    with page.expect_response("**/v1/jobs/upload") as response:
        form.get_by_role("button", name="Upload").click()
    assert response.value.status == 422
    form.get_by_role("alert").wait_for()
    assert not service_fakes.read(site.db, job_lists.page).items


@pytest.mark.slow("another form in a browser; the upload is tested without one")
def test_upload_makes_a_job(page: Any, site: Served) -> None:
    body = {"workload": {"kind": "operator", "name": "softmax", "params": {"shape": [4, 8]}}}
    header = {"Authorization": f"Bearer {site.key.text}"}
    made = page.request.post("/v1/jobs", data=body, headers=header)
    assert made.status == 201, made.text()
    program = service_fakes.read(site.db, jobs.programs, made.json()["id"])[0].encode()
    page.goto("/dashboard/submit")
    page.get_by_role("link", name="A file").click()
    form = page.locator("#job-form")
    form.get_by_label("TIR program").check()
    file = {"name": "soft.json", "mimeType": "application/json", "buffer": program}
    form.get_by_label("File").set_input_files(file)
    form.get_by_label("Trials").fill("7")
    form.get_by_text("Name, tags, search options").click()
    form.get_by_label("Tags").fill("from a file, tir")
    form.get_by_label("Begin anew").check()
    page.evaluate(
        """() => {
          const append = FormData.prototype.append;
          FormData.prototype.append = function (name, value) {
            if (name === "job") sessionStorage.setItem("job", value);
            append.apply(this, arguments);
          };
        }"""
    )
    form.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/dashboard/jobs/\d+$"))
    assert json.loads(page.evaluate("sessionStorage.getItem('job')"))["reuse"] is False
    number = int(page.url.rsplit("/", 1)[1])
    job = service_fakes.get(site.db, number)
    assert (job.kind, job.trials, job.tags) == ("tir", 7, ("from a file", "tir"))
    page.get_by_text("Change name").click()
    page.locator("#e-note").fill("stays while the page is live")
    service_fakes.write(site.db, control.change, number, priority=3)
    page.wait_for_selector("#submitted >> text=Priority 3")
    assert page.locator("#e-note").input_value() == "stays while the page is live"
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector("#submitted >> text=stays while the page is live")


@pytest.mark.slow("another page in a browser; batches are tested without one")
def test_a_batch_stays_live_and_cancels_what_is_unfinished_then(page: Any, site: Served) -> None:
    numbers = [api_rows.queued(site.db, site.key.key.id).id for _ in range(3)]
    with site.db.write() as tx:
        items = [{"job_id": number} for number in numbers]
        batch = requests.create_batch(tx, site.key.key.id, items, None)
    page.goto(f"/dashboard/batches/{batch.id}")
    service_fakes.write(site.db, control.cancel, numbers[0])
    page.get_by_role("button", name="Cancel 2 unfinished").click()
    assert page.locator(".plain-list li").count() == 2
    page.get_by_role("button", name="Cancel them").click()
    page.wait_for_url(f"**/dashboard/batches/{batch.id}")
    assert {service_fakes.get(site.db, number).state for number in numbers} == {"cancelled"}
    assert page.get_by_role("button", name="unfinished").count() == 0


def test_a_key_is_made_and_revoked(page: Any, site: Served) -> None:
    page.get_by_role("link", name="Keys").click()
    page.get_by_label("Name").fill("ci")
    page.get_by_role("button", name="Make the key").click()
    text = page.locator("#key-text").inner_text()
    assert service_fakes.read(site.db, keys.find, text).name == "ci"
    page.get_by_role("link", name="I have it").click()
    revoke = page.get_by_role("button", name="Revoke the key ci")
    revoke.click()
    page.get_by_role("button", name="Keep it").click()
    revoke.click()
    page.get_by_role("button", name="Revoke it").click()
    page.wait_for_selector("td:has-text('revoked')")
    assert revoke.count() == 0
    page.get_by_role("link", name="Audit").click()
    page.wait_for_selector("text=key.revoke")
    with pytest.raises(errors.Unauthenticated), site.db.read() as tx:
        keys.find(tx, text)
