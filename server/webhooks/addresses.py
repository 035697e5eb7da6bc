"""Which addresses notifications may go to: public ones, by https.

A client names the address, and our machine connects to it. So machines behind our firewall must be
out of its reach, whatever a name resolves to and whenever: a name is resolved once for a try, each
of its addresses is checked, and the connection goes to the one that was checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import httpx

from server import errors

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

#: The addresses of a host and port.
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

#: IPv6 addresses under it are IPv4 addresses behind a translator.
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))


class Refused(errors.InvalidRequest):
    """The address is none that notifications may go to."""


def check_url(url: str, allow_private: bool) -> httpx.URL:
    """The address of a webhook, if it may be one; names are not resolved.

    Args:
        allow_private: also http, and addresses that are not public.

    Raises:
        Refused: the message says what it must be.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError):
        raise Refused("the address of a webhook must be a URL: https://host/path") from None
    schemes = ("https", "http") if allow_private else ("https",)
    if parsed.scheme not in schemes or not parsed.host:
        raise Refused(f"the address of a webhook begins with {' or '.join(schemes)}://host")
    if not 0 < (parsed.port or 443) < 2**16:
        raise Refused("the port of a webhook is a number from 1 to 65535")
    if parsed.userinfo:
        raise Refused("the address of a webhook has no user or password: check the signature")
    try:
        literal = ipaddress.ip_address(parsed.host)
    except ValueError:
        return parsed
    if not allow_private and not is_public(literal):
        raise Refused("the address of a webhook must be public")
    return parsed


async def pinned(url: httpx.URL, resolve: Resolve, allow_private: bool) -> str:
    """The address to connect to: the host's first, if all that it has are allowed.

    Raises:
        Refused: an address is not public.
        OSError: the name cannot be resolved.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    host = url.raw_host.decode("ascii")
    candidates = [ipaddress.ip_address(text) for text in await resolve(host, port)]
    if not candidates:
        raise OSError(f"{host} has no address")
    if not allow_private and not all(is_public(address) for address in candidates):
        raise Refused("the host has an address that is not public")
    return str(candidates[0])


def is_public(address: _Address) -> bool:
    """Whether anybody can reach it: not loopback, private, link-local, multicast or reserved."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.is_site_local or not all(is_public(inner) for inner in _embedded(address)):
            return False
        if _embedded(address):
            return True
    return address.is_global and not address.is_multicast and not address.is_reserved


def _embedded(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that packets to an IPv6 address may go to."""
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _NAT64):
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in inner if each is not None]


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, by the system's resolver."""
    loop = asyncio.get_running_loop()
    entries: list[Any] = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]).partition("%")[0] for entry in entries]
