"""Bodies without a key, over sockets: refused unread, so they cost the others nothing."""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import time
from collections.abc import Iterator
from concurrent import futures

import pytest

from server.web import middleware
from tests.support import live_service
from tests.support.live_service import Served

N_POSTS = 30
POST_BYTES = 11_000_000


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with live_service.serving(tmp_path_factory.mktemp("live")) as made:
        yield made


def head(path: str, n_bytes: int | None, more: str = "", kind: str = "application/json") -> str:
    """The head of a request with a body, in chunks if its length is None."""
    length = "Transfer-Encoding: chunked" if n_bytes is None else f"Content-Length: {n_bytes}"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{more}Content-Type: {kind}\r\n{length}\r\n\r\n"


FORM = "multipart/form-data; boundary=x"


def flood(connection: socket.socket, n_bytes: int) -> int:
    """Send as much of a body as is taken; how much it was."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < n_bytes:
            sent += connection.send(bytes(min(1 << 16, n_bytes - sent)))
    return sent


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/v1/jobs", "application/json", b"401"),
        ("/v1/jobs/upload", FORM, b"401"),
        ("/v1/keys", "application/json", b"401"),
        ("/v1/jobs/1/pause", "application/json", b"401"),
        ("/v1/nothing", "application/json", b"401"),
        ("/dashboard/submit", "application/x-www-form-urlencoded", b"303"),
        ("/dashboard/keys", FORM, b"303"),
    ],
)
@pytest.mark.parametrize("length", [POST_BYTES, None])
def test_a_body_without_a_key_is_not_read(
    live: Served, path: str, kind: str, status: bytes, length: int | None
) -> None:
    """The response comes before any of the body was sent, and ends the connection."""
    for credentials in (
        "",
        "Authorization: Bearer felix_0123456789ab_x\r\n",
        "Cookie: felix_login=x\r\n",
    ):
        response = live.send(head(path, length, credentials, kind))
        assert response.startswith(b"HTTP/1.1 " + status)
        assert b"connection: close" in response.lower()


def test_a_client_that_sends_on_still_gets_the_response(live: Served) -> None:
    with live.connect() as connection:
        connection.sendall(head("/v1/jobs", POST_BYTES).encode())
        assert flood(connection, POST_BYTES) < POST_BYTES
        assert b" 401 " in live_service.read_to_end(connection)


def slowest_health_s(live: Served) -> float:
    """The longest of 20 requests that need next to nothing."""
    slowest_s = 0.0
    client = http.client.HTTPConnection("127.0.0.1", live.port, timeout=120)
    with contextlib.closing(client):
        for _ in range(20):
            began_s = time.perf_counter()
            client.request("GET", "/healthz")
            with client.getresponse() as response:
                response.read()
            assert response.status == 200
            slowest_s = max(slowest_s, time.perf_counter() - began_s)
            time.sleep(0.01)
    return slowest_s


def test_many_large_bodies_without_a_key_slow_nobody(live: Served) -> None:
    """Each is what took the service tens of milliseconds to parse as JSON, all 0.6 s; none is
    read. A busy machine is slow at times, a defect always: the best of five attacks counts."""
    body = b'{"workload": [' + b"[]," * (POST_BYTES // 3) + b"[]]}"

    def post() -> bytes:
        with live.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(head("/v1/jobs", len(body)).encode())
            with contextlib.suppress(OSError):
                connection.sendall(body)
            return live_service.read_to_end(connection)[9:12]
        return b""

    limit_s, slowest_s = 0.3 + 5 * slowest_health_s(live), [math.inf]
    while len(slowest_s) < 6 and min(slowest_s) >= limit_s:
        with futures.ThreadPoolExecutor(N_POSTS) as attackers:
            statuses = [attackers.submit(post) for _ in range(N_POSTS)]
            slowest_s.append(slowest_health_s(live))
        assert [status.result() for status in statuses] == [b"401"] * N_POSTS
    assert min(slowest_s) < limit_s


@pytest.mark.parametrize("path", ["/v1/session", middleware.LOGIN_PAGE])
def test_a_login_takes_a_small_body_only(live: Served, path: str) -> None:
    """Announced, and counted while it comes."""
    large = middleware.MAX_LOGIN_BYTES + 1
    kind = "application/json" if path == "/v1/session" else "application/x-www-form-urlencoded"
    assert b" 413 " in live.send(head(path, large, kind=kind))
    with live.connect() as connection:
        connection.sendall(head(path, None, kind=kind).encode())
        with contextlib.suppress(OSError):
            for _ in range(middleware.MAX_LOGIN_BYTES // 4096 + 2):
                connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        assert b" 413 " in live_service.read_to_end(connection)


def test_a_known_caller_has_larger_bodies(live: Served) -> None:
    body = '{"workload": "' + "x" * (middleware.MAX_LOGIN_BYTES * 2) + '"}'
    more = f"{live.authorization}Connection: close\r\n"
    assert b" 422 " in live.send(head("/v1/jobs", len(body), more) + body)
    assert b" 413 " in live.send(head("/v1/jobs", middleware.MAX_BODY_BYTES + 1, more))


def test_a_refusal_after_the_key_leaves_the_rest_unread(live: Served) -> None:
    """A route that is not there: the body is not drained for minutes, the connection ends."""
    with live.connect() as connection:
        connection.sendall(head("/v1/nothing", POST_BYTES, live.authorization).encode())
        assert b" 404 " in live_service.read_to_end(connection)
        assert flood(connection, POST_BYTES) < POST_BYTES
