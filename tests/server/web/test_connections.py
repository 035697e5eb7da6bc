"""Attacks on connections, over sockets: half-open requests, slow bodies, too many of them."""

from __future__ import annotations

import contextlib
import pathlib
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from server.web import connections
from tests.support import live_service
from tests.support.live_service import Live

N_HALF_OPEN = 200
LIMITS = connections.Limits(
    max_connections=800,
    max_per_address=N_HALF_OPEN + 10,
    head_s=0.7,
    body_window_s=0.5,
    body_bytes_per_s=1000.0,
)

HEALTH = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_service.serving(tmp_path_factory.mktemp("live"), LIMITS) as made:
        yield made


def opened(live: Live, n: int, text: str = "", address: str = "127.0.0.1") -> list[socket.socket]:
    """Connections that have sent `text` and nothing more."""
    made = [live.connect(address) for _ in range(n)]
    for connection in made:
        connection.sendall(text.encode())
    return made


def settled(live: Live, n: int) -> bool:
    """Whether the server comes down to so many connections within some seconds."""
    deadline_s = time.monotonic() + 10
    while len(live.server.server_state.connections) > n:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(
    "text", ["", "GET /healthz HTTP/1.1\r\nHost: x\r\n", "\r\n" * 10, "POST /v1/jobs HTT"]
)
def test_half_open_requests_are_cut(live: Live, text: str) -> None:
    half_open = opened(live, N_HALF_OPEN, text)
    assert live.send(HEALTH).startswith(b"HTTP/1.1 200")
    for connection in half_open[:3]:
        assert b" 408 " in live_service.read_to_end(connection)
    assert settled(live, 0)
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
    live: Live, many_files: None
) -> None:
    half_open = [
        connection
        for number in range(8)
        for connection in opened(live, 150, "GET /healthz HT", f"127.0.0.{number + 2}")
    ]
    assert live.send(HEALTH).startswith(b"HTTP/1.1 200")
    assert len(live.server.server_state.connections) <= LIMITS.max_connections
    assert settled(live, 0)
    for connection in half_open:
        connection.close()


def test_a_head_that_drips_is_cut(live: Live) -> None:
    """Also a second one, on a connection that has had a response."""
    for first in ("", HEALTH.replace("Connection: close\r\n", "")):
        with live.connect() as connection:
            connection.sendall(first.encode())
            began_s = time.monotonic()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for letter in "GET /healthz HTTP/1.1\r\nX: " + "y" * 1000:
                    connection.sendall(letter.encode())
                    time.sleep(0.02)
            assert time.monotonic() - began_s < 8.0
            assert live_service.read_to_end(connection).startswith(b"HTTP/1.1")
    assert settled(live, 0)


def test_a_body_that_drips_is_cut(live: Live) -> None:
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n{live.authorization}Content-Type: "
        "application/json\r\nContent-Length: 900000\r\n\r\n"
    )
    with live.connect() as connection:
        connection.sendall(head.encode())
        began_s = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - began_s < 10.0:
                connection.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - began_s < 8.0
        assert b" 408 " in live_service.read_to_end(connection)


def test_a_body_at_a_decent_rate_is_read_to_its_end(live: Live) -> None:
    """Longer than several windows, a little above the rate."""
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


def test_a_large_head_is_refused(live: Live) -> None:
    complete = "GET /healthz HTTP/1.1\r\n" + f"X: {'y' * 1000}\r\n" * 70 + "\r\n"
    endless = "GET /healthz HTTP/1.1\r\nX: " + "y" * 70_000
    path = f"GET /healthz?{'y' * 70_000} HTTP/1.1\r\n\r\n"
    for text in (complete, endless, path):
        with live.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(text.encode())
            assert live_service.read_to_end(connection).startswith(b"HTTP/1.1 4")
    assert live.send(HEALTH.replace("\r\n\r\n", f"\r\nX: {'y' * 30_000}\r\n\r\n")).startswith(
        b"HTTP/1.1 200"
    )


def test_an_address_has_a_share_of_the_connections(live: Live) -> None:
    waiting = opened(live, LIMITS.max_per_address)
    refused = live.send(HEALTH)
    assert refused.startswith(b"HTTP/1.1 503") and b"too many connections" in refused
    waiting.pop().close()
    assert settled(live, LIMITS.max_per_address - 1)
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
        assert settled(live, 4)
        assert live.send(HEALTH).startswith(b"HTTP/1.1 200")
        assert waiting[0].recv(1) == b""
        busy += opened(live, 3, upload)
        time.sleep(0.3)
        assert live.send(HEALTH).startswith(b"HTTP/1.1 503")
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
