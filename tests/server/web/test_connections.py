"""Attacks on connections, over sockets: half-open requests, slow bodies, invented addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.store import keys
from server.web import connections, middleware
from tests.support import live_service, service_fakes, share
from tests.support.live_service import Served
from tests.support.waiting import until

N_HALF_OPEN = 200
LIMITS = connections.Limits(
    max_connections=800,
    max_per_address=N_HALF_OPEN + 10,
    head_s=0.7,
    body_window_s=0.5,
    body_bytes_per_s=200.0,
)

HEALTH = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with live_service.serving(tmp_path_factory.mktemp("live"), LIMITS) as made:
        yield made


def opened(
    live: Served, n: int, text: str = "", address: str = "127.0.0.1"
) -> list[socket.socket]:
    """Connections that have sent `text` and nothing more."""
    made = [live.connect(address) for _ in range(n)]
    for connection in made:
        connection.sendall(text.encode())
    return made


def settle(live: Served, n: int) -> None:
    """Wait until the server comes down to so many connections."""
    until(lambda: len(live.server.server_state.connections) <= n)


def is_cut(connection: socket.socket, text: str, every_s: float) -> bool:
    """Send a letter at a time; whether the other side ends the connection before the last."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for letter in text:
            connection.sendall(letter.encode())
            time.sleep(every_s)
        return False
    return True


@pytest.mark.parametrize(
    "text",
    share.of(["", "GET /healthz HTTP/1.1\r\nHost: x\r\n", "\r\n" * 10, "POST /v1/jobs HTT"], 2),
)
def test_half_open_requests_are_cut(live: Served, text: str) -> None:
    half_open = opened(live, N_HALF_OPEN, text)
    assert live.send(HEALTH).startswith(b"HTTP/1.1 200")
    for connection in half_open[:3]:
        assert b" 408 " in live_service.read_to_end(connection)
    settle(live, 0)
    for connection in half_open:
        connection.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of all connections are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_1200_half_open_requests_of_many_addresses_leave_room(
    live: Served, many_files: None
) -> None:
    half_open = [
        connection
        for number in range(8)
        for connection in opened(live, 150, "GET /healthz HT", f"127.0.0.{number + 2}")
    ]
    assert live.send(HEALTH).startswith(b"HTTP/1.1 200")
    assert len(live.server.server_state.connections) <= LIMITS.max_connections
    settle(live, 0)
    for connection in half_open:
        connection.close()


def test_a_head_that_drips_is_cut(live: Served) -> None:
    """Also a second one, on a connection that has had a response."""
    for first in ("", HEALTH.replace("Connection: close\r\n", "")):
        with live.connect() as connection:
            connection.sendall(first.encode())
            assert is_cut(connection, "GET /healthz HTTP/1.1\r\nX: " + "y" * 1000, 0.02)
            assert live_service.read_to_end(connection).startswith(b"HTTP/1.1")
    settle(live, 0)


def test_a_body_that_drips_is_cut(live: Served) -> None:
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n{live.authorization}Content-Type: "
        "application/json\r\nContent-Length: 900000\r\n\r\n"
    )
    with live.connect() as connection:
        connection.sendall(head.encode())
        assert is_cut(connection, " " * 600, 0.05)
        assert b" 408 " in live_service.read_to_end(connection)


def test_a_body_at_a_decent_rate_is_read_to_its_end(live: Served) -> None:
    """Longer than several windows, above the rate."""
    body = b'{"key": "' + b"x" * 2400 + b'"}'
    head = (
        "POST /v1/session HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with live.connect() as connection:
        connection.sendall(head.encode())
        for begin in range(0, len(body), 240):
            connection.sendall(body[begin : begin + 240])
            time.sleep(0.12)
        assert b" 422 " in live_service.read_to_end(connection)


def test_a_large_head_is_refused(live: Served) -> None:
    complete = "GET /healthz HTTP/1.1\r\n" + f"X: {'y' * 1000}\r\n" * 70 + "\r\n"
    endless = "GET /healthz HTTP/1.1\r\nX: " + "y" * 70_000
    path = f"GET /healthz?{'y' * 70_000} HTTP/1.1\r\n\r\n"
    for text in (complete, endless, path):
        with live.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(text.encode())
            assert live_service.read_to_end(connection).startswith(b"HTTP/1.1 4")
    long = HEALTH.replace("\r\n\r\n", f"\r\nX: {'y' * 30_000}\r\n\r\n")
    assert live.send(long).startswith(b"HTTP/1.1 200")


def test_an_address_has_a_share_of_the_connections(live: Served) -> None:
    waiting = opened(live, LIMITS.max_per_address)
    refused = live.send(HEALTH)
    assert refused.startswith(b"HTTP/1.1 503") and b"too many connections" in refused
    waiting.pop().close()
    settle(live, LIMITS.max_per_address - 1)
    assert live.send(HEALTH).startswith(b"HTTP/1.1 200")
    for connection in waiting:
        connection.close()


def test_when_there_are_too_many_the_longest_waiting_gives_way(tmp_path: pathlib.Path) -> None:
    """Not one that has a request; if none waits, the new one is refused."""
    limits = connections.Limits(max_connections=4, max_per_address=100)
    with live_service.serving(tmp_path, limits) as live:
        upload = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n{live.authorization}"
            "Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        )
        busy = opened(live, 1, upload)
        waiting = opened(live, 3)
        settle(live, 4)
        assert live.send(HEALTH).startswith(b"HTTP/1.1 200")
        assert waiting[0].recv(1) == b""
        busy += opened(live, 3, upload)
        until(lambda: live.send(HEALTH).startswith(b"HTTP/1.1 503"))
        busy[0].sendall(b'{"a": 1} ')
        assert busy[0].recv(12) == b"HTTP/1.1 422"
        for connection in (*busy, *waiting):
            connection.close()


def test_an_address_of_ipv6_is_its_network() -> None:
    limits = connections.Limits(max_connections=9, max_per_address=1)
    counted = connections.Connections(limits)
    first, second = (connections.Connection.__new__(connections.Connection) for _ in range(2))
    assert counted.add(first, "2001:db8::1")
    assert not counted.add(second, "2001:db8::2")
    assert counted.add(second, "2001:db8:0:1::2")


def test_a_trusted_proxy_has_no_share(tmp_path: pathlib.Path) -> None:
    changes = {"max_connections_per_address": 1}
    with live_service.serving(tmp_path, trusted_proxies="127.0.0.1", **changes) as live:
        waiting = opened(live, 5)
        assert live.send(HEALTH).startswith(b"HTTP/1.1 200")
        for connection in waiting:
            connection.close()


LOGIN = json.dumps({"key": "felix_0123456789ab_wrong"})


def remotes(live: live_service.Served) -> list[str]:
    """The addresses of failed logins, oldest first."""
    return [entry.remote for entry in reversed(service_fakes.read(live.db, keys.audited))]


def log_in(live: live_service.Served, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    response = live.send(
        f"POST /v1/session HTTP/1.1\r\nHost: x\r\n{lines}Connection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(LOGIN)}\r\n\r\n{LOGIN}"
    )
    return response[9:12]


def test_nobody_invents_an_address(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    """Not even on this machine, nor where uvicorn is told to trust: the throttle holds."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with live_service.serving(tmp_path) as live:
        statuses = [
            log_in(live, f"X-Forwarded-For: 203.0.113.{number}", "Forwarded: for=203.0.113.99")
            for number in range(11)
        ]
        assert statuses == [b"401"] * 10 + [b"429"]
        assert set(remotes(live)) == {"127.0.0.1"}


def test_a_named_proxy_is_believed(tmp_path: pathlib.Path) -> None:
    """The last hop that is no proxy of ours counts for audit and throttle, not the first one."""
    with live_service.serving(tmp_path, trusted_proxies="127.0.0.0/8,10.0.0.5") as live:
        invented = "X-Forwarded-For: 198.51.100.1, 203.0.113.7, 10.0.0.5"
        assert [log_in(live, invented) for _ in range(11)] == [b"401"] * 10 + [b"429"]
        assert log_in(live, "X-Forwarded-For: 203.0.113.8") == b"401"
        assert log_in(live, "Forwarded: for=203.0.113.9") == b"401"
        assert remotes(live) == ["203.0.113.7"] * 10 + ["203.0.113.8", "127.0.0.1"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["1.1.1.1", "203.0.113.7, 10.0.0.2"], "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7:4711"], "203.0.113.7"),
        ("10.0.0.1", ["[2001:db8::7]:4711"], "2001:db8::7"),
        ("10.0.0.1", ["2001:db8::7"], "2001:db8::7"),
        ("::ffff:10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7, <script>"], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["203.0.113.7, , 10.0.0.2"], "10.0.0.2"),
        ("192.0.2.1", ["203.0.113.7"], "192.0.2.1"),
    ],
)
def test_the_last_hop_that_is_not_ours(peer: str, forwarded: list[str], client: str) -> None:
    scope = scope_behind(peer, [("x-forwarded-for", line) for line in forwarded])
    assert scope["client"][0] == client


@pytest.mark.parametrize(
    ("peer", "proto", "scheme"),
    [
        ("10.0.0.1", "https", "https"),
        ("10.0.0.1", "gopher", "http"),
        ("192.0.2.1", "https", "http"),
    ],
)
def test_the_scheme_is_a_trusted_proxys_to_say(peer: str, proto: str, scheme: str) -> None:
    assert scope_behind(peer, [("x-forwarded-proto", proto)])["scheme"] == scheme


def scope_behind(peer: str, headers: list[tuple[str, str]]) -> dict[str, Any]:
    """The scope that the application gets."""
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    async def nothing(*_: Any) -> Any:
        return None

    trusted = [middleware.ipaddress.ip_network("10.0.0.0/8")]
    scope = {
        "type": "http",
        "client": (peer, 1),
        "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    asyncio.run(middleware.TrustedProxies(app, trusted)(scope, nothing, nothing))
    result: dict[str, Any] = scopes[0]
    return result
