"""Pages in a browser that share a stream, and pages for everybody: phone, keyboard, colours."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server.api import events
from server.store import control, jobs, keys
from tests.support import api_rows, service_fakes, share
from tests.support.dashboard import browser, growing
from tests.support.dashboard.browser import until
from tests.support.live_service import Served

pytestmark = browser.MARKS

#: A browser opens six connections to a host.
N_PAGES = 8

STATE = "document.querySelector('#head .badge').textContent"


@pytest.mark.slow("nine pages of a browser at a time")
def test_many_open_jobs_are_all_live_and_another_page_loads(page: Any, site: Served) -> None:
    submitted = [api_rows.queued(site.db, site.key.key.id) for _ in range(N_PAGES + 1)]
    opened = [page.context.new_page() for _ in range(N_PAGES)]
    for each, job in zip(opened, submitted, strict=False):
        each.goto(f"/dashboard/jobs/{job.id}/log")
        until(each, "document.querySelector('#link').textContent === 'Live'")
    page.goto(f"/dashboard/jobs/{submitted[-1].id}/log")
    until(page, "document.querySelector('#link').textContent === 'Live'")
    for job in submitted:
        service_fakes.write(site.db, control.pause, job.id)
    for each in (*opened, page):
        until(each, f"{STATE} === 'paused'")
    service_fakes.write(site.db, control.cancel, submitted[0].id)
    service_fakes.write(site.db, control.resume, submitted[1].id)
    until(opened[0], "document.querySelector('#link').textContent === 'Ended'")
    until(opened[1], f"{STATE} === 'queued'")
    opened[2].close()
    page.get_by_role("button", name="Resume").click()
    until(page, f"{STATE} === 'queued'")


@pytest.mark.slow("two pages of a browser")
def test_two_pages_of_a_job_see_every_event_once(page: Any, site: Served) -> None:
    """Also the one that opens while the stream is open, and one that looks at another job next."""
    grows = growing.begun(site.db, 0, trials=64)
    number = grows.claim.job.id
    count = (
        "window.eventNumbers = []; document.addEventListener('felix:event', "
        "({ detail }) => window.eventNumbers.push(detail.seq))"
    )
    page.add_init_script(count)
    page.goto(f"/dashboard/jobs/{number}/log")
    grows.step(6)
    last = service_fakes.read(site.db, jobs.get, number).last_seq
    until(page, f"window.eventNumbers.includes({last})")
    second = page.context.new_page()
    second.add_init_script(count)
    second.goto(f"/dashboard/jobs/{number}/log")
    grows.step(6)
    newest = service_fakes.read(site.db, jobs.get, number).last_seq
    for each, first in ((page, None), (second, last + 1)):
        until(each, f"window.eventNumbers.includes({newest})")
        numbers = each.evaluate("window.eventNumbers")
        assert numbers == list(range(first or numbers[0], newest + 1))


@pytest.mark.slow("waits in a browser for streams to end")
def test_a_stream_that_ends_is_renewed_until_the_login_is_over(
    page: Any, site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_STREAM_S", 0.5)
    job = api_rows.queued(site.db, site.key.key.id)
    page.goto(f"/dashboard/jobs/{job.id}/log")
    for change, state in ((control.pause, "paused"), (control.resume, "queued")):
        page.wait_for_timeout(1500)
        service_fakes.write(site.db, change, job.id)
        until(page, f"{STATE} === '{state}'")
    service_fakes.write(site.db, keys.revoke, site.key.key.id)
    page.wait_for_selector("text=Your login has ended")


@pytest.mark.slow("another page in a browser, of a kind that is rare")
def test_a_browser_without_shared_workers_has_a_stream_a_page(page: Any, site: Served) -> None:
    page.add_init_script("delete window.SharedWorker")
    job = api_rows.queued(site.db, site.key.key.id)
    page.goto(f"/dashboard/jobs/{job.id}")
    until(page, "document.querySelector('#link').textContent === 'Live'")
    service_fakes.write(site.db, control.pause, job.id)
    until(page, f"{STATE} === 'paused'")


PLACES = ("", "/submit?op=conv2d", "/compare?job=1&job=2", "/devices", "/jobs/1",
          "/jobs/1/trials", "/jobs/1/trials/2", "/jobs/1/search", "/jobs/1/code", "/jobs/1/log",
          "/keys", "/audit", "/reference", "/submit?source=file", "/submit?template=attention",
          "/batches", "/batches/1", "/templates", "/projects", "/projects/default", "/webhooks",
          "/webhooks/2")  # fmt: skip

#: Roles of what a person acts on.
CONTROLS = """link button textbox searchbox combobox checkbox radio spinbutton
    DisclosureTriangle""".split()


@pytest.mark.slow("many pages of a browser")
def test_pages_are_for_keyboards_readers_and_phones(page: Any, site: Served) -> None:
    """What there is to act on has a name and is reached by key; nothing is scrolled sideways."""
    worker = growing.tuner(site.db)
    name = "a-long-name-without-any-place-to-break-it-" * 4
    more = {"name": name, "tags": ("a-long-tag-" * 5,), "n_tasks": 2, "trials": 64}
    api_rows.queued(site.db, site.key.key.id, **more)
    grows = growing.Growing(site.db, worker)
    grows.step(24)
    grows.finish(site.blobs)
    api_rows.queued(site.db)
    growing.teams(site.db, site.key.key.id, [1, 2, 999])
    tree = page.context.new_cdp_session(page)
    n_nodes = 0
    for place in share.of(PLACES, 6):
        page.goto(f"/dashboard{place}")
        if page.locator(".chart").count():
            page.wait_for_selector(".main-svg, .chart-note:not(:text('Loading'))")
        for node in tree.send("Accessibility.getFullAXTree")["nodes"]:
            if node["ignored"] or node.get("role", {}).get("value") not in CONTROLS:
                continue
            properties = {one["name"]: one["value"].get("value") for one in node["properties"]}
            assert node["name"]["value"].strip(), (place, node)
            assert properties.get("focusable") or properties.get("disabled"), (place, node)
            n_nodes += 1
        left_out = "a[href], button, input, select, textarea, summary"
        skipped = page.locator(f":is({left_out})[tabindex='-1']:visible").count()
        assert skipped == 0, place
        page.set_viewport_size({"width": 390, "height": 844})
        until(page, "document.documentElement.scrollWidth <= 390")
        page.set_viewport_size({"width": 1280, "height": 800})
    assert n_nodes > 100


@pytest.mark.slow("some hundred keys pressed in a browser")
def test_a_job_is_submitted_by_keyboard(page: Any, site: Served) -> None:
    page.goto("/dashboard")
    focused = "document.activeElement.textContent.trim() || document.activeElement.id"

    def tab_to(label: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(focused) == label:
                return
        pytest.fail(f"no way to {label} by Tab")

    tab_to("New job")
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard/submit")
    for name in ("m", "n", "k"):
        tab_to(f"f-p.{name}")
        page.keyboard.type("64")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/dashboard/jobs/\d+$"))
    tab_to("Pause")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#head .badge').textContent === 'paused'")
    assert service_fakes.get(site.db, 1).workload["params"]["k"] == 64


@pytest.mark.slow("another page in a browser, of many jobs")
def test_many_jobs_are_a_short_page_on_a_phone(page: Any, site: Served) -> None:
    worker = growing.tuner(site.db)
    for number in range(38):
        name = f"conv2d {number} " + "a long name " * (number % 7)
        api_rows.queued(site.db, name=name, priority=number % 3, tags=("nightly", "cpu"))
    grows = growing.Growing(site.db, worker)
    grows.step(9)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/dashboard")
    assert page.locator("#jobs tbody tr").count() == 38
    assert page.evaluate("document.documentElement.scrollHeight") < 3500
    row = page.locator("#jobs tbody tr").first
    for part in (".name", ".badge", ".best-cell", ".owner-cell", ".age-cell"):
        assert row.locator(part).first.is_visible(), part


@pytest.mark.slow("another page in a browser")
def test_keyboard_and_colours(page: Any, site: Served) -> None:
    page.emulate_media(color_scheme="light")
    page.goto("/dashboard")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    focused_texts = set()
    for _ in range(14):
        assert page.evaluate(outline) == "solid", page.evaluate("document.activeElement.outerHTML")
        focused_texts.add(page.evaluate("document.activeElement.textContent.trim()"))
        page.keyboard.press("Tab")
    assert {"Jobs", "New job", "Compare", "Devices", "Keys", "ann"} <= focused_texts
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(colour)
    assert dark != light
    button = page.get_by_role("button", name="Colours")
    button.click()
    assert page.evaluate(colour) == light and "light" in button.get_attribute("aria-label")
    page.reload()
    assert page.evaluate(colour) == light
    button.click()
    button.click()
    assert page.evaluate(colour) == dark and "system" in button.get_attribute("aria-label")
