"""Sending one notification: signed, to an address that was checked, within a few seconds.

The receiver's answer is its status and nothing else: the body is not read, redirects are not
followed. The signature is an HMAC-SHA256 with the webhook's secret over the time and the body:

    Felix-Signature: t=1767225600,v1=5257a869e7...   of "1767225600." + body
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

import anyio
import httpx

from felix import version
from server.store import webhooks
from server.webhooks import addresses

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

    Args:
        allow_private: also to http and to addresses that are not public.
        resolve: the addresses of a host.
        now_s: seconds since 1970.
        try_s: for all of one try.
    """

    def __init__(
        self,
        allow_private: bool,
        resolve: addresses.Resolve = addresses.resolve,
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
        except (addresses.Refused, httpx.HTTPError, OSError, UnicodeError) as error:
            return webhooks.Reply(None, _reason(error))

    async def _status(self, due: webhooks.Due) -> int:
        url = addresses.check_url(due.url, self._allow_private)
        address = await addresses.pinned(url, self._resolve, self._allow_private)
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
    if isinstance(error, addresses.Refused):
        return str(error)
    if isinstance(error, httpx.TimeoutException):
        return "no response in time"
    if isinstance(error, httpx.ConnectError | OSError | UnicodeError):
        return "cannot connect to the host"
    return "the connection broke"
