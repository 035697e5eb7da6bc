"""Notifications on their way: where they may go, tries, and receivers that mean no good."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import hmac
import http.server
import ipaddress
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import httpx
import pytest
import sqlalchemy as sa

from server import notifications
from server.database import database, models
from server.store import control, jobs, leases, projects, rows, webhooks
from tests.server.conftest import on_both_databases
from tests.support import service_fakes

NOW_S = 1_767_225_600.0


class Receiver:
    """A server that notes what it gets; `status` and `head` say how it answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.status, self.headers = 200, {}
        self.before_response: Callable[[Any], None] = lambda _: None
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body))
                receiver.before_response(self)
                self.send_response(receiver.status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def do_GET(self) -> None:
                receiver.requests.append(("GET " + self.path, {}, b""))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


async def to_this_machine(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


def sending(allow_private: bool = True, try_s: float = 5.0) -> notifications.Sender:
    return notifications.Sender(allow_private, to_this_machine, lambda: NOW_S, try_s)


async def send_due(server: notifications.Deliverer) -> int:
    """Send what is due now, the oldest of each webhook; how many there were."""
    async with anyio.create_task_group() as group:
        count = await server._start_due(group)
    return count


def send_all(db: database.Database, by: notifications.Sender, rounds: int = 20) -> int:
    """Send until nothing is due."""

    async def play() -> int:
        loop = notifications.Deliverer(db, by)
        count = 0
        for _ in range(rounds):
            sent = await send_due(loop)
            if not sent:
                return count
            count += sent
        return count

    return asyncio.run(play())


def make(db: database.Database, receiver: Receiver, **changes: Any) -> webhooks.CreatedWebhook:
    reported = changes.pop("reported", list(webhooks.REPORTED))
    project = changes.pop("project", projects.DEFAULT)
    address = changes.pop("url", f"http://ci.example:{receiver.port}/hook?x=1")
    return service_fakes.write(db, webhooks.create, project, address, reported, None)


def listed(db: database.Database, made: webhooks.CreatedWebhook) -> list[rows.Delivery]:
    return service_fakes.read(db, webhooks.deliveries, made.webhook.id)


def age(db: database.Database, seconds: float) -> None:
    """Time passes for all notifications."""
    with db.write() as tx:
        for row in tx.scalars(sa.select(models.Delivery)):
            passed = datetime.timedelta(seconds=seconds)
            row.not_before -= passed
            row.leased_until = None if row.leased_until is None else row.leased_until - passed


def test_each_change_of_state_is_reported_once_and_signed(
    db: database.Database, receiver: Receiver
) -> None:
    made = make(db, receiver)
    job = service_fakes.create(db, name="mine")
    claim = service_fakes.claim(db)
    service_fakes.write(db, leases.succeed, claim.fence, "trials")
    assert send_all(db, sending()) == 3 and send_all(db, sending()) == 0
    bodies = [json.loads(body) for _, _, body in receiver.requests]
    assert [body["type"] for body in bodies] == ["job.queued", "job.running", "job.succeeded"]
    assert [body["id"] for body in bodies] == [f"job-{job.id}-{seq}" for seq in (1, 2, 3)]
    assert bodies[2]["job"]["name"] == "mine" and bodies[2]["job"]["reason"] == "trials"
    for path, headers, body in receiver.requests:
        fields = dict(part.split("=") for part in headers[notifications.SIGNATURE].split(","))
        signed = f"{int(NOW_S)}.".encode() + body
        expected = hmac.new(made.secret.encode(), signed, hashlib.sha256).hexdigest()
        assert fields == {"t": str(int(NOW_S)), "v1": expected}
        assert headers["Host"] == f"ci.example:{receiver.port}" and path == "/hook?x=1"
        assert headers[notifications.EVENT_ID] == json.loads(body)["id"]
    assert {each.state for each in listed(db, made)} == {"delivered"}
    assert made.secret not in repr(made) and made.secret not in repr(listed(db, made))


def test_only_the_states_that_were_asked_for(db: database.Database, receiver: Receiver) -> None:
    service_fakes.write(db, projects.create, "other")
    other = service_fakes.key(db, project="other").key
    failures = make(db, receiver, reported=["failed"])
    others = make(db, receiver, project="other")
    job = service_fakes.create(db)
    service_fakes.write(db, control.pause, job.id)
    service_fakes.write(db, control.cancel, job.id)
    assert listed(db, failures) == listed(db, others) == []
    theirs = service_fakes.create(db, key_id=other.id)
    assert [each.event_id for each in listed(db, others)] == [f"job-{theirs.id}-1"]


def test_a_change_that_is_rolled_back_reports_nothing(
    db: database.Database, receiver: Receiver
) -> None:
    made = make(db, receiver)
    with pytest.raises(RuntimeError), db.write() as tx:
        jobs.create(tx, service_fakes.new_job())
        raise RuntimeError("after the event was written")
    assert listed(db, made) == []


@pytest.mark.slow("tries a receiver for long")
def test_a_receiver_that_fails_is_tried_later_each_time_and_then_given_up(
    db: database.Database, receiver: Receiver
) -> None:
    made = make(db, receiver)
    service_fakes.create(db)
    receiver.status = 500
    waits = []
    for attempt in range(1, notifications.MAX_ATTEMPTS + 1):
        assert send_all(db, sending()) == 1, attempt
        assert send_all(db, sending()) == 0  # not before its time
        (each,) = listed(db, made)
        assert (each.attempts, each.last_status) == (attempt, 500)
        waits.append(notifications.retry_after_s(attempt))
        age(db, (waits[-1] or 0.0) + 1.0)
    assert each.state == "dead" and waits[-1] is None
    assert waits[:4] == [10.0, 20.0, 40.0, 80.0] and max(w for w in waits if w) == 7200.0
    assert {headers[notifications.EVENT_ID] for _, headers, _ in receiver.requests} == {
        each.event_id
    }
    receiver.status = 204
    service_fakes.write(db, webhooks.retry, made.webhook.id, each.id)
    assert send_all(db, sending()) == 1
    assert listed(db, made)[0].state == "delivered"


@on_both_databases
def test_two_servers_send_a_notification_once(db: database.Database, receiver: Receiver) -> None:
    made = [make(db, receiver) for _ in range(6)]
    service_fakes.create(db)

    async def play() -> list[int]:
        servers = [notifications.Deliverer(db, sending()) for _ in range(3)]
        return list(await asyncio.gather(*map(send_due, servers)))

    assert sum(asyncio.run(play())) == 6
    assert len(receiver.requests) == 6
    assert {each.state for one in made for each in listed(db, one)} == {"delivered"}


@on_both_databases
def test_what_a_server_that_died_had_taken_is_sent_by_another(
    db: database.Database, receiver: Receiver
) -> None:
    made = make(db, receiver)
    service_fakes.create(db)
    (taken,) = service_fakes.write(db, webhooks.lease, 10, notifications.LEASE_S)
    assert send_all(db, sending()) == 0
    age(db, notifications.LEASE_S + 1.0)
    assert send_all(db, sending()) == 1
    with db.write() as tx:  # the first was not dead but slow: it changes nothing any more
        webhooks.note(tx, taken, webhooks.Reply(None, "late"), None)
    assert listed(db, made)[0].state == "delivered"


def test_one_webhook_that_hangs_does_not_hold_up_the_others(
    db: database.Database, receiver: Receiver
) -> None:
    slow = Receiver()
    release = threading.Event()
    slow.before_response = lambda _: release.wait(60.0)
    hanging, quick = make(db, slow), make(db, receiver)
    for _ in range(3):
        service_fakes.create(db)

    def states(made: webhooks.CreatedWebhook) -> list[str]:
        return [each.state for each in listed(db, made)]

    async def play() -> None:
        loop = asyncio.create_task(notifications.Deliverer(db, sending(), 0.05).run())
        until_s = time.monotonic() + 120.0
        while states(quick) != ["delivered"] * 3 and time.monotonic() < until_s:
            await asyncio.sleep(0.02)
        loop.cancel()

    asyncio.run(play())
    release.set()
    slow.close()
    assert len(receiver.requests) == 3 and len(slow.requests) == 1
    assert states(quick) == ["delivered"] * 3 and states(hanging) == ["pending"] * 3


def reply(due_url: str, by: notifications.Sender) -> webhooks.Reply:
    due = webhooks.Due(1, 1, "job-1-1", due_url, "{}", "whsec_x")
    return asyncio.run(by.send(due))


def test_a_name_that_resolves_to_this_machine_is_not_connected_to(receiver: Receiver) -> None:
    """The attack: a public name whose address is ours."""
    got = reply(f"https://ci.example:{receiver.port}/", sending(allow_private=False))
    assert got == webhooks.Reply(None, "the host has an address that is not public")
    assert receiver.requests == []


def test_a_name_is_resolved_once_for_a_try(receiver: Receiver) -> None:
    """The attack: the name has another address when it is asked for the second time."""
    resolved_hosts = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        resolved_hosts.append(host)
        return ["127.0.0.1"] if len(resolved_hosts) == 1 else ["127.0.0.2"]

    by = notifications.Sender(True, rebinding, lambda: NOW_S)
    assert reply(f"http://no-such-host.invalid:{receiver.port}/", by).status == 200
    assert resolved_hosts == ["no-such-host.invalid"]


def test_redirects_are_not_followed(receiver: Receiver) -> None:
    receiver.status = 302
    receiver.headers = {"Location": f"http://127.0.0.1:{receiver.port}/secret"}
    assert reply(f"http://ci.example:{receiver.port}/", sending()).status == 302
    assert len(receiver.requests) == 1 and not webhooks.Reply(302, None).is_accepted


def test_a_proxy_of_the_environment_is_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert reply(f"http://ci.example:{receiver.port}/", sending()).status == 200


def test_an_endless_response_ends_in_time(receiver: Receiver) -> None:
    """Headers that drip and a body without an end: one try takes its time and no more."""

    def drip(handler: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(600):
            handler.wfile.write(b"X-%d: x\r\n" % number)
            time.sleep(0.05)

    receiver.before_response = drip
    began_s = time.monotonic()
    got = reply(f"http://ci.example:{receiver.port}/", sending(try_s=0.5))
    assert got == webhooks.Reply(None, "no response within 0.5 s")
    assert time.monotonic() - began_s < 20.0  # all headers take 30 s

    def flood(handler: Any) -> None:
        handler.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n" + b"x" * 99
        )

    receiver.before_response = flood
    assert reply(f"http://ci.example:{receiver.port}/", sending()).status == 200


def test_errors_say_nothing_of_the_other_side() -> None:
    assert reply("http://ci.example:9/", sending()).error == "cannot connect to the host"


def test_the_documented_check_of_a_signature() -> None:
    page = pathlib.Path(__file__).parents[2] / "docs" / "guide" / "projects.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    is_genuine, body = names["is_genuine"], b'{"id":"job-1-1"}'
    header = notifications.signature("whsec_x", body, int(NOW_S))
    assert is_genuine("whsec_x", header, body, NOW_S + 299.0)
    assert not is_genuine("whsec_x", header, body, NOW_S + 301.0)
    assert not is_genuine("whsec_x", header, body + b" ", NOW_S)
    assert not is_genuine("whsec_y", header, body, NOW_S)
    assert not is_genuine("whsec_x", header.replace("t=1", "t=2"), body, NOW_S)


PRIVATE = [
    "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "192.0.0.1", "198.18.0.1",
    "240.0.0.1", "192.0.2.7", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1",
    "fec0::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1", "64:ff9b:1::a00:1",
]  # fmt: skip
PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize("text", PRIVATE)
def test_addresses_that_are_not_public(text: str) -> None:
    assert all(notifications.is_public(ipaddress.ip_address(each)) for each in PUBLIC)
    assert not notifications.is_public(ipaddress.ip_address(text))
    host = f"[{text}]" if ":" in text else text
    with pytest.raises(notifications.Refused, match="must be public"):
        notifications.check_url(f"https://{host}/hook", allow_private=False)
    assert notifications.check_url(f"http://{host}/hook", allow_private=True).path == "/hook"


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/",
        "ftp://a.example/",
        "file:///etc/passwd",
        "https://",
        "//a.example",
        "a.example",
        "https:///x",
        "https://user:secret@a.example/",
        "https://a.example:99999/",
        "https://[::1",
        "gopher://a.example:6379/_",
        "https://\n/",
        "",
    ],
)
def test_addresses_that_are_no_webhooks(url: str) -> None:
    with pytest.raises(notifications.Refused):
        notifications.check_url(url, allow_private=False)


def pinned(resolved: Sequence[str], allow_private: bool = False) -> str:
    async def resolve(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("a.example", 443)
        return resolved

    url = httpx.URL("https://a.example/hook")
    return asyncio.run(notifications.pinned(url, resolve, allow_private))


def test_a_name_is_refused_if_any_of_its_addresses_is_not_public() -> None:
    assert pinned(["93.184.216.34", "8.8.8.8"]) == "93.184.216.34"
    for private in PRIVATE:
        for candidates in ([private], ["93.184.216.34", private]):
            with pytest.raises(notifications.Refused, match="not public"):
                pinned(candidates)
    assert pinned(["127.0.0.1"], allow_private=True) == "127.0.0.1"
    with pytest.raises(OSError):
        pinned([])


@pytest.mark.parametrize("text", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
def test_other_spellings_of_an_address_are_resolved_and_then_refused(text: str) -> None:
    """The resolver reads them as 127.0.0.1, which is what is checked."""
    with pytest.raises((notifications.Refused, OSError)):
        url = notifications.check_url(f"https://{text}/", allow_private=False)
        asyncio.run(notifications.pinned(url, notifications.resolve, allow_private=False))
