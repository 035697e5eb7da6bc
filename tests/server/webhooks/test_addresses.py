"""Which addresses notifications may go to."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence

import httpx
import pytest

from server import notifications

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
    assert not notifications.is_public(ipaddress.ip_address(text))
    host = f"[{text}]" if ":" in text else text
    with pytest.raises(notifications.Refused, match="must be public"):
        notifications.check_url(f"https://{host}/hook", allow_private=False)
    assert notifications.check_url(f"http://{host}/hook", allow_private=True).path == "/hook"


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses(text: str) -> None:
    assert notifications.is_public(ipaddress.ip_address(text))


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
