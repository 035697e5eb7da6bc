"""Headers of proxies count from the proxies that a setting names, and from nobody else."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import pytest

from server.store import keys
from server.web import middleware
from tests.support import live_service

LOGIN = json.dumps({"key": "felix_0123456789ab_wrong"})


def remotes(live: live_service.Live) -> list[str]:
    """The addresses of failed logins, oldest first."""
    with live.db.read() as tx:
        return [entry.remote for entry in reversed(keys.audited(tx))]


def log_in(live: live_service.Live, *headers: str) -> bytes:
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
