"""Notifications on their way: which addresses are allowed, signatures, the loop that sends.

A client names the address, and our machine connects to it. So machines behind our firewall must be
out of its reach, whatever a name resolves to and whenever: a name is resolved once for a try, each
of its addresses is checked, and the connection goes to the one that was checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import httpx
import sqlalchemy as sa
from anyio import abc
from sqlalchemy import orm

from felix import version
from server import errors, logs
from server.database import database
from server.store import webhooks

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


SIGNATURE = "Felix-Signature"
EVENT_ID = "Felix-Event"

#: For all of it: resolving, connecting, sending, the first line of the response.
TRY_S = 10.0


def signature(secret: str, body: bytes, at_s: int) -> str:
    """The value of the header `Felix-Signature`."""
    digest = hmac.new(secret.encode(), b"%d.%b" % (at_s, body), hashlib.sha256)
    return f"t={at_s},v1={digest.hexdigest()}"


class Sender:
    """Sends notifications; lives in one event loop.

    The receiver's answer is its status and nothing else: the body is not read, redirects are not
    followed. The signature is an HMAC-SHA256 with the webhook's secret over the time and the
    body:

        Felix-Signature: t=1767225600,v1=5257a869e7...   of "1767225600." + body

    Args:
        allow_private: also to http and to addresses that are not public.
        resolve: the addresses of a host.
        now_s: seconds since 1970.
        try_s: for all of one try.
    """

    def __init__(
        self,
        allow_private: bool,
        resolve: Resolve = resolve,
        now_s: Callable[[], float] = time.time,
        try_s: float = TRY_S,
    ) -> None:
        self._allow_private, self._resolve = allow_private, resolve
        self._now_s, self._try_s = now_s, try_s

    async def send(self, due: webhooks.Due) -> webhooks.Reply:
        """Try once; what came of it."""
        try:
            with anyio.fail_after(self._try_s):
                return webhooks.Reply(await self._status(due), None)
        except TimeoutError:
            return webhooks.Reply(None, f"no response within {self._try_s:g} s")
        except (Refused, httpx.HTTPError, OSError, UnicodeError) as error:
            return webhooks.Reply(None, _reason(error))

    async def _status(self, due: webhooks.Due) -> int:
        url = check_url(due.url, self._allow_private)
        address = await pinned(url, self._resolve, self._allow_private)
        body = due.body.encode()
        headers = {
            "Host": url.netloc.decode("ascii"),
            "Content-Type": "application/json",
            "User-Agent": f"felix/{version.__version__}",
            SIGNATURE: signature(due.secret, body, int(self._now_s())),
            EVENT_ID: due.event_id,
        }
        async with (
            httpx.AsyncClient(trust_env=False, follow_redirects=False) as client,
            client.stream(
                "POST",
                url.copy_with(host=address),
                content=body,
                headers=headers,
                extensions={"sni_hostname": url.raw_host.decode("ascii")},
            ) as response,
        ):
            return response.status_code


def _reason(error: Exception) -> str:
    """Why there was no response, without what the other side said."""
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, httpx.TimeoutException):
        return "no response in time"
    if isinstance(error, httpx.ConnectError | OSError | UnicodeError):
        return "cannot connect to the host"
    return "the connection broke"


_log = logs.of(__name__)

T = TypeVar("T")

#: Notifications that are sent at the same time.
AT_ONCE = 32
#: A lease outlives the longest try.
LEASE_S = 3 * TRY_S

#: Tries of a notification; the last comes about five hours after the first.
MAX_ATTEMPTS = 12
_FIRST_WAIT_S, _LONGEST_WAIT_S = 10.0, 2 * 3600.0

#: Ended notifications are listed so long.
KEEP_S = 30 * 86_400.0
_FORGET_EVERY_S = 3600.0


def retry_after_s(attempts: int) -> float | None:
    """How long to wait after so many tries; None: no more."""
    if attempts >= MAX_ATTEMPTS:
        return None
    return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (attempts - 1))


class Deliverer:
    """Lives in one event loop; `run` must be running in it.

    Several servers share the work by leases. A server that dies leaves its leases to expire, and
    another sends again: receivers may get a notification twice, with the same event id.
    """

    def __init__(self, db: database.Database, sender: Sender, every_s: float = 1.0) -> None:
        self._db, self._sender, self._every_s = db, sender, every_s
        self._n_sending = 0
        self._sent = asyncio.Event()

    async def run(self) -> None:
        """Send until cancelled."""
        loop = asyncio.get_running_loop()
        forget_at_s = loop.time()
        async with anyio.create_task_group() as group:
            while True:
                self._sent.clear()
                try:
                    await self._start_due(group)
                    if loop.time() >= forget_at_s:
                        await self._write(lambda tx: webhooks.forget_old(tx, KEEP_S))
                        forget_at_s = loop.time() + _FORGET_EVERY_S
                except sa.exc.SQLAlchemyError as error:
                    _log.warning("cannot deliver: %s", error, action="deliver_failed")
                with anyio.move_on_after(self._every_s):
                    await self._sent.wait()

    async def _start_due(self, group: abc.TaskGroup) -> int:
        """Begin to send what is due, as much as may be under way; how many there were."""
        n_free = AT_ONCE - self._n_sending
        if n_free == 0 or not await anyio.to_thread.run_sync(self._any_due):
            return 0
        due = await self._write(lambda tx: webhooks.lease(tx, n_free, LEASE_S))
        self._n_sending += len(due)
        for each in due:
            group.start_soon(self._send, each)
        return len(due)

    async def _send(self, due: webhooks.Due) -> None:
        try:
            reply = await self._sender.send(due)
            wait_s = retry_after_s(due.attempts)
            await self._write(lambda tx: webhooks.note(tx, due, reply, wait_s))
        except sa.exc.SQLAlchemyError as error:  # its lease expires, and it is sent again
            _log.warning("cannot note a delivery: %s", error, action="deliver_failed")
        else:
            if not reply.is_accepted and wait_s is None:
                _log.warning("notification %d was never accepted", due.id, action="deliver_dead")
        finally:
            self._n_sending -= 1
            self._sent.set()

    def _any_due(self) -> bool:
        with self._db.read() as tx:
            return webhooks.any_due(tx)

    async def _write(self, verb: Callable[[orm.Session], T]) -> T:
        def write() -> T:
            with self._db.write() as tx:
                return verb(tx)

        return await anyio.to_thread.run_sync(write)
