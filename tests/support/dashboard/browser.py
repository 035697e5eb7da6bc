"""A real Chromium for the tests that are marked `browser`, and a server that it can reach.

Chromium is the system's (`apt-get install chromium`), or the one that `FELIX_TEST_CHROMIUM`
names; Playwright comes from PyPI and only drives it. Nothing may appear in its console: a script
that the content policy blocks, or that throws, fails every test.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from tests.support import live_service
from tests.support.live_service import Served

Test = TypeVar("Test")

#: How long the machine may take for something that takes a second when it is idle.
WAIT_MS = 120_000

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """The path of a Chromium, None without one."""
    named = os.environ.get("FELIX_TEST_CHROMIUM")
    if named:
        return named
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def problem() -> str | None:
    """Why tests in a browser cannot run, None if they can."""
    if executable() is None:
        return (
            "no Chromium here: apt-get install chromium, or name one in FELIX_TEST_CHROMIUM, "
            "to test the dashboard in a browser"
        )
    return None


#: For modules of such tests.
MARKS = [pytest.mark.browser, pytest.mark.skipif(problem() is not None, reason=str(problem()))]


def only(test: Test) -> Test:
    """Mark a test of another module."""
    for mark in MARKS:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser process for all tests."""
    from playwright import sync_api

    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=executable(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        started.close()


@pytest.fixture
def site(tmp_path: pathlib.Path) -> Iterator[Served]:
    """The application behind a real server."""
    with live_service.serving(tmp_path, key_name="ann") as made:
        yield made


@pytest.fixture
def page(chromium: Any, site: Served) -> Iterator[Any]:
    """A page that is logged in; at the end its console must be empty."""
    context = chromium.new_context(
        base_url=site.url, viewport={"width": 1280, "height": 800}, accept_downloads=True
    )
    context.set_default_timeout(WAIT_MS)
    made = context.new_page()
    problems: list[str] = []
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("console", lambda message: _collect(message, problems))
    log_in(made, site)
    yield made
    context.close()
    assert not problems


#: What a browser says of responses that tests provoke.
_EXPECTED = ("ERR_INTERNET_DISCONNECTED", "status of 401", "status of 422")


def _collect(message: Any, problems: list[str]) -> None:
    if message.type in ("error", "warning") and not any(
        text in message.text for text in _EXPECTED
    ):
        problems.append(message.text)


def log_in(page: Any, site: Served) -> None:
    page.goto("/dashboard")
    page.get_by_label("API key").fill(site.key.text)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/dashboard")


def points(page: Any, chart: str) -> int:
    """How many points the chart shows."""
    page.wait_for_selector(f"#{chart}[data-points] .main-svg")
    return int(page.get_attribute(f"#{chart}", "data-points"))


def until(page: Any, condition: str) -> None:
    """Wait for something to be true in the page; `condition` is JavaScript.

    Polled from here: the page's content policy forbids a script that waits there.
    """
    last_s = time.monotonic() + WAIT_MS / 1e3
    while not page.evaluate(condition):
        assert time.monotonic() < last_s, f"never true: {condition}\n{page.inner_text('main')}"
        page.wait_for_timeout(100)
