"""The dashboard in process: an application and clients that are logged in."""

from __future__ import annotations

import html
import re

import pytest

from server.store import rows
from tests.server.conftest import Service
from tests.support import service_fakes
from tests.support.dashboard.browser import chromium, page, site  # noqa: F401  (fixtures)

#: Pages of a job, after its address.
TABS = ("", "/trials", "/search", "/code", "/log", "/log?all=1")


class Pages:
    """A browser without a screen: cookies stay, redirects are not followed."""

    def __init__(self, service: Service) -> None:
        self.service, self.client = service, service.client
        self.client.headers.pop("Authorization", None)
        self.client.follow_redirects = False

    def log_in(self, scope: str) -> None:
        """Log in with the key of a scope."""
        self.client.cookies.clear()
        key = self.service.keys[scope].text
        response = self.client.post("/dashboard/login", data={"key": key})
        assert response.status_code == 303, response.text

    def get(self, address: str, status: int = 200) -> str:
        """The text of a page."""
        response = self.client.get(address)
        assert response.status_code == status, (response.status_code, response.text[:2000])
        return response.text

    def send(self, address: str, status: int, **fields: object) -> str:
        """Send a form; the page that comes back, or where it leads."""
        response = self.client.post(address, data={"csrf_token": self.csrf, **fields})
        assert response.status_code == status, response.text[:2000]
        return response.headers.get("location", response.text)

    def job(self, location: str) -> rows.Job:
        """The job whose page lies there."""
        return service_fakes.get(self.service.db, int(location.rsplit("/", 1)[1]))

    @property
    def key_id(self) -> int:
        """Of the key that may submit, with which `pages` is logged in."""
        return self.service.keys["submit"].key.id

    @property
    def csrf(self) -> str:
        """The token of the login, as a page has it."""
        meta = re.search(r'name="csrf-token" content="([^"]+)"', self.get("/dashboard/compare"))
        assert meta is not None
        return html.unescape(meta.group(1))


@pytest.fixture
def pages(service: Service) -> Pages:
    """Logged in with the key that may submit."""
    made = Pages(service)
    made.log_in("submit")
    return made


@pytest.fixture
def logged_out(service: Service) -> Pages:
    """Not logged in."""
    return Pages(service)


def check_ids(markup: str) -> None:
    """Ids are unique, and what refers to one finds it."""
    ids = re.findall(r' id="([^"]+)"', markup)
    assert len(ids) == len(set(ids)), sorted(one for one in ids if ids.count(one) > 1)
    for described in re.findall(r'aria-(?:describedby|labelledby)="([^"]+)"', markup):
        assert set(described.split()) <= set(ids), described
    for target in re.findall(r'<label for="([^"]+)"', markup):
        assert target in ids, target


def words(markup: str) -> str:
    """What a person reads of a page."""
    text = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", markup, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())
