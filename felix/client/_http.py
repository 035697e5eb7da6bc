"""Requests to the service, and its streams of events, followed over lost connections.

Problem details become `RemoteError`, passing failures are retried. Only requests that may be
repeated are: those that read, and those with an idempotency key.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import httpx

from felix import errors, version
from felix.client import rows

T = TypeVar("T")

#: Tries of a request that may be repeated, and seconds before the second; then twice as long.
TRIES = 4
WAIT_S = 0.5

#: Items of a page.
MAX_PAGE = 200

_PASSING = frozenset({502, 503, 504})


class Http:
    """A connection pool for one service and one key.

    Args:
        url: of the service, without a path.
        key: an API key.
        timeout_s: for one response.
        transport: of `httpx`, for tests.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        url: str,
        key: str,
        timeout_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise errors.RemoteError(f"the service's address begins with http(s)://, not {url!r}")
        if not key.isascii() or not key.isprintable():
            raise errors.RemoteError("the API key has characters that no key has")
        self.url = url.rstrip("/")
        self.sleep = sleep
        self._client = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            transport=transport,
            headers={
                "Authorization": f"Bearer {key}",
                "User-Agent": f"felix/{version.__version__}",
            },
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def get(self, path: str, **params: Any) -> Any:
        """The JSON at a path; parameters that are None are left out."""
        query = {name: value for name, value in params.items() if value is not None}
        return self.send("GET", path, params=query).json()

    def row(self, kind: type[T], method: str, path: str, **more: Any) -> T:
        """What the response to a request describes; the rest as in `send`."""
        return rows.of(kind, self.send(method, path, **more).json())

    def made(self, kind: type[T], path: str, idempotency_key: str | None, **more: Any) -> T:
        """What a POST makes once, however often it is sent; the rest as in `send`."""
        once = {"Idempotency-Key": idempotency_key or secrets.token_urlsafe(16)}
        return self.row(kind, "POST", path, headers=once, **more)

    def listed(self, kind: type[T], path: str, **params: Any) -> list[T]:
        """What a path lists whole."""
        return [rows.of(kind, item) for item in self.get(path, **params)["items"]]

    def items(
        self, kind: type[T], path: str, limit: int | None, filters: Mapping[str, Any]
    ) -> Iterator[T]:
        """What a path lists, page after page: at most `limit` items, None: all."""
        after, left = None, limit
        while left is None or left > 0:
            size = MAX_PAGE if left is None else min(MAX_PAGE, left)
            page = self.get(path, **filters, limit=size, after=after)
            yield from (rows.of(kind, item) for item in page["items"])
            after = page["next"]
            left = None if left is None else left - len(page["items"])
            if after is None:
                return

    def send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """The response to a request.

        Raises:
            RemoteError: the service refused, or cannot be reached.
        """
        repeatable = method == "GET" or "Idempotency-Key" in (headers or {})
        tries, wait_s = (TRIES if repeatable else 1), WAIT_S
        while True:
            tries -= 1
            try:
                response = self._client.request(method, path, headers=headers, **more)
            except httpx.TransportError as error:
                if tries == 0:
                    raise self.unreachable(error) from error
            except httpx.InvalidURL as error:
                raise errors.RemoteError(f"{self.url}: {error}") from error
            else:
                if response.status_code not in _PASSING or tries == 0:
                    return checked(response)
            self.sleep(wait_s)
            wait_s *= 2

    @contextlib.contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str] | None = None, **params: Any
    ) -> Iterator[httpx.Response]:
        """A response whose content is read piece by piece; `httpx.TransportError` goes through."""
        with self._client.stream("GET", path, headers=headers, params=params) as response:
            if not response.is_success:
                response.read()
            yield checked(response)

    def unreachable(self, error: httpx.TransportError) -> errors.RemoteError:
        """The error when there is no response."""
        reason = str(error) or type(error).__name__
        return errors.RemoteError(f"cannot reach the service at {self.url}: {reason}")


def content_of(path: pathlib.Path) -> bytes:
    """A file's content.

    Raises:
        WorkloadError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise errors.WorkloadError(f"cannot read {path}: {error.strerror}") from error


def checked(response: httpx.Response) -> httpx.Response:
    """The response, if it is a success.

    Raises:
        RemoteError
    """
    if response.is_success:
        return response
    try:
        problem = response.json()
        detail = str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"{response.reason_phrase or 'error'}; is this the address of Felix?"
    raise errors.RemoteError(
        f"{detail} (HTTP {response.status_code})", status=response.status_code
    )


#: A service that does not respond for so long is given up.
PATIENCE_S = 120.0
RETRY_S = 0.5


def parse(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Event and data of the messages in a stream's lines; comments and messages without data are
    left out."""
    event = "message"
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield event, "\n".join(data)
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)


def follow(http: Http, job_id: int, after_seq: int) -> Iterator[rows.Event]:
    """Events of a job as they come, until it has ended; connections that break are renewed.

    Raises:
        RemoteError: the service refused, or was out of reach for too long.
    """
    path, seq, last_message_s = f"/v1/jobs/{job_id}/events/stream", after_seq, time.monotonic()
    while True:
        try:
            with http.stream(path, after_seq=seq) as response:
                for kind, data in parse(response.iter_lines()):
                    last_message_s = time.monotonic()
                    if kind == "end":
                        return
                    event = rows.of(rows.Event, json.loads(data))
                    seq = event.seq
                    yield event
        except httpx.TransportError as error:
            if time.monotonic() - last_message_s > PATIENCE_S:
                raise http.unreachable(error) from error
        except errors.RemoteError as error:
            if error.status != 503 or time.monotonic() - last_message_s > PATIENCE_S:
                raise
        http.sleep(RETRY_S)
