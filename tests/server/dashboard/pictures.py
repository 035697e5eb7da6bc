"""Pictures of every page, light and dark, on a desk and on a phone, to look at.

python -m tests.server.dashboard.pictures FOLDER [part of a page's name ...]
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from typing import Any

from server import app
from server import settings as service_settings
from server.database import database, schema
from server.store import blobs, keys
from tests.support.dashboard import browser, demo

SIZES = {"desk": (1400, 900), "phone": (390, 844)}

#: Pages by name; fields of the demo's jobs in braces.
PAGES = {
    "jobs": "",
    "jobs-failed": "?state=failed",
    "submit": "/submit",
    "submit-conv": "/submit?op=conv2d",
    "submit-file": "/submit?source=file",
    "submit-template": "/submit?template=attention",
    "batches": "/batches",
    "batch": "/batches/{batch}",
    "templates": "/templates",
    "projects": "/projects",
    "project": "/projects/default",
    "webhooks": "/webhooks",
    "webhook": "/webhooks/{webhook}",
    "compare": "/compare?job={network}&job=3&job=4",
    "devices": "/devices",
    "keys": "/keys",
    "audit": "/audit",
    "job": "/jobs/{network}",
    "first-task": "/jobs/{first task}",
    "failed": "/jobs/{failed}",
    "trials": "/jobs/{network}/trials",
    "trial": "/jobs/{network}/trials/4",
    "search": "/jobs/{network}/search?task=1",
    "code": "/jobs/{network}/code",
    "log": "/jobs/{network}/log",
    "reference": "/reference",
    "missing": "/jobs/4711",
}


def main(folder: pathlib.Path, parts: list[str]) -> None:
    """Fill a service in a temporary folder and take the pictures."""
    from playwright import sync_api

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, sync_api.sync_playwright() as driver:
        settings = service_settings.Settings(data_dir=pathlib.Path(data))
        db = database.Database(settings.database)
        schema.upgrade(db)
        with db.write() as tx:
            key = keys.create(tx, keys.NewKey(name="ann", can_submit=True, can_admin=True))
        store = blobs.open_store(settings.blobs)
        numbers = demo.fill(db, store, key.key.id)
        chromium = driver.chromium.launch(
            executable_path=browser.executable(), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        with browser.serving(app.create_app(settings)) as address:
            site = browser.Site(address, db, store, key)
            for colours in ("light", "dark"):
                for size, (width, height) in SIZES.items():
                    viewport = {"width": width, "height": height}
                    context = chromium.new_context(
                        base_url=address, viewport=viewport, color_scheme=colours
                    )
                    page = context.new_page()
                    browser.log_in(page, site)
                    for name, place in PAGES.items():
                        if not parts or any(part in name for part in parts):
                            _take(
                                page,
                                place.format_map(numbers),
                                folder / f"{name}-{colours}-{size}.png",
                            )
                    context.close()
        chromium.close()
        db.close()


def _take(page: Any, place: str, path: pathlib.Path) -> None:
    page.goto(f"/dashboard{place}")
    if page.locator(".chart").count():
        page.wait_for_selector(".main-svg, .chart-note:not(:text('Loading'))")
        page.wait_for_timeout(250)
    page.screenshot(path=path, full_page=True)
    print(path.name, page.evaluate("document.documentElement.scrollHeight"), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
