"""The pages of one browser share a stream, and buttons work without scripts."""

from __future__ import annotations

from typing import Any

import pytest

from server.api import events
from server.store import control, jobs, keys
from tests.support import api_rows, service_fakes
from tests.support.dashboard import browser, growing
from tests.support.dashboard.browser import Site, until

pytestmark = browser.MARKS

#: A browser opens six connections to a host.
N_PAGES = 8

STATE = "document.querySelector('#head .badge').textContent"


def test_many_open_jobs_are_all_live_and_another_page_loads(page: Any, site: Site) -> None:
    submitted = [api_rows.queued(site.db, site.key.key.id) for _ in range(N_PAGES + 1)]
    opened = [page.context.new_page() for _ in range(N_PAGES)]
    for each, job in zip(opened, submitted, strict=False):
        each.goto(f"/dashboard/jobs/{job.id}/log", timeout=20_000)
        until(each, "document.querySelector('#link').textContent === 'Live'")
    page.goto(f"/dashboard/jobs/{submitted[-1].id}/log", timeout=20_000)
    until(page, "document.querySelector('#link').textContent === 'Live'")
    for job in submitted:
        with site.db.write() as tx:
            control.pause(tx, job.id)
    for each in (*opened, page):
        until(each, f"{STATE} === 'paused'")
    with site.db.write() as tx:
        control.cancel(tx, submitted[0].id)
        control.resume(tx, submitted[1].id)
    until(opened[0], "document.querySelector('#link').textContent === 'Ended'")
    until(opened[1], f"{STATE} === 'queued'")
    opened[2].close()
    page.get_by_role("button", name="Resume").click()
    until(page, f"{STATE} === 'queued'")


def test_two_pages_of_a_job_see_every_event_once(page: Any, site: Site) -> None:
    """Also the one that opens while the stream is open, and one that looks at another job next."""
    worker = growing.tuner(site.db)
    api_rows.queued(site.db, trials=64)
    grows = growing.Growing(site.db, worker)
    number = grows.claim.job.id
    count = (
        "window.eventNumbers = []; document.addEventListener('felix:event', "
        "({ detail }) => window.eventNumbers.push(detail.seq))"
    )
    page.add_init_script(count)
    page.goto(f"/dashboard/jobs/{number}/log")
    grows.step(6)
    with site.db.read() as tx:
        last = jobs.get(tx, number).last_seq
    until(page, f"window.eventNumbers.includes({last})")
    second = page.context.new_page()
    second.add_init_script(count)
    second.goto(f"/dashboard/jobs/{number}/log")
    grows.step(6)
    with site.db.read() as tx:
        newest = jobs.get(tx, number).last_seq
    for each, first in ((page, None), (second, last + 1)):
        until(each, f"window.eventNumbers.includes({newest})")
        numbers = each.evaluate("window.eventNumbers")
        assert numbers == list(range(first or numbers[0], newest + 1))


def test_a_stream_that_ends_is_renewed_until_the_login_is_over(
    page: Any, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_STREAM_S", 0.5)
    job = api_rows.queued(site.db, site.key.key.id)
    page.goto(f"/dashboard/jobs/{job.id}/log")
    for change, state in ((control.pause, "paused"), (control.resume, "queued")):
        page.wait_for_timeout(1500)
        with site.db.write() as tx:
            change(tx, job.id)
        until(page, f"{STATE} === '{state}'")
    with site.db.write() as tx:
        keys.revoke(tx, site.key.key.id)
    page.wait_for_selector("text=Your login has ended")


def test_a_browser_without_shared_workers_has_a_stream_a_page(page: Any, site: Site) -> None:
    page.add_init_script("delete window.SharedWorker")
    job = api_rows.queued(site.db, site.key.key.id)
    page.goto(f"/dashboard/jobs/{job.id}")
    until(page, "document.querySelector('#link').textContent === 'Live'")
    with site.db.write() as tx:
        control.pause(tx, job.id)
    until(page, f"{STATE} === 'paused'")


@pytest.fixture
def plain(chromium: Any, site: Site) -> Any:
    """A page that is logged in, in a browser that runs no scripts."""
    context = chromium.new_context(base_url=site.address, java_script_enabled=False)
    made = context.new_page()
    browser.log_in(made, site)
    yield made
    context.close()


def test_buttons_work_without_scripts(plain: Any, site: Site) -> None:
    job = api_rows.queued(site.db, site.key.key.id)
    plain.goto(f"/dashboard/jobs/{job.id}")
    for label, state in (
        ("Pause", "paused"),
        ("Resume", "queued"),
        ("Cancel", "cancelled"),
        ("Retry", "queued"),
        ("Cancel", "cancelled"),
    ):
        plain.get_by_role("button", name=label, exact=True).click()
        plain.wait_for_selector(f"#head .badge:has-text('{state}')")
        assert service_fakes.get(site.db, job.id).state == state
    plain.get_by_text("Save as a template").click()
    plain.get_by_label("Name of the template").fill("nightly")
    plain.get_by_role("button", name="Save the template").click()
    plain.wait_for_url("**/dashboard/templates")
    plain.get_by_role("button", name="Delete the template nightly").click()
    plain.wait_for_selector("text=No templates yet")
    plain.goto(f"/dashboard/jobs/{job.id}")
    plain.get_by_text("Change name, note, tags or priority").click()
    plain.get_by_role("button", name=f"Delete job {job.id}").click()
    plain.wait_for_url("**/dashboard")
    assert plain.locator("#jobs").inner_text().startswith("No jobs yet")
    plain.goto("/dashboard")
    plain.locator("details.menu summary").click()
    plain.get_by_role("button", name="Log out").click()
    plain.wait_for_url("**/dashboard/login*")
