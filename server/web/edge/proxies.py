"""Where a request comes from: the peer, or what a proxy says that a setting names.

`X-Forwarded-For` and `X-Forwarded-Proto` are anybody's to send, so they count only if the peer is
one of `FELIX_TRUSTED_PROXIES`. Each proxy appends the address that it saw. So the list is read
from its end over our own proxies, and the first other address is the client's: what stands before
it is the client's to invent. The header `Forwarded` never counts: a proxy that writes one of the
two passes the other on as it came.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from starlette import datastructures, types

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """ASGI middleware: puts the client's address and scheme in place of a trusted proxy's.

    Args:
        app: the application.
        trusted: addresses of proxies.
    """

    def __init__(self, app: types.ASGIApp, trusted: Collection[Network]) -> None:
        self._app, self._trusted = app, trusted

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve one request."""
        peer = parse_address(scope["client"][0]) if scope.get("client") else None
        if scope["type"] == "http" and peer is not None and is_trusted(peer, self._trusted):
            headers = datastructures.Headers(scope=scope)
            hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
            client = _first_untrusted(peer, hops, self._trusted)
            scheme = headers.get("x-forwarded-proto", "").strip().lower()
            scope = {**scope, "client": (str(client), 0)}
            if scheme in ("http", "https"):
                scope["scheme"] = scheme
        await self._app(scope, receive, send)


def parse_address(text: str) -> Address | None:
    """An address, which may have a port or brackets; None if it is none.

    An IPv4 address that came over an IPv6 socket is the IPv4 address.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_trusted(address: Address, trusted: Collection[Network]) -> bool:
    """Whether an address is one of the proxies."""
    return any(address in network for network in trusted)


def _first_untrusted(peer: Address, hops: list[str], trusted: Collection[Network]) -> Address:
    """The last hop that is none of ours; the farthest of ours if there is no such address."""
    client = peer
    for hop in reversed(hops):
        address = parse_address(hop)
        if address is None:
            break
        client = address
        if not is_trusted(address, trusted):
            break
    return client
